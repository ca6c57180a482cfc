"""Rows of messages that bring a value to its readers and its gradient back, and of merging parts of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from raddle.errors import InputError
from raddle.graph.box import Box
from raddle.graph.graph import Graph, Op
from raddle.plans.tiling import Grid
from raddle.program.merges import is_local_statistics, merged_bytes, place_merge
from raddle.program.program import Cell, Message, tensors_per_part
from raddle.program.value_holders import always_local, output_holders
from raddle.simulation.fast.cluster_arrays import ClusterArrays
from raddle.simulation.fast.pair_volumes import message_rows, pair_volumes
from raddle.simulation.fast.regions import tile_boxes_in
from raddle.simulation.fast.store import NOTHING, RowStore, Slot
from raddle.simulation.fast.tilings import Reader, Tiled

Array = np.ndarray
Pieces = tuple[Array, Array, Array]  # boxes, and their holders from one index to the next


class MergeKey(NamedTuple):
    """What merging partial results depends on."""

    number: int  # of the tiling
    readers: tuple[int, ...]  # devices
    width: int  # bytes of an element
    active: bool  # whether there is a gradient
    closes: bool  # program/replicated_loss.py


class Merged(NamedTuple):
    """Cells of an operator's results, what merging them takes, and messages there and back."""

    cells: tuple[Cell, ...] = ()
    rows: Slot = NOTHING
    there: Slot = NOTHING
    back: Slot = NOTHING


class Made(NamedTuple):
    """An output of an operator, and how it was merged, if it was."""

    op: Op
    output: int
    tiled: Tiled
    merged: MergeKey | None
    cells: tuple[Cell, ...]


class Values:
    """Values of a graph on a machine."""

    def __init__(self, graph: Graph, machine: ClusterArrays, bn: str) -> None:
        self.graph, self.machine, self.bn = graph, machine, bn

    def merge(self, store: RowStore, op: Op, tiled: Tiled, key: MergeKey) -> Merged:
        return store.cached(key, lambda: self._merge(store, op, tiled, key))

    def _merge(self, store: RowStore, op: Op, tiled: Tiled, key: MergeKey) -> Merged:
        tiling, width = tiled.tiling, key.width
        cells, messages = place_merge(op, tiling, key.readers, width, replicated=key.closes)
        devices, nbytes = [c.devices for c in cells], [merged_bytes(c, width) for c in cells]
        returned = messages if key.active and not key.closes else ()
        back = [Message(m.target, m.source, m.boxes, m.part) for m in returned]
        sent = (
            [(m, m.elements * width * tensors_per_part(op, tiling.tiles[m.part].box)) for m in way]
            for way in (messages, back)
        )
        ways = [store.messages.add(self.machine.ordered_message_rows(way)) for way in sent]
        return Merged(
            cells, store.computes.add(self.machine.memory_pass_rows(devices, nbytes)), *ways
        )

    def value(self, store: RowStore, made: Made, readers: Sequence[Reader]) -> tuple[Slot, Slot]:
        """Rows that bring a value to its readers, and its gradient back."""
        op, output, tiled = made.op, made.output, made.tiled
        width = self.graph.values[op.outputs[output]].dtype.itemsize
        key = (
            "value", tiled.number, output, width, made.merged, is_local_statistics(op, self.bn),
            *((r.tiled.number, r.operand, r.graded) for r in readers),
        )  # fmt: skip

        def find() -> tuple[Slot, Slot]:
            apart = [
                r for r in readers
                if made.merged is not None or not always_local(
                    tiled.tiling, op.space, output, r.tiled.tiling, r.op.space.operands[r.operand]
                )
            ]  # fmt: skip
            return self._fetch(store, made, apart, width) if apart else (NOTHING, NOTHING)

        return store.cached(key, find)

    def _fetch(
        self, store: RowStore, made: Made, readers: Sequence[Reader], width: int
    ) -> tuple[Slot, Slot]:
        boxes, targets, graded = [], [], []
        for r in sorted(readers, key=lambda r: not r.graded):
            own = r.tiled.regions[r.operand]
            keep = np.repeat(own.needed, r.tiled.copies)
            boxes.append(np.repeat(own.boxes, r.tiled.copies, axis=0)[keep])
            targets.append(r.tiled.each[keep])
            graded.append(np.full(int(keep.sum()), r.graded))
        needs, target = np.concatenate(boxes), np.concatenate(targets)
        if not len(needs):
            return NOTHING, NOTHING
        count, routes = self.machine.count, self.machine.routes
        there, back = np.zeros((2, count, count), np.int64)
        pieces, holders, at = self._pieces(store, made)
        room = pair_volumes(
            count, pieces, holders, at, needs, target, np.concatenate(graded), there, back
        )
        assert room, f"'{made.op.name}' is in too many pieces for a search"
        slots = []
        for volumes in (there, back):
            rows = np.empty((count * (count - 1), 4), np.int64)
            n = message_rows(volumes, width, routes.latency, routes.bandwidth, rows)
            found = self.machine.message_rows(*rows[:n].T) if n else rows[:0, :0]
            slots.append(store.messages.add(found))
        if slots[0][1] and is_local_statistics(made.op, self.bn):
            raise InputError(
                f"with bn: local, '{made.op.name}' is needed where it is not computed."
            )
        return slots[0], slots[1]

    def _pieces(self, store: RowStore, made: Made) -> Pieces:
        """Boxes of a value, and who holds them."""
        tiling, dims = made.tiled.tiling, made.op.space.outputs[made.output]
        if made.merged is not None:
            return _packed([(c.box, c.devices) for c in made.cells], len(dims))

        def find() -> Pieces:
            if isinstance(tiling, Grid) and _shown(tiling, dims):
                at = np.arange(0, len(tiling.devices) + tiling.copies, tiling.copies)
                return tile_boxes_in(tiling, dims), made.tiled.each, at
            held = output_holders(made.op.space, tiling, made.output)
            return _packed(held.pieces, len(dims))

        return store.cached(("pieces", made.tiled.number, made.output), find)


def _shown(grid: Grid, dims: Sequence[int]) -> bool:
    """Whether an output has all dimensions that are split, in their order: then its boxes are the tiles."""
    return list(dims) == sorted(dims) and all(
        len(cuts) == 2 or d in dims for d, cuts in enumerate(grid.cuts)
    )


def _packed(pieces: Sequence[tuple[Box, tuple[int, ...]]], rank: int) -> Pieces:
    boxes = np.zeros((len(pieces), rank, 2), np.int64)
    for k, (box, _) in enumerate(pieces):
        boxes[k, :, 0], boxes[k, :, 1] = box.lo, box.hi
    at = np.concatenate([[0], np.cumsum([len(devices) for _, devices in pieces])])
    return boxes, np.array([d for _, devices in pieces for d in devices], np.int64), at
