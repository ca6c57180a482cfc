"""Partitions layers into stages for a pipeline without a flush: the shortest period (PipeDream).

The period is here the time from one finished micro-batch to the next in the steady state (elsewhere in
raddle: from one step to the next). The costs are those of PipeDream (Narayanan et al., SOSP 2019, section
3.1), as its public optimizer counts them. A stage with w seconds of work (forward and backward) and p bytes
of parameters on r devices takes, per micro-batch,

    (w + 4 (r - 1) p / (r bandwidth)) / r   seconds.

A cut that n bytes of activations cross takes 2 n / (r bandwidth) seconds in the stage before it and in the
stage after it, where r is the number of devices of this stage. PipeDream's optimizer does not count it in
the first stage (`first_sends` is False). The period is the largest of all these times.

Differs from the paper: it tests limits T for the period, and fills no table over pairs of ideals. An ideal
(ideals.py) is a set of layers that can run before a cut. Let phi_r(I) = w + 4 (r - 1) p / (r bandwidth) be
the sum over the layers of ideal I. A stage from I to J on r devices keeps the limit if
phi_r(J) - phi_r(I) <= r T. So, among the subsets I of J that k devices can run within the limit, only the
largest phi_r(I) matters. This maximum follows from the maxima of the ideals that J covers (subsets with one
layer less). A limit takes O(devices^2) operations for each pair of an ideal and one that it covers; the
table of the paper takes O(devices^2) for each pair of ideals.

A period that is found becomes the next limit, until no shorter one is possible. The prefixes of one
topological order are searched first, so that few limits are left for the search over all ideals. Devices
may stay idle, so more devices never make the period longer.

Periods are compared in float64; a relative difference below 1e-12 counts as equal.
"""

# i, j: ideals before and after a stage; k: devices that run ideal i; r: replicas of a stage; t = k + r
# s: a size (number of layers of an ideal); e: an entry, which stands for a pair (k, r)

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from numba import njit

from raddle.searches.pipeline.cuts import antichain_bytes, crossing_bytes
from raddle.searches.pipeline.ideals import Array, Ideals, ideals_of, prefix_ideals
from raddle.searches.pipeline.layers import Layers, topological_order

RELATIVE_TOLERANCE = 1e-12  # periods whose relative difference is smaller count as equal
Counting = Literal["pipedream", "crossing"]


@dataclass(frozen=True)
class PeriodStage:
    """A stage of a pipeline without a flush."""

    layers: tuple[int, ...]  # in topological order
    replicas: int
    seconds: float  # per micro-batch, with the synchronisation of the replicas


@dataclass(frozen=True)
class PeriodPartition:
    """The stages of a pipeline without a flush, from the first to the last."""

    stages: tuple[PeriodStage, ...]
    period: float  # seconds from one finished micro-batch to the next
    exact: bool  # optimal over all convex cuts; if False, over the cuts of one topological order
    ideals: int  # number of ideals that were considered for cuts


class Segment(NamedTuple):
    """A stage: a segment of the chain of ideals, the layers that ideal j has and ideal i has not."""

    i: int  # ideal before the stage
    j: int  # ideal after the stage
    replicas: int


class IdealCosts(NamedTuple):
    """Costs for each ideal; phi_r of all ideals is work + alpha[r] * parameters."""

    work: Array  # [ideal]: seconds of forward and backward of its layers on one device
    parameters: Array  # [ideal]: bytes
    send_seconds: Array  # [ideal]: seconds to send what crosses the cut after it, by one device
    # [r]: seconds to synchronise a byte of parameters between r replicas; [0] is unused.
    alpha: Array
    first_sends: bool  # whether the sends of the first stage count for the period


def partition_for_period(
    layers: Layers,
    devices: int,
    *,
    bandwidth: float,
    counting: Counting = "pipedream",
    max_ideals: int = 1_000_000,
) -> PeriodPartition:
    """Return the partition with the shortest period and, among these, one with the fewest devices.

    devices: how many there are; bandwidth: bytes per second.
    counting: "pipedream" counts bytes at a cut as PipeDream's optimizer does; "crossing" counts what really
    crosses the cut (see cuts.py), and the sends of the first stage as well.
    max_ideals: with more ideals, only the prefixes of one topological order are cut.
    """
    if devices < 1 or not bandwidth > 0:
        raise ValueError(
            f"{devices} devices, {bandwidth} bytes a second: give one device or more, and a bandwidth."
        )
    order = topological_order(layers.successors)
    one_order = PeriodProblem(prefix_ideals(order), layers, devices, bandwidth, counting)
    period = one_order.shorten(one_order.single_stage_period())
    ideals = ideals_of(layers.successors, max_ideals=max_ideals)
    problem = one_order
    if ideals.complete:
        problem = PeriodProblem(ideals, layers, devices, bandwidth, counting)
        period = problem.shorten(period)
    segments = problem.segments(period * (1 + RELATIVE_TOLERANCE))
    position = {v: x for x, v in enumerate(order)}
    return PeriodPartition(
        stages=tuple(
            PeriodStage(
                tuple(
                    sorted(
                        problem.ideals.layers_between(segment.i, segment.j),
                        key=position.__getitem__,
                    )
                ),
                segment.replicas,
                problem.stage_seconds(segment),
            )
            for segment in segments
        ),
        period=problem.period(segments),
        exact=ideals.complete,
        ideals=len(problem.ideals),
    )


class PeriodProblem:
    """The costs of all possible stages of a model on a number of equal devices."""

    def __init__(
        self, ideals: Ideals, layers: Layers, devices: int, bandwidth: float, counting: Counting
    ) -> None:
        count_bytes = antichain_bytes if counting == "pipedream" else crossing_bytes
        send_seconds = 2 * count_bytes(ideals, layers.activation, layers.successors) / bandwidth
        send_seconds[-1] = 0.0  # the output of the model is not sent
        r = np.arange(1, devices + 1)
        self.ideals, self.devices = ideals, devices
        self.costs = IdealCosts(
            work=ideals.sums(np.add(layers.forward, layers.backward)),
            parameters=ideals.sums(layers.parameters),
            send_seconds=send_seconds,
            alpha=np.concatenate([[0.0], 4 * (r - 1) / (r * bandwidth)]),
            first_sends=counting != "pipedream",
        )

    def single_stage_period(self) -> float:
        """Return the shortest period with one stage, on any number of devices."""
        whole = len(self.ideals) - 1
        return min(self.stage_seconds(Segment(0, whole, r)) for r in range(1, self.devices + 1))

    def stage_seconds(self, segment: Segment) -> float:
        """Return the seconds of a stage per micro-batch."""
        costs, (i, j, r) = self.costs, segment
        phi = costs.work + costs.alpha[r] * costs.parameters
        return float(phi[j] - phi[i]) / r

    def period(self, segments: list[Segment]) -> float:
        """Return the longest time of a stage or of a transfer, which counts on both sides of a cut."""
        seconds = [self.stage_seconds(segment) for segment in segments]
        for before, after in pairwise(segments):
            send_seconds = float(self.costs.send_seconds[after.i])
            seconds.append(send_seconds / after.replicas)
            if before.i or self.costs.first_sends:
                seconds.append(send_seconds / before.replicas)
        return max(seconds)

    def shorten(self, period: float) -> float:
        """Return the shortest possible period, starting from a possible one that may be close to it.

        First it tries limits that are shorter by a growing share: a thousandth, four thousandths and so on,
        until one is impossible. Then it alternates between the middle of the lower bound and the period,
        and a limit just below the period. If the latter is impossible, the period is optimal.
        """
        lower_bound = float(self.costs.work[-1]) / self.devices
        shortening, growing = RELATIVE_TOLERANCE, True
        while lower_bound < period * (1 - RELATIVE_TOLERANCE):
            limit = period * (1 - shortening)
            segments = self.segments(limit)
            if segments:
                period = min(limit, self.period(segments))
            else:
                lower_bound = limit
            half = (1 - lower_bound / period) / 2
            if growing and segments:
                shortening = min(max(1e-3, 4 * shortening), half)
            else:
                shortening = (
                    half if growing or shortening == RELATIVE_TOLERANCE else RELATIVE_TOLERANCE
                )
                growing = False
        return period

    def segments(self, limit: float) -> list[Segment]:
        """Return stages whose period is within the limit, with the fewest devices; [] if impossible."""
        limit = max(limit, np.finfo(float).tiny)
        needed = _devices_needed(
            self.ideals.covered,
            self.ideals.covered_start,
            self.ideals.level_start,
            self.costs,
            self.devices,
            limit,
        )
        j, result = len(needed) - 1, list[Segment]()
        while j and needed[j] <= self.devices:
            result.append(self._last_segment(needed, j, limit))
            j = result[-1].i
        return result[::-1]

    def _last_segment(self, needed: Array, j: int, limit: float) -> Segment:
        """Return the last stage of a pipeline that runs ideal j with the fewest devices.

        needed: result of `_devices_needed`. Among the possible stages, it takes one with the fewest
        replicas and then with the least phi. If no other stage can come before it, it has all layers of j.
        """
        costs = self.costs
        subsets = self.ideals.subsets_of(j, np.flatnonzero(needed[:j] < needed[j]))
        for r in range(1, needed[j]):
            phi = costs.work + costs.alpha[r] * costs.parameters
            fits = subsets[
                (needed[subsets] <= needed[j] - r)
                & (phi[subsets] >= phi[j] - r * limit)
                & (np.maximum(costs.send_seconds[subsets], costs.send_seconds[j]) <= r * limit)
            ]
            if len(fits):
                return Segment(int(fits[np.argmax(phi[fits])]), j, r)
        return Segment(0, j, int(needed[j]))


@njit(cache=True)
def _devices_needed(
    covered: Array,
    covered_start: Array,
    level_start: Array,
    costs: IdealCosts,
    devices: int,
    limit: float,
) -> Array:
    """Return, for each ideal, the fewest devices that can run it within the limit.

    The number is devices + 1 if all devices are too few. The first three arguments are fields of `Ideals`:
    ideal j covers the ideals covered[covered_start[j] : covered_start[j + 1]]; level_start[s] is the first
    ideal of size s. The function visits the ideals by size. best[j, e] is the largest phi_r of the subsets
    of ideal j that k devices can run, and whose cut bytes r devices can receive within the limit. Entry e
    stands for the pair (k, r): e = (t - 1) (t - 2) / 2 + r - 1 with t = k + r. As pairs are in the order of
    t, the pairs with too few devices for the work of j come first and are skipped. `smaller` is `best` of
    the previous size.
    """
    widest = 0  # the most ideals of one size
    for s in range(len(level_start) - 1):
        widest = max(widest, level_start[s + 1] - level_start[s])
    entries = devices * (devices - 1) // 2
    smaller = np.full((widest, entries), -np.inf)
    best = np.full((widest, entries), -np.inf)
    needed = np.full(level_start[-1], devices + 1, np.int64)
    needed[0] = 0
    least_phi = np.empty(devices)
    total = costs.work[-1]
    for s in range(1, len(level_start) - 1):
        smaller, best = best, smaller
        for j in range(level_start[s], level_start[s + 1]):
            work, row = costs.work[j], best[j - level_start[s]]
            fewest = max(2, int(np.ceil(work / limit - 1e-9)))
            begin = (fewest - 1) * (fewest - 2) // 2
            useful = row[begin:]  # the entries with enough devices for the work of j
            useful[:] = smaller[covered[covered_start[j]] - level_start[s - 1], begin:]
            for x in range(covered_start[j] + 1, covered_start[j + 1]):
                row_x = smaller[covered[x] - level_start[s - 1], begin:]
                for e in range(len(useful)):
                    useful[e] = row_x[e] if row_x[e] > useful[e] else useful[e]
            needed[j] = _fewest_devices(row, fewest, j, costs, devices, limit, least_phi)
            # Ideal j is of no use if the remaining devices cannot do the remaining work within the limit.
            if needed[j] + np.ceil((total - work) / limit - 1e-9) <= devices:
                _record_phi(row, needed[j], j, costs, devices, limit)
    return needed


@njit(cache=True)
def _fewest_devices(
    row: Array, fewest: int, j: int, costs: IdealCosts, devices: int, limit: float, least_phi: Array
) -> int:
    """Return the fewest devices that can run ideal j within the limit; devices + 1 if none.

    row: best[j] of `_devices_needed`; fewest: a lower bound from the work of j. least_phi is scratch space:
    entry r - 1 is the smallest phi_r of an ideal from which a stage to j with r replicas keeps the limit.
    """
    # fewest_senders: the fewest replicas that can send what crosses the cut after j within the limit.
    result, fewest_senders = devices + 1, devices + 1
    for r in range(devices, 0, -1):
        least_phi[r - 1] = costs.work[j] + costs.alpha[r] * costs.parameters[j] - r * limit
        if r * limit >= costs.send_seconds[j]:
            fewest_senders = r
        if least_phi[r - 1] <= 0 and (fewest_senders == r or not costs.first_sends):
            result = r
    for t in range(fewest, result):
        # entries[r - 1]: the entry of the pair (t - r, r).
        entries, possible = row[(t - 1) * (t - 2) // 2 :], False
        for r in range(fewest_senders, t):
            possible |= entries[r - 1] >= least_phi[r - 1]
        if possible:
            return t
    return result


@njit(cache=True)
def _record_phi(
    row: Array, fewest: int, j: int, costs: IdealCosts, devices: int, limit: float
) -> None:
    """Update best[j] (`row`) with phi_r of ideal j itself, which `fewest` devices can run."""
    for r in range(1, devices - fewest + 1):
        if r * limit < costs.send_seconds[j]:
            continue
        phi = costs.work[j] + costs.alpha[r] * costs.parameters[j]
        for t in range(fewest + r, devices + 1):
            e = (t - 1) * (t - 2) // 2 + r - 1
            row[e] = max(row[e], phi)
