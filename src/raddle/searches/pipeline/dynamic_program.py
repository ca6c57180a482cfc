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


class Sums(NamedTuple):
    """By ideal, the sums that stages are differences of."""

    members: Array
    forward: Array  # by kind and ideal, seconds
    backward: Array
    work: Array  # both, on the kind that is the fastest for each layer
    kept: Array  # bytes
    parameters: Array  # bytes
    cut: Array  # bytes that layers outside read

    def only(self, chosen: Array) -> Sums:
        """The same of some ideals, in rising order."""
        columns = (column[..., chosen] for column in self[1:])
        return Sums(self.members[chosen], *columns)


class Places(NamedTuple):
    """What stages meet on the devices, by their first device and, where there are two indices, replicas."""

    kind: Array
    most: Array  # replicas: the devices that follow and are of the same kind
    room: Array  # bytes, the least of the replicas
    bandwidth: Array  # bytes a second, the least among the replicas
    entry_bandwidth: Array  # of the link that leads to the first device
    entry_latency: Array


class Rules(NamedTuple):
    """What holds for all stages."""

    static: float  # bytes that are held for a byte of parameters
    may_keep: bool
    may_recompute: bool
    alive: Array  # by q, micro-batches; a single one if it is the same for all


class Span(NamedTuple):
    """A stage by the ideals before and behind it, and its devices."""

    i: int
    j: int
    d: int
    r: int
    recompute: bool


def sums_of(ideals: Ideals, work: LayerCosts) -> Sums:
    both = np.add(work.forward, work.backward)
    return Sums(
        ideals.members,
        np.array([ideals.sums(row) for row in work.forward]),
        np.array([ideals.sums(row) for row in work.backward]),
        ideals.sums(both.min(axis=0)),
        ideals.sums(work.saved),
        ideals.sums(work.parameters),
        crossing_bytes(ideals, work.activation, work.successors),
    )


def places_of(line: DeviceChain, replicas: int) -> Places:
    devices = len(line.kinds)
    most = np.ones(devices, np.int64)
    room = np.zeros((devices, devices + 1))
    bandwidth = np.full((devices, devices + 1), np.inf)
    for d in range(devices - 1, -1, -1):
        if d + 1 < devices and line.kinds[d] == line.kinds[d + 1]:
            most[d] = min(replicas, most[d + 1] + 1)
        for r in range(1, devices - d + 1):
            room[d, r] = min(line.capacity[d : d + r])
            bandwidth[d, r] = min(line.bandwidth[d : d + r - 1], default=np.inf)
    return Places(
        np.array(line.kinds),
        most,
        room,
        bandwidth,
        np.array([np.inf, *line.bandwidth]),
        np.array([0.0, *line.latency]),
    )


def least_sum(
    sums: Sums, places: Places, rules: Rules, cap: float
) -> CappedOptimum[list[Span]] | None:
    """Stages of at most the cap, each, with the least sum of their seconds and of what cuts take."""
    least, choice = _fill(sums, places, rules, cap)
    i, d, q = 0, 0, int(np.argmin(least[0, 0]))
    if not np.isfinite(least[0, 0, q]):
        return None
    spans = []
    while i < len(sums.members) - 1:
        j, r, recompute = (int(x) for x in choice[i, d, q])
        spans.append(Span(i, j, d, r, bool(recompute)))
        i, d, q = j, d + r, max(q - 1, 0)
    largest = max(seconds(sums, places, span) for span in spans)
    return CappedOptimum(largest, float(least[0, 0].min()), spans)


def seconds(sums: Sums, places: Places, span: Span) -> float:
    """A micro-batch's forward and backward on a stage."""
    i, j, d, r, recompute = span
    kind = places.kind[d]
    forward = sums.forward[kind, j] - sums.forward[kind, i]
    backward = sums.backward[kind, j] - sums.backward[kind, i]
    return float((forward + backward + (forward if recompute else 0.0)) / r)


def memory(sums: Sums, static: float, span: Span, alive: int) -> float:
    """Bytes on each device of a stage."""
    i, j, _, r, recompute = span
    held = static * (sums.parameters[j] - sums.parameters[i])
    kept = (sums.kept[j] - sums.kept[i]) / r
    return float(held + (alive * (sums.cut[i] / r) + kept if recompute else alive * kept))


@njit(cache=True)
def _fill(sums: Sums, places: Places, rules: Rules, cap: float) -> tuple[Array, Array]:
    """By (i, d, q): the least sum of what follows i from device d on in q stages, its (j, r, recompute).

    The link to device d is in it. Where alive micro-batches do not depend on q, there is only q = 0.
    """
    ideals, devices, depths = len(sums.members), len(places.kind), len(rules.alive)
    least = np.full((ideals, devices + 1, depths), np.inf)
    least[-1, :, 0] = 0.0
    choice = np.zeros((ideals, devices + 1, depths, 3), np.int32)
    for i in range(ideals - 2, -1, -1):
        first, last = _window(sums.work, i, devices, cap)
        for j in range(i + 1, ideals):
            if sums.work[j] - sums.work[i] > (devices + ROUNDING) * cap:
                continue
            inside = True
            for b in range(sums.members.shape[1]):
                inside = inside and not sums.members[i, b] & ~sums.members[j, b]
            if inside and first <= last:
                _try(sums, places, rules, cap, i, j, least, choice)
        for d in range(max(first, 1), last + 1):
            entry = transfer_seconds(
                places.entry_latency[d], places.entry_bandwidth[d], sums.cut[i]
            )
            for q in range(depths):
                least[i, d, q] += 2 * entry
    return least, choice


@njit(cache=True)
def _window(work: Array, i: int, devices: int, cap: float) -> tuple[int, int]:
    """The devices that can come first behind ideal i: enough for the work before, and after it."""
    if i == 0:
        return 0, 0
    if i == len(work) - 1:
        return 1, devices
    before = int(np.ceil(work[i] / cap - ROUNDING))
    after = int(np.ceil((work[-1] - work[i]) / cap - ROUNDING))
    return max(before, 1), devices - max(after, 1)


@njit(cache=True)
def _try(
    sums: Sums,
    places: Places,
    rules: Rules,
    cap: float,
    i: int,
    j: int,
    least: Array,
    choice: Array,
) -> None:
    """Improve what follows i by a stage from i to j, on all devices that it can have."""
    parameters = sums.parameters[j] - sums.parameters[i]
    held = rules.static * parameters
    fewer, devices = 1 if len(rules.alive) > 1 else 0, len(places.kind)
    first, last = _window(sums.work, i, devices, cap)
    fewest, most = _window(sums.work, j, devices, cap)
    for d in range(first, last + 1):
        kind = places.kind[d]
        forward = sums.forward[kind, j] - sums.forward[kind, i]
        backward = sums.backward[kind, j] - sums.backward[kind, i]
        for r in range(max(1, fewest - d), min(places.most[d], most - d) + 1):
            once = (forward + backward) / r
            if once > cap:
                continue
            again = (forward + backward + forward) / r
            kept = (sums.kept[j] - sums.kept[i]) / r
            given = sums.cut[i] / r
            reduced = ring_seconds(r, places.bandwidth[d, r], 0.0, parameters)
            behind = 0 if j == len(sums.work) - 1 else devices - d - r  # stages, at most
            for q in range(fewer, min(len(rules.alive), fewer + behind + 1)):
                rest = least[j, d + r, q - fewer] + reduced
                alive = rules.alive[q]
                if rules.may_keep and held + alive * kept <= places.room[d, r]:
                    total, recompute = once + rest, 0
                elif (
                    rules.may_recompute
                    and again <= cap
                    and held + alive * given + kept <= places.room[d, r]
                ):
                    total, recompute = again + rest, 1
                else:
                    continue
                if total < least[i, d, q]:
                    least[i, d, q] = total
                    choice[i, d, q] = (j, r, recompute)
