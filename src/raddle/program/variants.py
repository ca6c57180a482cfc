"""Which micro-batches run how: their sizes and workers, and the order of their actions."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from raddle.graph.graph import Graph
from raddle.plans.adapting import resize
from raddle.plans.pipelining import is_asynchronous, micro_sizes, placed, places, schedule_of
from raddle.plans.plan import Plan
from raddle.plans.schedule import Action, Schedule, order
from raddle.program.program import Key
from raddle.program.settling import Settled, settle


class Variants:
    """The variants of a program, numbered as they are met; the first has the plan's own tiles."""

    def __init__(self, graph: Graph, plan: Plan, active: frozenset[str]) -> None:
        self.graph, self.plan, self.active = graph, plan, active
        self.sizes = micro_sizes(plan, graph)
        self.settled: list[Settled] = []
        self._numbers: dict[tuple[int, tuple[int, ...]], int] = {}  # by samples and workers
        self._number(0, 0)

    @cached_property
    def schedule(self) -> Schedule | None:
        return schedule_of(self.plan) if self.plan.stages else None

    def of(self, key: Key) -> Settled:
        return self.settled[key.replica]

    def _number(self, micro: int, counted: int) -> int:
        """The variant of a micro-batch, which is so many micro-batches after the first of all steps."""
        graph, plan, size = self.graph, self.plan, self.sizes[micro]
        at = places(plan, self.schedule, counted) if self.schedule is not None else ()
        if (size, at) not in self._numbers:
            if size != graph.batch:
                graph, plan = resize(plan, graph, graph.at(size))
            if at:
                own, sums = placed(self.plan, at, plan.tiles), placed(self.plan, at, plan.sums)
                plan = replace(plan, tiles=own, sums=sums)
            self._numbers[size, at] = len(self.settled)
            self.settled.append(settle(graph, plan, self.active))
        return self._numbers[size, at]

    @cached_property
    def actions(self) -> list[list[tuple[Key, Action]]]:
        """By step, or all together where steps overlap, what is done in which order."""
        count = self.plan.microbatches
        if self.schedule is None:
            given = [Action(phase, 0, m) for m in range(count) for phase in "FB"]
        else:
            given = order(self.schedule)
        if is_asynchronous(self.plan) and self.schedule is not None:
            together = [(*divmod(a.micro, count), a) for a in given]
            return [[(Key(s, m, self._number(m, a.micro)), a) for s, m, a in together]]
        return [
            [(Key(step, a.micro, self._number(a.micro, a.micro)), a) for a in given]
            for step in range(self.plan.steps)
        ]
