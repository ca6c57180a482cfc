"""How the forward ends (program/replicated_loss.py), remembered by the tiles that decide it."""

# i: operator

from __future__ import annotations

from collections.abc import Sequence

from raddle.graph.graph import Graph
from raddle.plans.plan import Plan
from raddle.program.replicated_loss import SMALL_RESULT, replicated_loss_ops
from raddle.simulation.fast.outline import Outline
from raddle.simulation.fast.pointers import Undo
from raddle.simulation.fast.tiled import Tiled, Tilings


class Closings:
    """`now[0]` are the merged operators whose gradient starts on every device."""

    def __init__(self, outline: Outline, plan: Plan) -> None:
        self.outline, self.plan = outline, plan
        self.now: list[frozenset[str]] = [frozenset()]
        self._tail = _tail(outline.graph, outline.active)
        self._known: dict[tuple[int, ...], frozenset[str]] = {}

    def change(
        self, undo: Undo, changed: Sequence[int], tiles: Sequence[Tiled], tilings: Tilings
    ) -> set[int]:
        """Operators that begin or cease to end the forward so, now that some have other tiles."""
        if not any(i in self._tail for i in changed):
            return set()
        key = tuple(tiles[i].number for i in self._tail)
        if key not in self._known:
            self._known[key] = self._find(tiles, tilings)
        different = self._known[key] ^ self.now[0]
        if different:
            undo.set(self.now, 0, self._known[key])
        return {self.outline.number[name] for name in different}

    def forget(self) -> None:
        self._known.clear()

    def _find(self, tiles: Sequence[Tiled], tilings: Tilings) -> frozenset[str]:
        graph, number = self.outline.graph, self.outline.number
        own = {op.name: tiles[i].tiling for i, op in enumerate(graph.ops)}
        plan = Plan(own, self.plan.devices, bn=self.plan.bn)
        return replicated_loss_ops(
            graph, plan, self.outline.active, lambda op: tilings.partial(op, tiles[number[op.name]])
        )


def _tail(graph: Graph, active: frozenset[str]) -> dict[int, None]:
    """Operators whose tiles can decide how the forward closes: those near the loss."""
    near: set[str] = set()
    found: dict[int, None] = {}
    for i in range(len(graph.ops) - 1, -1, -1):
        op = graph.ops[i]
        if graph.loss in op.outputs or any(out in near for out in op.outputs):
            found[i] = None
            if all(graph.values[out].nbytes <= SMALL_RESULT for out in op.outputs):
                near.update(name for name in op.inputs if name in active)
    return found
