"""Tilings of operators, numbered: operators of one space that are tiled alike share what is found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from raddle.costs.native_calls import tiling_signature
from raddle.graph.graph import Op
from raddle.plans.tiling import Grid, Tiling
from raddle.program.merges import is_partial
from raddle.simulation.fast.regions import Regions, regions

Array = np.ndarray


@dataclass
class NumberedTiling:
    """A tiling of operators of one space, with what is known of it."""

    number: int
    tiling: Tiling
    devices: tuple[int, ...]  # that compute it, sorted
    tile_devices: Array  # device of every tile, copies included
    copies: int
    regions: tuple[Regions, ...]


class Reader(NamedTuple):
    """An operand of an operator; `graded` says that its gradient goes back."""

    op: Op
    operand: int
    sends_gradient: bool
    tiling: NumberedTiling


class Tilings:
    """All tilings that were met."""

    def __init__(self, bn: str) -> None:
        self.bn = bn
        self._numbered: dict[tuple[int, Tiling], NumberedTiling] = {}
        self._partials: dict[tuple[str, int], bool] = {}
        self._signatures: dict[int, object] = {}

    def numbered(self, op: Op, tiling: Tiling) -> NumberedTiling:
        # Spaces are shared by operators that are alike, and live as long as the graph.
        key = (id(op.space), tiling)
        tiled = self._numbered.get(key)
        if tiled is None:
            tiled = NumberedTiling(
                len(self._numbered), tiling, tuple(sorted(set(tiling.devices))),
                np.array(tiling.devices, np.int64), tiling.copies if isinstance(tiling, Grid) else 1,
                regions(op.space, tiling),
            )  # fmt: skip
            self._numbered[key] = tiled
        return tiled

    def signature(self, op: Op, tiled: NumberedTiling) -> object:
        """What operators of a native call have in common when they are tiled alike."""
        if tiled.number not in self._signatures:
            self._signatures[tiled.number] = tiling_signature(op, tiled.tiling)
        return self._signatures[tiled.number]

    def is_partial(self, op: Op, tiled: NumberedTiling) -> bool:
        """Whether tiles of an operator give partial results."""
        if not op.space.combine:
            return False
        key = (op.name, tiled.number)
        if key not in self._partials:
            self._partials[key] = is_partial(op, tiled.tiling, self.bn)
        return self._partials[key]
