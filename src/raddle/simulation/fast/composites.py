"""Composites that PyTorch has one call for: whether all operators of one are tiled alike."""

# i: operator, c: composite

from __future__ import annotations

from collections.abc import Mapping, Sequence

from raddle.costs.native_calls import NativeCall
from raddle.graph.graph import Op
from raddle.simulation.fast.pointers import Undo
from raddle.simulation.fast.tiled import Tiled, Tilings


class Composites:
    """The composites of a graph, and which of them are together now."""

    def __init__(self, natives: Mapping[str, NativeCall], number: Mapping[str, int]) -> None:
        found = list({n.main.name: n for n in natives.values()}.values())
        self._ops = [[number[name] for name in n.time_shares] for n in found]
        self._of = {i: c for c, own in enumerate(self._ops) for i in own}
        self._alike = [[number[name] for name in (*n.time_shares, *n.neighbours)] for n in found]
        self._watched: dict[int, list[int]] = {}  # by operator, composites that it is in or near
        for c, own in enumerate(self._alike):
            for i in own:
                self._watched.setdefault(i, []).append(c)
        self.together = [False] * len(found)

    def is_together(self, i: int) -> bool:
        return i in self._of and self.together[self._of[i]]

    def regroup(
        self, undo: Undo, changed: Sequence[int], ops: Sequence[Op], tiles: Sequence[Tiled],
        tilings: Tilings,
    ) -> set[int]:  # fmt: skip
        """Operators of composites whose tiles now belong together, or do so no longer."""
        found: set[int] = set()
        for c in {c for i in changed for c in self._watched.get(i, ())}:
            own = {tilings.signature(ops[i], tiles[i]) for i in self._alike[c]}
            if (len(own) == 1) != self.together[c]:
                undo.set(self.together, c, len(own) == 1)
                found.update(self._ops[c])
        return found
