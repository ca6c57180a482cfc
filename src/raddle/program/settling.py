"""What goes where, once for all micro-batches of a variant: merges, messages and who reads what.

Transfers are what consumers need less what they hold, so they are minimal, and nothing goes to a device
twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from raddle.errors import InputError
from raddle.graph.box import Box, merge
from raddle.graph.gradients import gives_gradient, graders
from raddle.graph.graph import Graph, Op
from raddle.plans.pipelining import stage_of
from raddle.plans.plan import Plan
from raddle.plans.regions import operand_regions
from raddle.plans.tiling import Tiling
from raddle.program.closing import closing
from raddle.program.holding import Holding, always_local, fetch, holding_of, in_turn
from raddle.program.merging import is_local_statistics, is_partial, place_merge
from raddle.program.program import Cell, Message, Variant


def settle(graph: Graph, plan: Plan, active: frozenset[str]) -> Settled:
    """All that follows from a graph and the tiles of a plan."""
    settled = Settled(
        graph,
        plan,
        active,
        {op.name: tuple(sorted(set(plan.tiles[op.name].devices))) for op in graph.ops},
        stage_of(plan) or {op.name: 0 for op in graph.ops},
        closing(graph, plan, active, lambda op: is_partial(op, plan.tiles[op.name], plan.bn)),
    )
    for op in graph.ops:
        settled.settle(op)
    return settled


class Portion(NamedTuple):
    """Messages that bring a part of a gradient back once these stages have given theirs."""

    stages: frozenset[int]
    messages: tuple[Message, ...]


@dataclass(frozen=True)
class Settled:
    """A variant of a program: a graph and tiles, with all that follows from them."""

    graph: Graph
    plan: Plan
    active: frozenset[str]
    devices: dict[str, tuple[int, ...]]  # that compute an operator
    stage_of: dict[str, int]
    closing: frozenset[str]
    merges: dict[str, tuple[Cell, ...]] = field(default_factory=dict)
    partial_messages: dict[str, tuple[Message, ...]] = field(default_factory=dict)
    partial_back: dict[str, tuple[Message, ...]] = field(default_factory=dict)
    messages: dict[str, tuple[Message, ...]] = field(default_factory=dict)  # of a value, forward
    returned: dict[str, tuple[Portion, ...]] = field(default_factory=dict)  # of its gradient

    @cached_property
    def consumers(self) -> dict[str, list[tuple[Op, int]]]:
        found: dict[str, list[tuple[Op, int]]] = {}
        for op in self.graph.ops:
            for i, name in enumerate(op.inputs):
                found.setdefault(name, []).append((op, i))
        return found

    @cached_property
    def producer(self) -> dict[str, Op]:
        return {o: op for op in self.graph.ops for o in op.outputs}

    @cached_property
    def variant(self) -> Variant:
        return Variant(self.graph, self.plan.tiles, self.merges, self.closing)

    @cached_property
    def graders(self) -> dict[str, list[Op]]:
        """By value, the operators that contribute to its gradient, in their order."""
        return graders(self.graph, self.active)

    def ops_of(self, stage: int) -> list[Op]:
        return [op for op in self.graph.ops if self.stage_of[op.name] == stage]

    def devices_of(self, stage: int) -> set[int]:
        """All devices that may compute something of a stage."""
        ops = self.ops_of(stage)
        cells = (cell for op in ops for cell in self.merges.get(op.name, ()))
        own = {d for op in ops for d in self.devices[op.name]}
        return own.union(*(cell.devices for cell in cells))

    @cached_property
    def again(self) -> dict[str, list[Op]]:
        """Recomputed operators, with those of their block and stage: a stage's backward runs them."""
        found: dict[str, list[Op]] = {}
        for names in map(set, self.plan.recompute):
            block = [op for op in self.graph.ops if op.name in names]
            for op in block:
                stage = self.stage_of[op.name]
                found[op.name] = [o for o in block if self.stage_of[o.name] == stage]
        return found

    def contributions(self, name: str, stages: frozenset[int]) -> int:
        """How many operators of some stages contribute to a value's gradient."""
        return sum(self.stage_of[op.name] in stages for op in self.graders.get(name, ()))

    def settle(self, op: Op) -> None:
        """Settles where an operator's results are merged and which messages carry them."""
        tiling = self.plan.tiles[op.name]
        if is_partial(op, tiling, self.plan.bn):
            self._settle_merge(op, tiling)
        for k, name in enumerate(op.outputs):
            self.messages[name], self.returned[name] = self._needs(op, k, name)
            if self.messages[name] and is_local_statistics(op, self.plan.bn):
                target = self.messages[name][0].target
                raise InputError(
                    f"with bn: local, device {target} normalises samples whose statistics '{op.name}' "
                    "takes elsewhere: give both the same tiles, or use bn: global."
                )

    def _holding(self, op: Op, output: int) -> Holding:
        if op.name in self.merges:
            return Holding([(c.box, c.devices) for c in self.merges[op.name]])
        return holding_of(op.space, self.plan.tiles[op.name], output)

    def _settle_merge(self, op: Op, tiling: Tiling) -> None:
        readers = {
            d
            for o in op.outputs
            for c, _ in self.consumers.get(o, [])
            for d in self.devices[c.name]
        }
        width, count = self.graph.values[op.outputs[0]].dtype.itemsize, self.plan.devices
        placed, messages = place_merge(
            op,
            tiling,
            sorted(readers),
            width,
            closes=op.name in self.closing,
            where=self.plan.sums.get(op.name),
        )
        self.merges[op.name], self.partial_messages[op.name] = placed, in_turn(messages, count)
        back = [Message(m.target, m.source, m.boxes, m.part) for m in messages]
        self.partial_back[op.name] = in_turn(back, count)

    def _needs(
        self, op: Op, output: int, name: str
    ) -> tuple[tuple[Message, ...], tuple[Portion, ...]]:
        """Messages that bring a value to its consumers, and those that bring its gradient back."""
        wanted: dict[int, list[Box]] = {}
        plainly: dict[int, list[Box]] = {}  # by consumers that give no gradient
        readers = list(self.consumers.get(name, []))
        for buffer in self.graph.buffers_of.get(name, ()):
            # whoever reads the buffer in the next step needs what it holds then
            readers += self.consumers.get(buffer, [])
        stages: dict[int, set[int]] = {}  # by device, those that give a gradient there
        for consumer, operand in readers:
            graded = gives_gradient(consumer, name, self.active)
            if graded:
                for d in self.devices[consumer.name]:
                    stages.setdefault(d, set()).add(self.stage_of[consumer.name])
            if not self._always_local(op, output, consumer, operand):
                needs = wanted if graded else plainly
                _add_regions(needs, consumer, operand, self.plan.tiles[consumer.name])
        if not wanted and not plainly:
            return (), ()
        holding, have = self._holding(op, output), dict[int, list[Box]]()
        back = self._fetched(holding, wanted, have)
        rest = self._fetched(holding, plainly, have)
        home = [Message(m.target, m.source, m.boxes) for m in back]
        return in_turn(joined(back + rest), self.plan.devices), self._portions(home, stages)

    def _portions(
        self, messages: Sequence[Message], stages: dict[int, set[int]]
    ) -> tuple[Portion, ...]:
        """Gradients leave a device when its last stage has given them; others need not be waited for."""
        groups: list[set[int]] = []
        for m in messages:
            own = set(stages[m.source])
            for other in [g for g in groups if g & own]:
                groups.remove(other)
                own |= other
            groups.append(own)
        return tuple(
            Portion(
                frozenset(own),
                in_turn([m for m in messages if stages[m.source] <= own], self.plan.devices),
            )
            for own in groups
        )

    def _always_local(self, op: Op, output: int, consumer: Op, operand: int) -> bool:
        if op.name in self.merges:
            return False
        tiling, target = self.plan.tiles[op.name], self.plan.tiles[consumer.name]
        access = consumer.space.operands[operand]
        return always_local(tiling, op.space, output, target, access)

    def _fetched(
        self, holding: Holding, needs: dict[int, list[Box]], have: dict[int, list[Box]]
    ) -> list[Message]:
        messages = []
        for device in sorted(needs):
            regions = list(dict.fromkeys(needs[device]))
            taken = fetch(holding, device, regions, have.setdefault(device, []))
            messages += [Message(s, device, tuple(boxes)) for s, boxes in sorted(taken.items())]
        return messages


def _add_regions(needs: dict[int, list[Box]], op: Op, operand: int, tiling: Tiling) -> None:
    for device, region in operand_regions(op, operand, tiling):
        if region is not None:
            needs.setdefault(device, []).append(region)


def joined(messages: Sequence[Message]) -> tuple[Message, ...]:
    """One message for each pair of devices (and part)."""
    together: dict[tuple[int, int, int], list[Box]] = {}
    for m in messages:
        together.setdefault((m.source, m.target, m.part), []).extend(m.boxes)
    return tuple(Message(s, t, tuple(merge(b)), p) for (s, t, p), b in sorted(together.items()))
