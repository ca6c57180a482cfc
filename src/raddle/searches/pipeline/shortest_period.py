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

EQUAL = 1e-12  # periods that differ by less than this share of them are equal
Counting = Literal["pipedream", "crossing"]


@dataclass(frozen=True)
class Stage:
    layers: tuple[int, ...]  # in topological order
    replicas: int
    seconds: float  # a micro-batch, with its share of synchronising the replicas


@dataclass(frozen=True)
class Partition:
    """Stages from the first to the last, and how long after one micro-batch the next is done."""

    stages: tuple[Stage, ...]
    period: float  # seconds
    exact: bool  # over all convex cuts; otherwise over those of one topological order
    ideals: int  # that were looked at


class Span(NamedTuple):
    """A stage by the ideals before and behind it."""

    i: int
    j: int
    replicas: int


class Costs(NamedTuple):
    """By ideal, what stages cost; see `phi` and `Problem.seconds`."""

    work: Array  # seconds
    parameters: Array  # bytes
    sent: Array  # seconds of sending what crosses the cut, for one device
    alpha: Array  # by replicas, seconds of synchronising a byte of parameters
    first_sends: bool  # whether the first stage has to send within the period, too


def partition(
    layers: Layers,
    devices: int,
    *,
    bandwidth: float,
    counting: Counting = "pipedream",
    limit: int = 1_000_000,
) -> Partition:
    """The shortest period, with as few devices as have it. The bandwidth is in bytes a second.

    `counting`: a cut's bytes as PipeDream's optimizer has them, or of what really crosses it, with the
    first stage's sends (see `cuts`). Beyond `limit` ideals only one topological order is cut.
    """
    if devices < 1 or not bandwidth > 0:
        raise ValueError(
            f"{devices} devices, {bandwidth} bytes a second: give one device or more, and a bandwidth."
        )
    order = topological_order(layers.successors)
    along = Problem(prefix_ideals(order), layers, devices, bandwidth, counting)
    period = along.shorten(along.alone())
    ideals = ideals_of(layers.successors, max_ideals=limit)
    problem = along
    if ideals.complete:
        problem = Problem(ideals, layers, devices, bandwidth, counting)
        period = problem.shorten(period)
    spans = problem.spans(period * (1 + EQUAL))
    rank = {v: x for x, v in enumerate(order)}
    return Partition(
        stages=tuple(
            Stage(
                tuple(sorted(problem.ideals.layers_between(span.i, span.j), key=rank.__getitem__)),
                span.replicas,
                problem.seconds(span),
            )
            for span in spans
        ),
        period=problem.period(spans),
        exact=ideals.complete,
        ideals=len(problem.ideals),
    )


class Problem:
    """The ideals of a network, and what stages between them cost on some devices."""

    def __init__(
        self, ideals: Ideals, layers: Layers, devices: int, bandwidth: float, counting: Counting
    ) -> None:
        count = antichain_bytes if counting == "pipedream" else crossing_bytes
        sent = 2 * count(ideals, layers.activation, layers.successors) / bandwidth
        sent[-1] = 0.0  # the network's own output goes nowhere
        r = np.arange(1, devices + 1)
        self.ideals, self.devices = ideals, devices
        self.costs = Costs(
            work=ideals.sums(np.add(layers.forward, layers.backward)),
            parameters=ideals.sums(layers.parameters),
            sent=sent,
            alpha=np.concatenate([[0.0], 4 * (r - 1) / (r * bandwidth)]),
            first_sends=counting != "pipedream",
        )

    def alone(self) -> float:
        """The shortest period of one stage."""
        whole = len(self.ideals) - 1
        return min(self.seconds(Span(0, whole, r)) for r in range(1, self.devices + 1))

    def seconds(self, span: Span) -> float:
        """What a stage takes for a micro-batch."""
        costs, (i, j, r) = self.costs, span
        phi = costs.work + costs.alpha[r] * costs.parameters
        return float(phi[j] - phi[i]) / r

    def period(self, spans: list[Span]) -> float:
        """The longest of what stages take and of what each side of a cut takes to send."""
        seconds = [self.seconds(span) for span in spans]
        for before, behind in pairwise(spans):
            sent = float(self.costs.sent[behind.i])
            seconds.append(sent / behind.replicas)
            if before.i or self.costs.first_sends:
                seconds.append(sent / before.replicas)
        return max(seconds)

    def shorten(self, period: float) -> float:
        """The shortest period of all, given one that is possible and perhaps not far from it.

        Is there a shorter one? If so, by a thousandth, four thousandths and so on, until there is not.
        From then on a limit half way and one just below the period take turns: the latter ends it.
        """
        least = float(self.costs.work[-1]) / self.devices
        share, growing = EQUAL, True
        while least < period * (1 - EQUAL):
            limit = period * (1 - share)
            spans = self.spans(limit)
            if spans:
                period = min(limit, self.period(spans))
            else:
                least = limit
            half = (1 - least / period) / 2
            if growing and spans:
                share = min(max(1e-3, 4 * share), half)
            else:
                share = half if growing or share == EQUAL else EQUAL
                growing = False
        return period

    def spans(self, limit: float) -> list[Span]:
        """Stages that keep a limit of the period, with as few devices as can be; none if none do."""
        limit = max(limit, np.finfo(float).tiny)
        needs = _needs(
            self.ideals.covered,
            self.ideals.covered_start,
            self.ideals.level_start,
            self.costs,
            self.devices,
            limit,
        )
        j, result = len(needs) - 1, list[Span]()
        while j and needs[j] <= self.devices:
            result.append(self._last_span(needs, j, limit))
            j = result[-1].i
        return result[::-1]

    def _last_span(self, needs: Array, j: int, limit: float) -> Span:
        """The stage that ends with j when as few devices as can be have j behind them.

        With the fewest replicas, and then the least in it; all of j if there is no stage before it.
        """
        costs = self.costs
        inside = self.ideals.subsets_of(j, np.flatnonzero(needs[:j] < needs[j]))
        for r in range(1, needs[j]):
            phi = costs.work + costs.alpha[r] * costs.parameters
            fits = inside[
                (needs[inside] <= needs[j] - r)
                & (phi[inside] >= phi[j] - r * limit)
                & (np.maximum(costs.sent[inside], costs.sent[j]) <= r * limit)
            ]
            if len(fits):
                return Span(int(fits[np.argmax(phi[fits])]), j, r)
        return Span(0, j, int(needs[j]))


@njit(cache=True)
def _needs(
    below: Array, below_start: Array, level: Array, costs: Costs, devices: int, limit: float
) -> Array:
    """By ideal, the fewest devices that can have it behind them within the limit; else one too many.

    By size of ideals, `best[j, (k, r)]` is the largest phi_r of the ideals in j that k devices can have
    behind them and that r devices can receive from. Pairs (k, r) are in order of t = k + r, so that those
    which are too few for the work in j are in front.
    """
    widest = 0
    for s in range(len(level) - 1):
        widest = max(widest, level[s + 1] - level[s])
    entries = devices * (devices - 1) // 2
    smaller = np.full((widest, entries), -np.inf)
    best = np.full((widest, entries), -np.inf)
    needs = np.full(level[-1], devices + 1, np.int64)
    needs[0] = 0
    least = np.empty(devices)
    total = costs.work[-1]
    for s in range(1, len(level) - 1):
        smaller, best = best, smaller
        for j in range(level[s], level[s + 1]):
            work, row = costs.work[j], best[j - level[s]]
            fewest = max(2, int(np.ceil(work / limit - 1e-9)))
            begin = (fewest - 1) * (fewest - 2) // 2
            useful = row[begin:]
            useful[:] = smaller[below[below_start[j]] - level[s - 1], begin:]
            for x in range(below_start[j] + 1, below_start[j + 1]):
                other = smaller[below[x] - level[s - 1], begin:]
                for e in range(len(useful)):
                    useful[e] = other[e] if other[e] > useful[e] else useful[e]
            needs[j] = _need(row, fewest, j, costs, devices, limit, least)
            # Not worth handing on where the devices that are left cannot do the work that is left.
            if needs[j] + np.ceil((total - work) / limit - 1e-9) <= devices:
                _hand_on(row, needs[j], j, costs, devices, limit)
    return needs


@njit(cache=True)
def _need(
    row: Array, fewest: int, j: int, costs: Costs, devices: int, limit: float, least: Array
) -> int:
    """The fewest devices for ideal j; `least` is room for what phi_r must be to start a stage to j."""
    result, receivers = devices + 1, devices + 1
    for r in range(devices, 0, -1):
        least[r - 1] = costs.work[j] + costs.alpha[r] * costs.parameters[j] - r * limit
        if r * limit >= costs.sent[j]:
            receivers = r
        if least[r - 1] <= 0 and (receivers == r or not costs.first_sends):
            result = r
    for t in range(fewest, result):
        entries, found = row[(t - 1) * (t - 2) // 2 :], False
        for r in range(receivers, t):
            found |= entries[r - 1] >= least[r - 1]
        if found:
            return t
    return result


@njit(cache=True)
def _hand_on(row: Array, need: int, j: int, costs: Costs, devices: int, limit: float) -> None:
    for r in range(1, devices - need + 1):
        if r * limit < costs.sent[j]:
            continue
        phi = costs.work[j] + costs.alpha[r] * costs.parameters[j]
        for t in range(need + r, devices + 1):
            e = (t - 1) * (t - 2) // 2 + r - 1
            row[e] = max(row[e], phi)
