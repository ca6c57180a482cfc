"""Finds the variants of a program, and gives the order of its actions.

A variant is a micro-batch size together with the workers that run the stages. Most programs have one. More
arise if micro-batches differ by a sample, or if the schedule runs stages on replicas: a worker is a row of
the schedule with its devices. Each variant has its own graph or its own tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

from raddle.graph.graph import Graph
from raddle.plans.adapt import resize
from raddle.plans.pipelining import (
    is_asynchronous,
    micro_batch_sizes,
    move_tiles,
    schedule_of,
    workers_of_micro_batch,
)
from raddle.plans.plan import Plan
from raddle.plans.schedule import Action, Schedule, all_actions_in_order
from raddle.program.lower_variant import LoweredVariant, lower_variant
from raddle.program.program import Key


class Variants:
    """The variants of a program, numbered in the order in which micro-batches need them.

    Variant 0 is that of the first micro-batch. active: the values whose gradient is needed. look: is called
    for every operator, see `lower`.
    """

    def __init__(
        self, graph: Graph, plan: Plan, active: frozenset[str],
        look: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.graph, self.plan, self.active, self.look = graph, plan, active, look
        self.sizes = micro_batch_sizes(plan, graph)  # samples of each micro-batch
        self.lowered: list[LoweredVariant] = []  # by number
        # By micro-batch size and the workers of all stages, the number of the variant.
        self._numbers: dict[tuple[int, tuple[int, ...]], int] = {}
        self._stage_workers: dict[
            int, tuple[int, ...]
        ] = {}  # by micro-batch, the worker of each stage
        self._variant_number(0, 0)

    @cached_property
    def schedule(self) -> Schedule | None:
        return schedule_of(self.plan) if self.plan.stages else None

    def lowered_for(self, key: Key) -> LoweredVariant:
        return self.lowered[key.variant]

    def _variant_number(self, micro_batch: int, run_micro_batch: int) -> int:
        """Returns the number of the variant of a micro-batch; works out the variant if it is new.

        micro_batch: its number in its step. run_micro_batch: its number in the schedule, which counts
        through all steps where steps overlap.
        """
        graph, plan, size = self.graph, self.plan, self.sizes[micro_batch]
        if run_micro_batch not in self._stage_workers:
            self._stage_workers[run_micro_batch] = (
                workers_of_micro_batch(plan, self.schedule, run_micro_batch)
                if self.schedule is not None
                else ()
            )
        stage_workers = self._stage_workers[run_micro_batch]
        if (size, stage_workers) not in self._numbers:
            if size != graph.batch:
                graph, plan = resize(plan, graph, graph.for_batch(size))
            if stage_workers:
                # sums: by operator, where its partial results are summed, if the plan says so
                tiles, sums = (
                    move_tiles(self.plan, stage_workers, plan.tiles),
                    move_tiles(self.plan, stage_workers, plan.sums),
                )
                plan = replace(plan, tiles=tiles, sums=sums)
            self._numbers[size, stage_workers] = len(self.lowered)
            self.lowered.append(lower_variant(graph, plan, self.active, self.look))
        return self._numbers[size, stage_workers]

    @cached_property
    def actions(self) -> list[list[tuple[Key, Action]]]:
        """The actions of each step, in order, with their keys; if steps overlap, one list for all steps."""
        count = self.plan.microbatches
        if self.schedule is None:
            schedule_actions = [Action(phase, 0, m) for m in range(count) for phase in "FB"]
        else:
            schedule_actions = all_actions_in_order(self.schedule)
        if is_asynchronous(self.plan) and self.schedule is not None:
            # (step s, micro-batch m within the step, action); the action counts through all steps.
            numbered_actions = [(*divmod(a.micro_batch, count), a) for a in schedule_actions]
            return [
                [
                    (Key(s, m, self._variant_number(m, a.micro_batch)), a)
                    for s, m, a in numbered_actions
                ]
            ]
        return [
            [
                (Key(step, a.micro_batch, self._variant_number(a.micro_batch, a.micro_batch)), a)
                for a in schedule_actions
            ]
            for step in range(self.plan.steps)
        ]
