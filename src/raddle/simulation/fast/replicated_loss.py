"""Keeps track of the operators of a replicated loss while tiles change; see program/replicated_loss.py.

This module is a part of the fast simulation, with which searches time thousands of plans a second
(evaluator.py).

The loss is replicated if every device with a partial sum of the loss receives all other partial sums,
merges them by itself and starts the backward from its copy. Only the tiles of operators near the loss
decide this, so the result is cached by those tiles.
"""

# i: operator

from __future__ import annotations

from collections.abc import Sequence

from raddle.graph.graph import Graph
from raddle.plans.plan import Plan
from raddle.program.replicated_loss import SMALL_RESULT, replicated_loss_ops
from raddle.simulation.fast.graph_index import GraphIndex
from raddle.simulation.fast.plan_rows import Undo
from raddle.simulation.fast.tilings import NumberedTiling, Tilings


class ReplicatedLoss:
    """`current[0]`: names of the merged operators from which every device starts its backward."""

    def __init__(self, index: GraphIndex, plan: Plan) -> None:
        self.index, self.plan = index, plan
        self.current: list[frozenset[str]] = [frozenset()]  # a list, so that Undo can restore it
        self._near_loss = _ops_near_loss(index.graph, index.active)
        self._cache: dict[tuple[int, ...], frozenset[str]] = {}

    def update(
        self, undo: Undo, changed: Sequence[int], tiles: Sequence[NumberedTiling], tilings: Tilings
    ) -> set[int]:
        """Updates `current` after the tiles of the operators `changed` have changed.

        Returns the numbers of the operators that entered or left `current`.
        """
        if not any(i in self._near_loss for i in changed):
            return set()
        key = tuple(tiles[i].number for i in self._near_loss)
        if key not in self._cache:
            self._cache[key] = self._compute_ops(tiles, tilings)
        different = self._cache[key] ^ self.current[0]
        if different:
            undo.set(self.current, 0, self._cache[key])
        return {self.index.op_number[name] for name in different}

    def clear(self) -> None:
        """Empties the cache, whose keys are numbers of tilings; `current` stays."""
        self._cache.clear()

    def _compute_ops(self, tiles: Sequence[NumberedTiling], tilings: Tilings) -> frozenset[str]:
        """Returns the operators of the replicated loss with these tiles."""
        graph, op_number = self.index.graph, self.index.op_number
        tiling_by_op = {op.name: tiles[i].tiling for i, op in enumerate(graph.ops)}
        plan = Plan(tiling_by_op, self.plan.devices, bn=self.plan.bn)
        return replicated_loss_ops(
            graph,
            plan,
            self.index.active,
            lambda op: tilings.is_partial(op, tiles[op_number[op.name]]),
        )


def _ops_near_loss(graph: Graph, active: frozenset[str]) -> dict[int, None]:
    """Returns the numbers of the operators near the loss: from the loss back to the first large results.

    A result is large if it has more bytes than SMALL_RESULT. The dict serves as an ordered set.
    """
    # Values that are read by operators near the loss whose results are small.
    small_values: set[str] = set()
    numbers: dict[int, None] = {}
    for i in range(len(graph.ops) - 1, -1, -1):
        op = graph.ops[i]
        if graph.loss in op.outputs or any(out in small_values for out in op.outputs):
            numbers[i] = None
            if all(graph.values[out].nbytes <= SMALL_RESULT for out in op.outputs):
                small_values.update(name for name in op.inputs if name in active)
    return numbers
