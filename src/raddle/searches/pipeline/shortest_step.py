"""Partitions layers into stages for a pipeline with a flush: the shortest estimated step that fits.

It chooses the layers, the replicas and the recomputation of each stage. The time of a step with m
micro-batches is estimated as for GPipe (Huang et al., arXiv 1811.06965, section 2.3), but for unequal
stages:

    (m - 1) max_s T_s  +  sum_s (T_s + A_s)  +  sum of the transfers at all cuts

T_s: seconds of one micro-batch in stage s: forward, backward and, if the stage recomputes, another
forward, divided by its r replicas. A_s = 2 (r - 1) / r * parameter bytes / bandwidth: the all-reduce, once
per step. A transfer takes latency + bytes / bandwidth, once for activations and once for gradients.

Memory of stage s of P (s counts from 0): `state_factor` (for weight, gradient and optimizer state) times
the bytes of its parameters and, for each micro-batch in flight, the activations that its layers save for
the backward. If the stage recomputes, it holds only its inputs for each micro-batch in flight, and the
saved activations of one. Replicas share the samples of a micro-batch. In flight are m micro-batches with
GPipe, and min(m, P - s) with 1F1B (PipeDream-Flush, arXiv 2006.09503). Stages use the devices in the given
order, and the devices of a stage are of one kind. Devices at the end may stay idle.

The result is the exact optimum over all convex cuts, unless there are too many of them (see below). With a
cap on T_s, the objective is a sum, which dynamic_program.py minimises. cap_search.py chooses the caps. The
dynamic program is smaller if the number of micro-batches in flight is the same for all stages. So a first
attempt assumes the smallest number in flight for all stages; its result counts if it fits in memory with
the real numbers.

Differs from the papers: GPipe does not choose the stages. PipeDream's optimizer has no flush, and considers
memory only on request. Ideals (ideals.py) are the sets of layers that can run before a cut. If there are
too many of them, only those of each size with the fewest bytes at the cut are used. Then a bound tells
which ideals could give a shorter step. If these are few enough, the search is repeated with them and is
exact; if not, `exact` is False.
"""

# i: an ideal, d: the first device of a stage, q: number of stages from this one to the last, s: a stage
# A PlacedSegment is a stage: the layers between ideals i and j, on the r devices from d on. IdealSums has
# for each ideal the sums over its layers: `forward` and `backward` in seconds by kind of device; `work` in
# seconds, each layer on its fastest kind.

from __future__ import annotations

from collections.abc import Callable, Sequence
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
MAX_OPERATIONS = 5e8  # of the innermost loop of the dynamic program, for one cap


@dataclass(frozen=True)
class StepStage:
    """A stage of a pipeline with a flush."""

    layers: tuple[int, ...]  # in topological order
    devices: tuple[int, ...]  # one for each replica
    recompute: bool  # whether activations are recomputed in the backward
    seconds: float  # of one micro-batch: forward, backward and recomputation
    memory: float  # bytes on each of its devices


@dataclass(frozen=True)
class StepPartition:
    """The stages of a pipeline with a flush, from the first to the last."""

    stages: tuple[StepStage, ...]
    seconds: float  # estimated time of a step
    exact: bool  # whether no other partition has a shorter estimate
    ideals: int  # number of ideals that were considered for cuts


@dataclass(frozen=True)
class StepProblem:
    """The devices and the rules of a partition problem; the layers come as `sums` with each call."""

    placements: Placements
    microbatches: int
    schedule: FlushedSchedule
    state_factor: float  # bytes held for each byte of parameters
    recompute: tuple[bool, ...]  # the choices of a stage: False, True or both

    def alive(self, q: int) -> int:
        """Return the number of micro-batches in flight in the q-th stage from the end."""
        return self.microbatches if self.schedule == "gpipe" else min(self.microbatches, q)

    def memory_rules(self, alive: Sequence[int]) -> MemoryRules:
        """Return the rules with these numbers of micro-batches in flight, by q."""
        may_save, may_recompute = False in self.recompute, True in self.recompute
        return MemoryRules(self.state_factor, may_save, may_recompute, np.array(alive))

    def shortest(
        self, sums: IdealSums, expired: Callable[[], bool]
    ) -> CappedOptimum[list[PlacedSegment]] | None:
        """Return the stages with the shortest step, or None if none fit in memory.

        expired: whether the time of the search is used up; the best stages so far are then returned.
        """
        devices = len(self.placements.kind)
        # For each q, the micro-batches in flight; q = 0 is not used.
        in_flight = [self.alive(max(q, 1)) for q in range(devices + 1)]
        same_in_flight = len(set(in_flight)) == 1

        def solve(cap: float) -> CappedOptimum[list[PlacedSegment]] | None:
            """Return the stages with the smallest sum, none of which takes more than `cap` seconds."""
            # First assume the smallest number in flight for all stages. If the stages that this gives fit
            # with their real numbers, they are optimal.
            optimum = least_sum(sums, self.placements, self.memory_rules([min(in_flight)]), cap)
            if same_in_flight or not optimum or self.fits(sums, optimum.solution):
                return optimum
            return least_sum(sums, self.placements, self.memory_rules(in_flight), cap)

        # All layers on the slowest kind of device, with recomputation.
        slowest = (2 * sums.forward[:, -1] + sums.backward[:, -1]).max()
        low = max(float(sums.work[-1]) / devices, np.finfo(float).tiny)
        return least_total(
            solve,
            self.microbatches - 1,
            low=low * (1 - 1e-9),
            high=max(2 * float(slowest), low),
            expired=expired,
        )

    def fits(self, sums: IdealSums, segments: Sequence[PlacedSegment]) -> bool:
        """Return whether every stage fits in the memory of its devices."""
        capacities = (self.placements.capacity[segment.d, segment.r] for segment in segments)
        return all(
            x <= capacity
            for x, capacity in zip(self.stage_memories(sums, segments), capacities, strict=True)
        )

    def stage_memories(self, sums: IdealSums, segments: Sequence[PlacedSegment]) -> list[float]:
        """Return, for each stage, the bytes on each of its devices."""
        return [
            stage_memory(sums, self.state_factor, segment, self.alive(len(segments) - s))
            for s, segment in enumerate(segments)
        ]

    def step_seconds(self, optimum: CappedOptimum[list[PlacedSegment]]) -> float:
        """Return the estimated time of a step."""
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
    max_operations: float = MAX_OPERATIONS,
    expired: Callable[[], bool] = lambda: False,
) -> StepPartition | None:
    """Return the partition with the shortest estimated step that fits in memory, or None if none fits.

    state_factor: bytes held for each byte of parameters (2: weight and gradient).
    recompute: the choices of a stage: (False,) never, (True,) always, (False, True) either.
    max_replicas: the most devices of a stage; None: no limit.
    max_ideals: with more ideals, only the prefixes of one topological order are cut.
    max_operations: of the innermost loop for one cap; limits how many ideals are considered.
    expired: whether the time of the search is used up; the best partition so far is then returned, which is
    not exact.
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
    optimum = problem.shortest(chosen_sums, expired)
    worth_cutting = _worth_cutting(problem, sums, optimum)
    exact = ideals.complete and (len(chosen) == len(ideals) or len(worth_cutting) <= max_chosen)
    exact = exact and not expired()
    if exact and len(chosen) < len(ideals):
        chosen, chosen_sums = worth_cutting, sums.select(worth_cutting)
        optimum = problem.shortest(chosen_sums, expired)
        exact = not expired()
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
    """Return how many ideals the dynamic program can consider within `max_operations`.

    It visits every pair of ideals, with all devices, replicas and numbers of remaining stages.
    """
    devices, max_replicas = len(problem.placements.kind), problem.placements.max_replicas
    # Values of q that are tried, on average over the first device and the number of replicas.
    q_count = 1 if problem.schedule == "gpipe" else (devices + 2) / 3
    # 64: the operations to test whether one ideal is a subset of the other.
    per_pair = 64 + max_replicas.sum() * q_count
    return int((2 * max_operations / per_pair) ** 0.5)


def _select_ideals(ideals: Ideals, cut_bytes: Array, order: Sequence[int], count: int) -> Array:
    """Return about `count` ideals: of each size those with the fewest bytes at the cut.

    The prefixes of the topological order `order` are always among them.
    """
    per_size = max(1, count // len(ideals.level_start) - 1)
    prefix = np.zeros_like(ideals.members[0])
    chosen: list[int] = []
    for s in range(len(ideals.level_start) - 1):  # s: number of layers
        of_size = np.arange(ideals.level_start[s], ideals.level_start[s + 1])
        chosen.extend(of_size[np.argsort(cut_bytes[of_size], kind="stable")[:per_size]])
        chosen.extend(of_size[np.all(ideals.members[of_size] == prefix, axis=1)])
        if s < len(order):
            prefix[order[s] // 64] |= np.uint64(1 << (order[s] % 64))
    return np.unique(chosen)


def _worth_cutting(
    problem: StepProblem, sums: IdealSums, optimum: CappedOptimum[list[PlacedSegment]] | None
) -> Array:
    """Return the ideals that may be part of a step that is shorter than `optimum`.

    A cut after an ideal adds its transfer to the time. If this and the evenly divided work already take
    longer than the optimum, the ideal is left out.
    """
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
    is_worth[[0, -1]] = True  # the empty ideal and the whole graph
    return np.flatnonzero(is_worth)
