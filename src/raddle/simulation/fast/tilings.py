"""Numbers tilings, so that caches can use the number as a key.

This module is a part of the fast simulation, with which searches time thousands of plans a second
(evaluator.py). Operators with equal iteration spaces and tilings share a number.

A Grid is a tiling by cuts along the dimensions; each of its tiles may have several copies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from raddle.costs.native_calls import tiling_signature
from raddle.graph.graph import Op
from raddle.plans.tiling import Grid, Tiling
from raddle.program.merges import is_partial, refuse_statistics_of_one_value
from raddle.simulation.fast.regions import Regions, regions

Array = np.ndarray


@dataclass
class NumberedTiling:
    """A tiling of an iteration space, with its number, and with devices and regions that follow from it."""

    number: int
    tiling: Tiling
    devices: tuple[int, ...]  # all devices of its tiles, sorted
    tile_devices: Array  # by tile: its device; the copies of a tile stand next to each other
    copies: int  # number of copies of each tile
    regions: tuple[Regions, ...]  # by operand: the region of each tile, once for all of its copies


class Reader(NamedTuple):
    """An operator that reads a value."""

    op: Op
    operand: int  # the number of the operand that is the value
    sends_gradient: bool  # whether its backward sends a gradient of the value back
    tiling: NumberedTiling


class Tilings:
    """All numbered tilings.

    bn: the scope of batch norm's statistics (plans/plan.py). training: whether there is a backward.
    """

    def __init__(self, bn: str, *, training: bool) -> None:
        self.bn, self.training = bn, training
        self._numbered: dict[tuple[int, Tiling], NumberedTiling] = {}
        self._partials: dict[tuple[str, int], bool] = {}
        self._signatures: dict[int, object] = {}

    def numbered(self, op: Op, tiling: Tiling) -> NumberedTiling:
        """Returns the numbered tiling of an operator; a new one gets the next number."""
        # Equal operators share one Space object, which lives as long as the graph: its id is a safe key.
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
        """Returns a key that is equal for operators that are tiled alike, so that one call may run them.

        See costs/native_calls.py.
        """
        if tiled.number not in self._signatures:
            self._signatures[tiled.number] = tiling_signature(op, tiled.tiling)
        return self._signatures[tiled.number]

    def is_partial(self, op: Op, tiled: NumberedTiling) -> bool:
        """Returns whether the tiles of an operator give partial results, which have to be merged."""
        if not op.space.combine:  # it sums over no dimension
            return False
        key = (op.name, tiled.number)
        if key not in self._partials:
            if self.training:
                refuse_statistics_of_one_value(op, tiled.tiling, self.bn)
            self._partials[key] = is_partial(op, tiled.tiling, self.bn)
        return self._partials[key]
