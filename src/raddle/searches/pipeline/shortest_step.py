"""Stages, replicas and recomputation for a pipeline that is flushed every step: the shortest that fits.

The step with m micro-batches is estimated as for GPipe (Huang et al., arXiv 1811.06965, section 2.3),
but with stages that differ:

    (m - 1) max_s T_s  +  sum_s (T_s + A_s)  +  sum of what the cuts take

T_s is one micro-batch's forward and backward, and one more forward where the stage recomputes, over its
r replicas; A_s = 2 (r - 1) / r parameters / bandwidth, once a step; a cut takes latency + bytes /
bandwidth, there and back. Stage s of P holds its parameters `static` times, and of each micro-batch that
is alive what its layers keep for the backward; or, where it recomputes, what it was given, and once what
the layers keep. A replica has its share of the samples. Alive are m micro-batches with GPipe, and min(m,
P - s) with 1F1B (PipeDream-Flush, arXiv 2006.09503). Stages take devices in a given order, those of a
stage of one kind; devices at the end may stay idle.

Exact over all convex cuts: with a cap on T_s the rest is a sum, and the least is found from the last
stage to the first over (ideal, device, stages to go); caps are chosen by branch and bound on the two
terms (`caps`). Where memory does not bind, stages to go need not be told apart: that is tried first.

Differs from the papers: GPipe takes its stages as given, and PipeDream's optimizer counts no flush, and
memory only if asked to. Where there are too many ideals, those of each size with the fewest bytes at the
cut are taken. If cuts behind most of the others alone would make a longer step than the one found, the
search is repeated with what is left, and exact; if not, `exact` is false.
"""

# i: an ideal, d: the first device of a stage, q: stages from one to the last

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from raddle.costs.links import transfer_seconds
from raddle.searches.pipeline.cap_search import CappedOptimum, least_total
from raddle.searches.pipeline.dynamic_program import (
    Places,
    Rules,
    Span,
    Sums,
    least_sum,
    memory,
    places_of,
    seconds,
    sums_of,
)
from raddle.searches.pipeline.ideals import Array, Ideals, ideals_of
from raddle.searches.pipeline.layers import DeviceChain, LayerCosts, topological_order

Schedule = Literal["1f1b", "gpipe"]


@dataclass(frozen=True)
class Stage:
    layers: tuple[int, ...]  # in topological order
    devices: tuple[int, ...]  # its replicas
    recompute: bool
    seconds: float  # a micro-batch, forward and backward
    memory: float  # bytes on each of its devices


@dataclass(frozen=True)
class Pipeline:
    stages: tuple[Stage, ...]
    seconds: float  # the estimated step
    exact: bool  # no pipeline over convex cuts takes less
    ideals: int  # that were cut behind


@dataclass(frozen=True)
class Problem:
    """A line of devices, and what stages may do on it."""

    places: Places
    microbatches: int
    schedule: Schedule
    static: float
    recompute: tuple[bool, ...]

    def alive(self, q: int) -> int:
        """Micro-batches of which the q-th stage from the end keeps something at a time."""
        return self.microbatches if self.schedule == "gpipe" else min(self.microbatches, q)

    def rules(self, alive: Sequence[int]) -> Rules:
        keep, recompute = False in self.recompute, True in self.recompute
        return Rules(self.static, keep, recompute, np.array(alive))

    def best(self, sums: Sums) -> CappedOptimum[list[Span]] | None:
        """The stages with the shortest step."""
        devices = len(self.places.kind)
        depths = [self.alive(max(q, 1)) for q in range(devices + 1)]
        same = len(set(depths)) == 1

        def answer(cap: float) -> CappedOptimum[list[Span]] | None:
            # With as few micro-batches alive as any stage has, where that turns out to fit.
            found = least_sum(sums, self.places, self.rules([min(depths)]), cap)
            if same or not found or self.fits(sums, found.solution):
                return found
            return least_sum(sums, self.places, self.rules(depths), cap)

        slowest = (2 * sums.forward[:, -1] + sums.backward[:, -1]).max()
        low = max(float(sums.work[-1]) / devices, np.finfo(float).tiny)
        return least_total(
            answer,
            self.microbatches - 1,
            low=low * (1 - 1e-9),
            high=max(2 * float(slowest), low),
        )

    def fits(self, sums: Sums, spans: Sequence[Span]) -> bool:
        rooms = (self.places.room[span.d, span.r] for span in spans)
        return all(x <= room for x, room in zip(self.memories(sums, spans), rooms, strict=True))

    def memories(self, sums: Sums, spans: Sequence[Span]) -> list[float]:
        """By stage, bytes on each of its devices."""
        return [
            memory(sums, self.static, span, self.alive(len(spans) - s))
            for s, span in enumerate(spans)
        ]

    def step(self, answer: CappedOptimum[list[Span]]) -> float:
        return (self.microbatches - 1) * answer.largest + answer.sum


def stages_for(
    work: LayerCosts,
    line: DeviceChain,
    *,
    microbatches: int,
    schedule: Schedule = "1f1b",
    static: float = 2.0,
    recompute: Sequence[bool] = (False, True),
    replicas: int | None = None,
    limit: int = 1_000_000,
    operations: float = 5e8,
) -> Pipeline | None:
    """The pipeline with the shortest step that fits, or None where none was found that fits.

    `static`: bytes held for a byte of parameters (2: weights and gradients). `recompute`: what a stage
    may do. `replicas`: at most so many in a stage. `limit`: of ideals that are made. `operations`: of the
    innermost loop for one cap; they say how many of the ideals are looked at.
    """
    if microbatches < 1:
        raise ValueError(f"a step needs at least one micro-batch, got {microbatches}.")
    order = topological_order(work.successors)
    ideals = ideals_of(work.successors, max_ideals=limit)
    sums = sums_of(ideals, work)
    places = places_of(line, replicas or len(line.kinds))
    problem = Problem(places, microbatches, schedule, static, tuple(recompute))
    affordable = _affordable(problem, operations)
    chosen = np.arange(len(ideals))
    if len(ideals) > affordable:
        chosen = _narrow(ideals, sums.cut, order, affordable)
    some = sums.only(chosen)
    found = problem.best(some)
    worth = _worth_cutting(problem, sums, found)
    exact = ideals.complete and (len(chosen) == len(ideals) or len(worth) <= affordable)
    if exact and len(chosen) < len(ideals):
        chosen, some = worth, sums.only(worth)
        found = problem.best(some)
    if not found:
        return None
    rank = {v: x for x, v in enumerate(order)}
    stages = [
        Stage(
            layers=tuple(
                sorted(ideals.layers_between(*chosen[[span.i, span.j]]), key=rank.__getitem__)
            ),
            devices=tuple(range(span.d, span.d + span.r)),
            recompute=span.recompute,
            seconds=seconds(some, places, span),
            memory=held,
        )
        for span, held in zip(found.solution, problem.memories(some, found.solution), strict=True)
    ]
    return Pipeline(tuple(stages), problem.step(found), exact, len(chosen))


def _affordable(problem: Problem, operations: float) -> int:
    """How many ideals can be looked at in pairs, for all devices, replicas and stages to go."""
    devices, most = len(problem.places.kind), problem.places.most
    depths = 1 if problem.schedule == "gpipe" else (devices + 2) / 3
    of_a_pair = 64 + most.sum() * depths  # the first is for finding out that it is a pair
    return int((2 * operations / of_a_pair) ** 0.5)


def _narrow(ideals: Ideals, cut: Array, order: Sequence[int], count: int) -> Array:
    """About so many ideals: of each size those with the least at the cut, and prefixes of an order."""
    each = max(1, count // len(ideals.level_start) - 1)
    prefix = np.zeros_like(ideals.members[0])
    chosen: list[int] = []
    for s in range(len(ideals.level_start) - 1):
        of_size = np.arange(ideals.level_start[s], ideals.level_start[s + 1])
        chosen.extend(of_size[np.argsort(cut[of_size], kind="stable")[:each]])
        chosen.extend(of_size[np.all(ideals.members[of_size] == prefix, axis=1)])
        if s < len(order):
            prefix[order[s] // 64] |= np.uint64(1 << (order[s] % 64))
    return np.unique(chosen)


def _worth_cutting(problem: Problem, sums: Sums, found: CappedOptimum[list[Span]] | None) -> Array:
    """The ideals that a shorter step than the one found may be cut behind."""
    if not found:
        return np.arange(len(sums.cut))
    places, devices = problem.places, len(problem.places.kind)
    least = problem.microbatches * sums.work[-1] / devices
    entry = transfer_seconds(
        places.entry_latency[1:, None], places.entry_bandwidth[1:, None], sums.cut
    )
    worth = least + 2 * entry.min(axis=0, initial=np.inf) <= problem.step(found) * (1 + 1e-9)
    worth[[0, -1]] = True
    return np.flatnonzero(worth)
