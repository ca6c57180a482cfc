"""The least sum over a flushed pipeline's stages, given a cap on the seconds of each; see `stages`."""

# i, j: ideals, d: the first device of a stage, r: its replicas, q: stages from it to the last

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from raddle.costs.collectives import ring_seconds
from raddle.costs.links import transfer_seconds
from raddle.searches.pipeline.cap_search import CappedOptimum
from raddle.searches.pipeline.cuts import crossing_bytes
from raddle.searches.pipeline.ideals import Array, Ideals
from raddle.searches.pipeline.layers import DeviceChain, LayerCosts

ROUNDING = 1e-9


class IdealSums(NamedTuple):
    """By ideal, the sums that stages are differences of."""

    members: Array
    forward: Array  # by kind and ideal, seconds
    backward: Array
    work: Array  # both, on the kind that is the fastest for each layer
    saved: Array  # bytes
    parameters: Array  # bytes
    cut_bytes: Array  # bytes that layers outside read

    def select(self, chosen: Array) -> IdealSums:
        """The same of some ideals, in rising order."""
        columns = (column[..., chosen] for column in self[1:])
        return IdealSums(self.members[chosen], *columns)


class Placements(NamedTuple):
    """What stages meet on the devices, by their first device and, where there are two indices, replicas."""

    kind: Array
    max_replicas: Array  # replicas: the devices that follow and are of the same kind
    capacity: Array  # bytes, the least of the replicas
    bandwidth: Array  # bytes a second, the least among the replicas
    entry_bandwidth: Array  # of the link that leads to the first device
    entry_latency: Array


class MemoryRules(NamedTuple):
    """What holds for all stages."""

    state_factor: float  # bytes that are held for a byte of parameters
    may_save: bool
    may_recompute: bool
    alive: Array  # by q, micro-batches; a single one if it is the same for all


class PlacedSegment(NamedTuple):
    """A stage by the ideals before and behind it, and its devices."""

    i: int
    j: int
    d: int
    r: int
    recompute: bool


def sums_of(ideals: Ideals, costs: LayerCosts) -> IdealSums:
    seconds = np.add(costs.forward, costs.backward)
    return IdealSums(
        ideals.members,
        np.array([ideals.sums(row) for row in costs.forward]),
        np.array([ideals.sums(row) for row in costs.backward]),
        ideals.sums(seconds.min(axis=0)),
        ideals.sums(costs.saved),
        ideals.sums(costs.parameters),
        crossing_bytes(ideals, costs.activation, costs.successors),
    )


def build_placements(device_chain: DeviceChain, replica_limit: int) -> Placements:
    devices = len(device_chain.kinds)
    max_replicas = np.ones(devices, np.int64)
    capacity = np.zeros((devices, devices + 1))
    bandwidth = np.full((devices, devices + 1), np.inf)
    for d in range(devices - 1, -1, -1):
        if d + 1 < devices and device_chain.kinds[d] == device_chain.kinds[d + 1]:
            max_replicas[d] = min(replica_limit, max_replicas[d + 1] + 1)
        for r in range(1, devices - d + 1):
            capacity[d, r] = min(device_chain.capacity[d : d + r])
            bandwidth[d, r] = min(device_chain.bandwidth[d : d + r - 1], default=np.inf)
    return Placements(
        np.array(device_chain.kinds),
        max_replicas,
        capacity,
        bandwidth,
        np.array([np.inf, *device_chain.bandwidth]),
        np.array([0.0, *device_chain.latency]),
    )


def least_sum(
    sums: IdealSums, placements: Placements, rules: MemoryRules, cap: float
) -> CappedOptimum[list[PlacedSegment]] | None:
    """Stages of at most the cap, each, with the least sum of their seconds and of what cuts take."""
    least, choice = _fill_tables(sums, placements, rules, cap)
    i, d, q = 0, 0, int(np.argmin(least[0, 0]))
    if not np.isfinite(least[0, 0, q]):
        return None
    segments = []
    while i < len(sums.members) - 1:
        j, r, recompute = (int(x) for x in choice[i, d, q])
        segments.append(PlacedSegment(i, j, d, r, bool(recompute)))
        i, d, q = j, d + r, max(q - 1, 0)
    largest = max(stage_seconds(sums, placements, segment) for segment in segments)
    return CappedOptimum(largest, float(least[0, 0].min()), segments)


def stage_seconds(sums: IdealSums, placements: Placements, segment: PlacedSegment) -> float:
    """A micro-batch's forward and backward on a stage."""
    i, j, d, r, recompute = segment
    kind = placements.kind[d]
    forward = sums.forward[kind, j] - sums.forward[kind, i]
    backward = sums.backward[kind, j] - sums.backward[kind, i]
    return float((forward + backward + (forward if recompute else 0.0)) / r)


def stage_memory(sums: IdealSums, state_factor: float, segment: PlacedSegment, alive: int) -> float:
    """Bytes on each device of a stage."""
    i, j, _, r, recompute = segment
    state_bytes = state_factor * (sums.parameters[j] - sums.parameters[i])
    saved = (sums.saved[j] - sums.saved[i]) / r
    return float(
        state_bytes + (alive * (sums.cut_bytes[i] / r) + saved if recompute else alive * saved)
    )


@njit(cache=True)
def _fill_tables(
    sums: IdealSums, placements: Placements, rules: MemoryRules, cap: float
) -> tuple[Array, Array]:
    """By (i, d, q): the least sum of what follows i from device d on in q stages, its (j, r, recompute).

    The link to device d is in it. Where alive micro-batches do not depend on q, there is only q = 0.
    """
    ideals, devices, depths = len(sums.members), len(placements.kind), len(rules.alive)
    least = np.full((ideals, devices + 1, depths), np.inf)
    least[-1, :, 0] = 0.0
    choice = np.zeros((ideals, devices + 1, depths, 3), np.int32)
    for i in range(ideals - 2, -1, -1):
        first_device, last_device = _device_range(sums.work, i, devices, cap)
        for j in range(i + 1, ideals):
            if sums.work[j] - sums.work[i] > (devices + ROUNDING) * cap:
                continue
            is_subset = True
            for b in range(sums.members.shape[1]):
                is_subset = is_subset and not sums.members[i, b] & ~sums.members[j, b]
            if is_subset and first_device <= last_device:
                _try_stage(sums, placements, rules, cap, i, j, least, choice)
        for d in range(max(first_device, 1), last_device + 1):
            transfer = transfer_seconds(
                placements.entry_latency[d], placements.entry_bandwidth[d], sums.cut_bytes[i]
            )
            for q in range(depths):
                least[i, d, q] += 2 * transfer
    return least, choice


@njit(cache=True)
def _device_range(work: Array, i: int, devices: int, cap: float) -> tuple[int, int]:
    """The devices that can come first behind ideal i: enough for the work before, and after it."""
    if i == 0:
        return 0, 0
    if i == len(work) - 1:
        return 1, devices
    needed_before = int(np.ceil(work[i] / cap - ROUNDING))
    needed_after = int(np.ceil((work[-1] - work[i]) / cap - ROUNDING))
    return max(needed_before, 1), devices - max(needed_after, 1)


@njit(cache=True)
def _try_stage(
    sums: IdealSums,
    placements: Placements,
    rules: MemoryRules,
    cap: float,
    i: int,
    j: int,
    least: Array,
    choice: Array,
) -> None:
    """Improve what follows i by a stage from i to j, on all devices that it can have."""
    parameters = sums.parameters[j] - sums.parameters[i]
    state_bytes = rules.state_factor * parameters
    q_step, devices = 1 if len(rules.alive) > 1 else 0, len(placements.kind)
    first_device, last_device = _device_range(sums.work, i, devices, cap)
    next_first, next_last = _device_range(sums.work, j, devices, cap)
    for d in range(first_device, last_device + 1):
        kind = placements.kind[d]
        forward = sums.forward[kind, j] - sums.forward[kind, i]
        backward = sums.backward[kind, j] - sums.backward[kind, i]
        for r in range(max(1, next_first - d), min(placements.max_replicas[d], next_last - d) + 1):
            saving_seconds = (forward + backward) / r
            if saving_seconds > cap:
                continue
            recomputing_seconds = (forward + backward + forward) / r
            saved = (sums.saved[j] - sums.saved[i]) / r
            input_bytes = sums.cut_bytes[i] / r
            all_reduce_seconds = ring_seconds(r, placements.bandwidth[d, r], 0.0, parameters)
            max_stages_after = 0 if j == len(sums.work) - 1 else devices - d - r  # stages, at most
            for q in range(q_step, min(len(rules.alive), q_step + max_stages_after + 1)):
                remaining = least[j, d + r, q - q_step] + all_reduce_seconds
                alive = rules.alive[q]
                if rules.may_save and state_bytes + alive * saved <= placements.capacity[d, r]:
                    total, recompute = saving_seconds + remaining, 0
                elif (
                    rules.may_recompute
                    and recomputing_seconds <= cap
                    and state_bytes + alive * input_bytes + saved <= placements.capacity[d, r]
                ):
                    total, recompute = recomputing_seconds + remaining, 1
                else:
                    continue
                if total < least[i, d, q]:
                    least[i, d, q] = total
                    choice[i, d, q] = (j, r, recompute)
