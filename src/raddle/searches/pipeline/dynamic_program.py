"""Finds the best pipeline stages, none slower than a given cap, by dynamic programming.

shortest_step.py calls it with many caps. An ideal (ideals.py) is a set of layers that can run before a cut.
A stage from ideal i to ideal j has the layers that j has and i does not have. So a sum over the layers of a
stage is the difference of two sums over ideals (`IdealSums`). The program goes from the last stage to the
first, over (ideal, device, remaining stages). A stage uses one or more devices in a row; each is a
*replica*, which computes a part of the samples. The cap is the most seconds that a stage may take for a
micro-batch.
"""

# i, j: ideals before and after a stage, d: the first device of a stage, r: number of its replicas,
# q: number of stages from this one to the last, b: word of 64 bits in a set of layers

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from raddle.costs.collective_algorithms import ring_seconds
from raddle.costs.links import transfer_seconds
from raddle.searches.pipeline.cap_search import CappedOptimum
from raddle.searches.pipeline.cuts import crossing_bytes
from raddle.searches.pipeline.ideals import Array, Ideals
from raddle.searches.pipeline.layers import DeviceChain, LayerCosts

ROUNDING = 1e-9  # relative slack for errors of floating-point sums


class IdealSums(NamedTuple):
    """Sums over the layers of each ideal, for one micro-batch."""

    members: Array  # [ideal, word]: the layers, as bits of 64-bit words (ideals.py)
    forward: Array  # seconds, [kind of device, ideal]
    backward: Array  # seconds, [kind of device, ideal]
    # Seconds of forward and backward, each layer on the kind of device that is the fastest for it.
    work: Array
    saved: Array  # bytes of activations saved for the backward
    parameters: Array  # bytes
    cut_bytes: Array  # bytes of outputs that layers outside the ideal read

    def select(self, chosen: Array) -> IdealSums:
        """Return the sums of some ideals only; `chosen` holds their numbers in ascending order."""
        columns = (column[..., chosen] for column in self[1:])
        return IdealSums(self.members[chosen], *columns)


class Placements(NamedTuple):
    """The memory and the links of a stage on devices d to d + r - 1, as arrays [d] or [d, r]."""

    kind: Array  # [d]: kind of the devices
    max_replicas: Array  # [d]: how many devices from d on are of the same kind, up to the limit
    capacity: Array  # [d, r]: bytes of memory, the smallest of the devices
    bandwidth: Array  # [d, r]: bytes per second, the smallest between the devices
    entry_bandwidth: Array  # [d]: bytes per second of the link from device d - 1
    entry_latency: Array  # [d]: seconds of the link from device d - 1


class MemoryRules(NamedTuple):
    """Rules for the memory of stages."""

    state_factor: float  # bytes held for each byte of parameters: weight, gradient, optimizer state
    may_save: bool  # a stage may save all activations for the backward
    may_recompute: bool  # a stage may save only its inputs, and recompute the activations
    alive: Array  # [q]: micro-batches in flight in the stage; one entry if it is the same for all q


class PlacedSegment(NamedTuple):
    """A stage: a segment of the chain of ideals (the layers between two of them), and the devices."""

    i: int  # ideal before the stage
    j: int  # ideal after the stage
    d: int  # first device
    r: int  # replicas: the stage uses devices d to d + r - 1
    recompute: bool


def sums_of(ideals: Ideals, costs: LayerCosts) -> IdealSums:
    """Return, for each ideal, the sums of the costs of its layers."""
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
    """Return the memory and the links of all stages of up to `replica_limit` devices of the chain."""
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
    """Return the stages with the smallest sum, or None if no stages keep the cap and the memory limits.

    No stage takes more than `cap` seconds for a micro-batch. The sum has the seconds of all stages for one
    micro-batch, of their all-reduces and of the transfers between stages.
    """
    least, choice = _fill_tables(sums, placements, rules, cap)
    i, d, q = 0, 0, int(np.argmin(least[0, 0]))
    if not np.isfinite(least[0, 0, q]):
        return None
    segments = []
    while i < len(sums.members) - 1:  # follow the choices, from the first stage to the last
        j, r, recompute = (int(x) for x in choice[i, d, q])
        segments.append(PlacedSegment(i, j, d, r, bool(recompute)))
        i, d, q = j, d + r, max(q - 1, 0)
    largest = max(stage_seconds(sums, placements, segment) for segment in segments)
    return CappedOptimum(largest, float(least[0, 0].min()), segments)


def stage_seconds(sums: IdealSums, placements: Placements, segment: PlacedSegment) -> float:
    """Return the seconds of one micro-batch on a stage: forward, backward and recomputation."""
    i, j, d, r, recompute = segment
    kind = placements.kind[d]
    forward = sums.forward[kind, j] - sums.forward[kind, i]
    backward = sums.backward[kind, j] - sums.backward[kind, i]
    return float((forward + backward + (forward if recompute else 0.0)) / r)


def stage_memory(sums: IdealSums, state_factor: float, segment: PlacedSegment, alive: int) -> float:
    """Return the bytes on each device of a stage with `alive` micro-batches in flight."""
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
    """Return the tables (least, choice) of the dynamic program.

    least[i, d, q]: the smallest sum for the layers after ideal i, in q stages from device d on. It includes
    the transfer to device d. choice[i, d, q]: (j, r, recompute) of the first of these stages. If the
    number of micro-batches in flight does not depend on q, there is only q = 0, for any number of stages.
    """
    # q_count: how many values q has
    ideals, devices, q_count = len(sums.members), len(placements.kind), len(rules.alive)
    least = np.full((ideals, devices + 1, q_count), np.inf)
    least[-1, :, 0] = 0.0  # after the whole graph, nothing remains
    choice = np.zeros((ideals, devices + 1, q_count, 3), np.int32)
    for i in range(ideals - 2, -1, -1):
        first_device, last_device = _device_range(sums.work, i, devices, cap)
        for j in range(i + 1, ideals):
            # A stage with more work than this is above the cap even on all devices.
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
            for q in range(q_count):
                least[i, d, q] += 2 * transfer  # activations, and their gradients
    return least, choice


@njit(cache=True)
def _device_range(work: Array, i: int, devices: int, cap: float) -> tuple[int, int]:
    """Return the first and the last device on which a stage after ideal i may start.

    Enough devices must come before it for the work of i, and enough must follow for the other work.
    work: IdealSums.work; devices: how many there are.
    """
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
    """Try the stage from ideal i to ideal j on all its possible devices; updates `least` and `choice`."""
    parameters = sums.parameters[j] - sums.parameters[i]
    state_bytes = rules.state_factor * parameters
    # The next stage has q - 1 stages left; if there is only q = 0, it stays 0.
    q_step, devices = 1 if len(rules.alive) > 1 else 0, len(placements.kind)
    first_device, last_device = _device_range(sums.work, i, devices, cap)
    next_first, next_last = _device_range(sums.work, j, devices, cap)
    for d in range(first_device, last_device + 1):
        kind = placements.kind[d]
        forward = sums.forward[kind, j] - sums.forward[kind, i]
        backward = sums.backward[kind, j] - sums.backward[kind, i]
        for r in range(max(1, next_first - d), min(placements.max_replicas[d], next_last - d) + 1):
            # Seconds of a stage that saves all activations, and of one that recomputes them.
            saving_seconds = (forward + backward) / r
            if saving_seconds > cap:
                continue
            recomputing_seconds = (forward + backward + forward) / r
            saved = (sums.saved[j] - sums.saved[i]) / r
            input_bytes = sums.cut_bytes[i] / r
            # The latency of the all-reduce is left out (0.0).
            all_reduce_seconds = ring_seconds(r, placements.bandwidth[d, r], 0.0, parameters)
            max_stages_after = 0 if j == len(sums.work) - 1 else devices - d - r
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
