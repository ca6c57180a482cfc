"""Keeps track of which composites can run as one native call (costs/native_calls.py) while tiles change.

This module is a part of the fast simulation, with which searches time thousands of plans a second
(evaluator.py).

A composite is several operators that one PyTorch call can compute, such as batch norm. It is fused in the
current plan if all of its operators, and its neighbours, are tiled alike. Neighbours are the operators
before and after it; they are listed only for composites of which nothing but the samples can be split, such
as an LSTM (NativeCall.neighbours).
"""

# i: operator, c: composite

from __future__ import annotations

from collections.abc import Mapping, Sequence

from raddle.costs.native_calls import NativeCall
from raddle.graph.graph import Op
from raddle.simulation.fast.plan_rows import Undo
from raddle.simulation.fast.tilings import NumberedTiling, Tilings


class Composites:
    """The composites of a graph; `fused[c]` says whether composite c is fused now."""

    def __init__(
        self, native_calls: Mapping[str, NativeCall], op_number: Mapping[str, int]
    ) -> None:
        # native_calls is by operator, so the same call occurs several times; here, each call stands once.
        calls = list({n.main.name: n for n in native_calls.values()}.values())
        # By composite: its operators, which are the keys of time_shares (shares of the call's seconds).
        self._ops = [[op_number[name] for name in n.time_shares] for n in calls]
        # By operator: the composite that it belongs to.
        self._composite_of = {i: c for c, members in enumerate(self._ops) for i in members}
        # By composite: the operators that have to be tiled alike.
        self._compared_ops = [
            [op_number[name] for name in (*n.time_shares, *n.neighbours)] for n in calls
        ]
        # By operator: the composites that it belongs to or is a neighbour of.
        self._composites_by_op: dict[int, list[int]] = {}
        for c, compared in enumerate(self._compared_ops):
            for i in compared:
                self._composites_by_op.setdefault(i, []).append(c)
        self.fused = [False] * len(calls)

    def is_fused(self, i: int) -> bool:
        """Returns whether operator i belongs to a composite that is fused now."""
        return i in self._composite_of and self.fused[self._composite_of[i]]

    def update(
        self, undo: Undo, changed: Sequence[int], ops: Sequence[Op], tiles: Sequence[NumberedTiling],
        tilings: Tilings,
    ) -> set[int]:  # fmt: skip
        """Updates `fused` after the tiles of the operators `changed` have changed.

        Returns the operators of the composites that became fused, or are fused no longer.
        """
        fusion_changed: set[int] = set()
        for c in {c for i in changed for c in self._composites_by_op.get(i, ())}:
            signatures = {tilings.signature(ops[i], tiles[i]) for i in self._compared_ops[c]}
            if (len(signatures) == 1) != self.fused[c]:
                undo.set(self.fused, c, len(signatures) == 1)
                fusion_changed.update(self._ops[c])
        return fusion_changed
