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
    IdealSums,
    MemoryRules,
    PlacedSegment,
    Placements,
    build_placements,
    least_sum,
    stage_memory,
    stage_seconds,
    sums_of,
)
from raddle.searches.pipeline.ideals import Array, Ideals, ideals_of
from raddle.searches.pipeline.layers import DeviceChain, LayerCosts, topological_order

FlushedSchedule = Literal["1f1b", "gpipe"]


@dataclass(frozen=True)
class StepStage:
    layers: tuple[int, ...]  # in topological order
    devices: tuple[int, ...]  # its replicas
    recompute: bool
    seconds: float  # a micro-batch, forward and backward
    memory: float  # bytes on each of its devices


@dataclass(frozen=True)
class StepPartition:
    stages: tuple[StepStage, ...]
    seconds: float  # the estimated step
    exact: bool  # no pipeline over convex cuts takes less
    ideals: int  # that were cut behind


@dataclass(frozen=True)
class StepProblem:
    """A line of devices, and what stages may do on it."""

    placements: Placements
    microbatches: int
    schedule: FlushedSchedule
    state_factor: float
    recompute: tuple[bool, ...]

    def alive(self, q: int) -> int:
        """Micro-batches of which the q-th stage from the end keeps something at a time."""
        return self.microbatches if self.schedule == "gpipe" else min(self.microbatches, q)

    def memory_rules(self, alive: Sequence[int]) -> MemoryRules:
        may_save, may_recompute = False in self.recompute, True in self.recompute
        return MemoryRules(self.state_factor, may_save, may_recompute, np.array(alive))

    def shortest(self, sums: IdealSums) -> CappedOptimum[list[PlacedSegment]] | None:
        """The stages with the shortest step."""
        devices = len(self.placements.kind)
        depths = [self.alive(max(q, 1)) for q in range(devices + 1)]
        same_depth = len(set(depths)) == 1

        def solve(cap: float) -> CappedOptimum[list[PlacedSegment]] | None:
            # With as few micro-batches alive as any stage has, where that turns out to fit.
            optimum = least_sum(sums, self.placements, self.memory_rules([min(depths)]), cap)
            if same_depth or not optimum or self.fits(sums, optimum.solution):
                return optimum
            return least_sum(sums, self.placements, self.memory_rules(depths), cap)

        slowest = (2 * sums.forward[:, -1] + sums.backward[:, -1]).max()
        low = max(float(sums.work[-1]) / devices, np.finfo(float).tiny)
        return least_total(
            solve,
            self.microbatches - 1,
            low=low * (1 - 1e-9),
            high=max(2 * float(slowest), low),
        )

    def fits(self, sums: IdealSums, segments: Sequence[PlacedSegment]) -> bool:
        capacities = (self.placements.capacity[segment.d, segment.r] for segment in segments)
        return all(
            x <= capacity
            for x, capacity in zip(self.stage_memories(sums, segments), capacities, strict=True)
        )

    def stage_memories(self, sums: IdealSums, segments: Sequence[PlacedSegment]) -> list[float]:
        """By stage, bytes on each of its devices."""
        return [
            stage_memory(sums, self.state_factor, segment, self.alive(len(segments) - s))
            for s, segment in enumerate(segments)
        ]

    def step_seconds(self, optimum: CappedOptimum[list[PlacedSegment]]) -> float:
        return (self.microbatches - 1) * optimum.largest + optimum.sum


def partition_for_step(
    costs: LayerCosts,
    device_chain: DeviceChain,
    *,
    microbatches: int,
    schedule: FlushedSchedule = "1f1b",
    state_factor: float = 2.0,
    recompute: Sequence[bool] = (False, True),
    max_replicas: int | None = None,
    max_ideals: int = 1_000_000,
    max_operations: float = 5e8,
) -> StepPartition | None:
    """The pipeline with the shortest step that fits, or None where none was found that fits.

    `static`: bytes held for a byte of parameters (2: weights and gradients). `recompute`: what a stage
    may do. `replicas`: at most so many in a stage. `limit`: of ideals that are made. `operations`: of the
    innermost loop for one cap; they say how many of the ideals are looked at.
    """
    if microbatches < 1:
        raise ValueError(f"a step needs at least one micro-batch, got {microbatches}.")
    order = topological_order(costs.successors)
    ideals = ideals_of(costs.successors, max_ideals=max_ideals)
    sums = sums_of(ideals, costs)
    placements = build_placements(device_chain, max_replicas or len(device_chain.kinds))
    problem = StepProblem(placements, microbatches, schedule, state_factor, tuple(recompute))
    max_chosen = _affordable_ideals(problem, max_operations)
    chosen = np.arange(len(ideals))
    if len(ideals) > max_chosen:
        chosen = _select_ideals(ideals, sums.cut_bytes, order, max_chosen)
    chosen_sums = sums.select(chosen)
    optimum = problem.shortest(chosen_sums)
    worth_cutting = _worth_cutting(problem, sums, optimum)
    exact = ideals.complete and (len(chosen) == len(ideals) or len(worth_cutting) <= max_chosen)
    if exact and len(chosen) < len(ideals):
        chosen, chosen_sums = worth_cutting, sums.select(worth_cutting)
        optimum = problem.shortest(chosen_sums)
    if not optimum:
        return None
    position = {v: x for x, v in enumerate(order)}
    stages = [
        StepStage(
            layers=tuple(
                sorted(
                    ideals.layers_between(*chosen[[segment.i, segment.j]]), key=position.__getitem__
                )
            ),
            devices=tuple(range(segment.d, segment.d + segment.r)),
            recompute=segment.recompute,
            seconds=stage_seconds(chosen_sums, placements, segment),
            memory=memory,
        )
        for segment, memory in zip(
            optimum.solution, problem.stage_memories(chosen_sums, optimum.solution), strict=True
        )
    ]
    return StepPartition(tuple(stages), problem.step_seconds(optimum), exact, len(chosen))


def _affordable_ideals(problem: StepProblem, max_operations: float) -> int:
    """How many ideals can be looked at in pairs, for all devices, replicas and stages to go."""
    devices, max_replicas = len(problem.placements.kind), problem.placements.max_replicas
    depths = 1 if problem.schedule == "gpipe" else (devices + 2) / 3
    per_pair = 64 + max_replicas.sum() * depths  # the first is for finding out that it is a pair
    return int((2 * max_operations / per_pair) ** 0.5)


def _select_ideals(ideals: Ideals, cut_bytes: Array, order: Sequence[int], count: int) -> Array:
    """About so many ideals: of each size those with the least at the cut, and prefixes of an order."""
    per_size = max(1, count // len(ideals.level_start) - 1)
    prefix = np.zeros_like(ideals.members[0])
    chosen: list[int] = []
    for s in range(len(ideals.level_start) - 1):
        of_size = np.arange(ideals.level_start[s], ideals.level_start[s + 1])
        chosen.extend(of_size[np.argsort(cut_bytes[of_size], kind="stable")[:per_size]])
        chosen.extend(of_size[np.all(ideals.members[of_size] == prefix, axis=1)])
        if s < len(order):
            prefix[order[s] // 64] |= np.uint64(1 << (order[s] % 64))
    return np.unique(chosen)


def _worth_cutting(
    problem: StepProblem, sums: IdealSums, optimum: CappedOptimum[list[PlacedSegment]] | None
) -> Array:
    """The ideals that a shorter step than the one found may be cut behind."""
    if not optimum:
        return np.arange(len(sums.cut_bytes))
    placements, devices = problem.placements, len(problem.placements.kind)
    least_seconds = problem.microbatches * sums.work[-1] / devices
    transfer = transfer_seconds(
        placements.entry_latency[1:, None], placements.entry_bandwidth[1:, None], sums.cut_bytes
    )
    is_worth = least_seconds + 2 * transfer.min(axis=0, initial=np.inf) <= problem.step_seconds(
        optimum
    ) * (1 + 1e-9)
    is_worth[[0, -1]] = True
    return np.flatnonzero(is_worth)
