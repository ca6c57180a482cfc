"""Stages and their replicas for a pipeline that never drains: the shortest period, exactly.

PipeDream (Narayanan et al., SOSP 2019), section 3.1, in the counting of its public optimizer. A stage of
w seconds (forward and backward) and p bytes of parameters on r devices takes

    (w + 4 (r - 1) p / (r bandwidth)) / r                       seconds a micro-batch,

and a cut with a bytes of activations 2 a / (r bandwidth), with r of the stage behind it and, unless that
is the first, of the stage before it. The period is the largest of all of these.

Differs from the paper: limits T of the period are tried, instead of filling a table over pairs of
ideals. With phi_r = w + 4 (r - 1) p / (r bandwidth) summed over ideals, a stage from I to J on r devices
keeps the limit if phi_r(J) - phi_r(I) <= r T, whatever else is in I. So of all the ideals in J that k
devices can have behind them only the largest phi_r counts, and that is handed on from the ideals that J
covers. A limit takes O(devices^2) for each edge of the lattice, the table O(devices^2) for each pair of
ideals. The period found is the next limit, until nothing shorter is possible; the ideals along one
topological order are tried first, so that the lattice is asked for few limits. Devices may stay idle, so
more of them are never worse.

Periods are compared in float64, and those within 1e-12 of each other count as equal.
"""

# i, j: ideals, k: devices behind an ideal, r: replicas of a stage, t = k + r

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from numba import njit

from raddle.searches.pipeline.cuts import antichain_bytes, crossing_bytes
from raddle.searches.pipeline.ideals import Array, Ideals, ideals_of, prefix_ideals
from raddle.searches.pipeline.layers import Layers, topological_order

RELATIVE_TOLERANCE = 1e-12  # periods that differ by less than this share of them are equal
Counting = Literal["pipedream", "crossing"]


@dataclass(frozen=True)
class PeriodStage:
    layers: tuple[int, ...]  # in topological order
    replicas: int
    seconds: float  # a micro-batch, with its share of synchronising the replicas


@dataclass(frozen=True)
class PeriodPartition:
    """Stages from the first to the last, and how long after one micro-batch the next is done."""

    stages: tuple[PeriodStage, ...]
    period: float  # seconds
    exact: bool  # over all convex cuts; otherwise over those of one topological order
    ideals: int  # that were looked at


class Segment(NamedTuple):
    """A stage by the ideals before and behind it."""

    i: int
    j: int
    replicas: int


class IdealCosts(NamedTuple):
    """By ideal, what stages cost; see `phi` and `Problem.seconds`."""

    work: Array  # seconds
    parameters: Array  # bytes
    send_seconds: Array  # seconds of sending what crosses the cut, for one device
    alpha: Array  # by replicas, seconds of synchronising a byte of parameters
    first_sends: bool  # whether the first stage has to send within the period, too


def partition_for_period(
    layers: Layers,
    devices: int,
    *,
    bandwidth: float,
    counting: Counting = "pipedream",
    max_ideals: int = 1_000_000,
) -> PeriodPartition:
    """The shortest period, with as few devices as have it. The bandwidth is in bytes a second.

    `counting`: a cut's bytes as PipeDream's optimizer has them, or of what really crosses it, with the
    first stage's sends (see `cuts`). Beyond `limit` ideals only one topological order is cut.
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
    """The ideals of a network, and what stages between them cost on some devices."""

    def __init__(
        self, ideals: Ideals, layers: Layers, devices: int, bandwidth: float, counting: Counting
    ) -> None:
        count_bytes = antichain_bytes if counting == "pipedream" else crossing_bytes
        send_seconds = 2 * count_bytes(ideals, layers.activation, layers.successors) / bandwidth
        send_seconds[-1] = 0.0  # the network's own output goes nowhere
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
        """The shortest period of one stage."""
        whole = len(self.ideals) - 1
        return min(self.stage_seconds(Segment(0, whole, r)) for r in range(1, self.devices + 1))

    def stage_seconds(self, segment: Segment) -> float:
        """What a stage takes for a micro-batch."""
        costs, (i, j, r) = self.costs, segment
        phi = costs.work + costs.alpha[r] * costs.parameters
        return float(phi[j] - phi[i]) / r

    def period(self, segments: list[Segment]) -> float:
        """The longest of what stages take and of what each side of a cut takes to send."""
        seconds = [self.stage_seconds(segment) for segment in segments]
        for before, after in pairwise(segments):
            send_seconds = float(self.costs.send_seconds[after.i])
            seconds.append(send_seconds / after.replicas)
            if before.i or self.costs.first_sends:
                seconds.append(send_seconds / before.replicas)
        return max(seconds)

    def shorten(self, period: float) -> float:
        """The shortest period of all, given one that is possible and perhaps not far from it.

        Is there a shorter one? If so, by a thousandth, four thousandths and so on, until there is not.
        From then on a limit half way and one just below the period take turns: the latter ends it.
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
        """Stages that keep a limit of the period, with as few devices as can be; none if none do."""
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
        """The stage that ends with j when as few devices as can be have j behind them.

        With the fewest replicas, and then the least in it; all of j if there is no stage before it.
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
    """By ideal, the fewest devices that can have it behind them within the limit; else one too many.

    By size of ideals, `best[j, (k, r)]` is the largest phi_r of the ideals in j that k devices can have
    behind them and that r devices can receive from. Pairs (k, r) are in order of t = k + r, so that those
    which are too few for the work in j are in front.
    """
    widest = 0
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
            useful = row[begin:]
            useful[:] = smaller[covered[covered_start[j]] - level_start[s - 1], begin:]
            for x in range(covered_start[j] + 1, covered_start[j + 1]):
                other = smaller[covered[x] - level_start[s - 1], begin:]
                for e in range(len(useful)):
                    useful[e] = other[e] if other[e] > useful[e] else useful[e]
            needed[j] = _fewest_devices(row, fewest, j, costs, devices, limit, least_phi)
            # Not worth handing on where the devices that are left cannot do the work that is left.
            if needed[j] + np.ceil((total - work) / limit - 1e-9) <= devices:
                _record_phi(row, needed[j], j, costs, devices, limit)
    return needed


@njit(cache=True)
def _fewest_devices(
    row: Array, fewest: int, j: int, costs: IdealCosts, devices: int, limit: float, least_phi: Array
) -> int:
    """The fewest devices for ideal j; `least` is room for what phi_r must be to start a stage to j."""
    result, receivers = devices + 1, devices + 1
    for r in range(devices, 0, -1):
        least_phi[r - 1] = costs.work[j] + costs.alpha[r] * costs.parameters[j] - r * limit
        if r * limit >= costs.send_seconds[j]:
            receivers = r
        if least_phi[r - 1] <= 0 and (receivers == r or not costs.first_sends):
            result = r
    for t in range(fewest, result):
        entries, possible = row[(t - 1) * (t - 2) // 2 :], False
        for r in range(receivers, t):
            possible |= entries[r - 1] >= least_phi[r - 1]
        if possible:
            return t
    return result


@njit(cache=True)
def _record_phi(
    row: Array, fewest: int, j: int, costs: IdealCosts, devices: int, limit: float
) -> None:
    for r in range(1, devices - fewest + 1):
        if r * limit < costs.send_seconds[j]:
            continue
        phi = costs.work[j] + costs.alpha[r] * costs.parameters[j]
        for t in range(fewest + r, devices + 1):
            e = (t - 1) * (t - 2) // 2 + r - 1
            row[e] = max(row[e], phi)
