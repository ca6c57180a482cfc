"""Builds the rows of a value: its messages, those of its gradient, and the merge of partial results.

This module is a part of the fast simulation, with which searches time thousands of plans a second
(evaluator.py).

Rows go into the store (store.py); the methods return their slots (first row, number of rows). A cell is a
box of an output that some devices merge from partial results (program/merges.py). A part of a result is
the partial result of one tile, and may be two tensors, such as a mean and a variance. bn: whether batch
norm takes its statistics over the whole batch ("global"), over a micro-batch ("microbatch": here the same,
as the fast simulation has one micro-batch) or over each tile ("local"); see plans/plan.py.
"""

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
from raddle.simulation.fast.pair_volumes import pair_volumes, write_transfers
from raddle.simulation.fast.regions import tile_boxes_in
from raddle.simulation.fast.store import NOTHING, RowStore, Slot
from raddle.simulation.fast.tilings import NumberedTiling, Reader

Array = np.ndarray
# Boxes of a value; the devices that hold them; where the holders of each box start: see pair_volumes.
Pieces = tuple[Array, Array, Array]


class MergeKey(NamedTuple):
    """Everything that the merge of an operator's partial results depends on."""

    tiling_number: int
    reader_devices: tuple[int, ...]  # devices that read the result
    element_bytes: int
    has_gradient: bool
    # Every device merges the result, so that none needs its gradient from another (replicated_loss.py).
    replicated: bool


class MergeRows(NamedTuple):
    """The merge of an operator's partial results; by default there is none."""

    cells: tuple[Cell, ...] = ()  # boxes of the result, and the devices that merge each
    compute: Slot = NOTHING  # compute rows
    partial: Slot = NOTHING  # message rows of partial results
    partial_gradient: Slot = NOTHING  # message rows of their gradients


class ValueSource(NamedTuple):
    """The operator that computes a value, with its tiles and its merge."""

    op: Op
    output: int  # the number of the output
    tiled: NumberedTiling
    merge_key: MergeKey | None  # None: its tiles are not merged
    cells: tuple[Cell, ...]  # of the merge


class ValueRows:
    """Rows of the values of a graph on a cluster."""

    def __init__(self, graph: Graph, cluster: ClusterArrays, bn: str) -> None:
        self.graph, self.cluster, self.bn = graph, cluster, bn

    def merge_rows(
        self, store: RowStore, op: Op, tiled: NumberedTiling, key: MergeKey
    ) -> MergeRows:
        """Returns the merge of an operator's partial results."""
        return store.cached(key, lambda: self._build_merge(store, op, tiled, key))

    def _build_merge(
        self, store: RowStore, op: Op, tiled: NumberedTiling, key: MergeKey
    ) -> MergeRows:
        """Places the merge and adds its rows."""
        tiling, element_bytes = tiled.tiling, key.element_bytes
        cells, messages = place_merge(
            op, tiling, key.reader_devices, element_bytes, replicated=key.replicated
        )
        devices, nbytes = (
            [c.devices for c in cells],
            [merged_bytes(c, element_bytes) for c in cells],
        )
        # The gradients of partial results go the opposite way. part: the number of the tile that computed
        # the partial result.
        returned = messages if key.has_gradient and not key.replicated else ()
        gradient_messages = [Message(m.target, m.source, m.boxes, m.part) for m in returned]
        sent = (
            [
                (m, m.elements * element_bytes * tensors_per_part(op, tiling.tiles[m.part].box))
                for m in direction
            ]
            for direction in (messages, gradient_messages)
        )
        slots = [store.messages.add(self.cluster.ordered_message_rows(listed)) for listed in sent]
        return MergeRows(
            cells,
            store.computes.add(
                self.cluster.memory_pass_rows(devices, nbytes, self.cluster.merge_rates)
            ),
            *slots,
        )

    def transfer_rows(
        self, store: RowStore, source: ValueSource, readers: Sequence[Reader]
    ) -> tuple[Slot, Slot]:
        """Returns the slots of the messages that bring a value to its readers, and of its gradient's."""
        op, output, tiled = source.op, source.output, source.tiled
        element_bytes = self.graph.values[op.outputs[output]].dtype.itemsize
        key = (
            "value", tiled.number, output, element_bytes, source.merge_key, is_local_statistics(op,
            self.bn), *((r.tiling.number, r.operand, r.sends_gradient) for r in readers),
        )  # fmt: skip

        def build() -> tuple[Slot, Slot]:
            # Readers that may need boxes of other devices. always_local: each tile of the reader reads only
            # elements that its device has computed.
            remote = [
                r for r in readers
                if source.merge_key is not None or not always_local(
                    tiled.tiling, op.space, output, r.tiling.tiling, r.op.space.operands[r.operand]
                )
            ]  # fmt: skip
            return (
                self._build_transfers(store, source, remote, element_bytes)
                if remote
                else (NOTHING, NOTHING)
            )

        return store.cached(key, build)

    def _build_transfers(
        self, store: RowStore, source: ValueSource, readers: Sequence[Reader], element_bytes: int
    ) -> tuple[Slot, Slot]:
        """Builds messages to readers that may need boxes of other devices, and gradients; returns slots."""
        # A need is a box that a device reads. By need: the box, the device, whether a gradient comes back.
        boxes, targets, sends_gradient = [], [], []
        for r in sorted(readers, key=lambda r: not r.sends_gradient):
            regions = r.tiling.regions[r.operand]
            is_needed = np.repeat(regions.needed, r.tiling.copies)
            boxes.append(np.repeat(regions.boxes, r.tiling.copies, axis=0)[is_needed])
            targets.append(r.tiling.tile_devices[is_needed])
            sends_gradient.append(np.full(int(is_needed.sum()), r.sends_gradient))
        needs, target = np.concatenate(boxes), np.concatenate(targets)
        if not len(needs):
            return NOTHING, NOTHING
        count, routes = self.cluster.count, self.cluster.routes
        forward, backward = np.zeros((2, count, count), np.int64)
        pieces, holders, holder_at = self._pieces(store, source)
        # Adds up the elements that each device sends to each other one, in `forward` and `backward`, whose
        # indices are source and target.
        fits = pair_volumes(
            count,
            pieces,
            holders,
            holder_at,
            needs,
            target,
            np.concatenate(sends_gradient),
            forward,
            backward,
        )
        assert fits, f"'{source.op.name}' is in too many pieces for a search"
        slots = []
        for volumes in (forward, backward):
            rows = np.empty((count * (count - 1), 4), np.int64)
            n = write_transfers(volumes, element_bytes, routes.bandwidth, rows)
            message_rows = self.cluster.message_rows(*rows[:n].T) if n else rows[:0, :0]
            slots.append(store.messages.add(message_rows))
        # Local statistics of batch norm must not be sent: slots[0], of the value's messages, must be empty.
        if slots[0][1] and is_local_statistics(source.op, self.bn):
            raise InputError(
                f"with bn: local, '{source.op.name}' is needed where it is not computed."
            )
        return slots[0], slots[1]

    def _pieces(self, store: RowStore, source: ValueSource) -> Pieces:
        """Returns the boxes of a value, and the devices that hold them after it was computed."""
        tiling, dims = source.tiled.tiling, source.op.space.outputs[source.output]
        if source.merge_key is not None:
            return _pack_pieces([(c.box, c.devices) for c in source.cells], len(dims))

        def build() -> Pieces:
            if isinstance(tiling, Grid) and _boxes_are_tiles(tiling, dims):
                # holder_at: the copies of a tile stand next to each other
                at = np.arange(0, len(tiling.devices) + tiling.copies, tiling.copies)
                return tile_boxes_in(tiling, dims), source.tiled.tile_devices, at
            holders = output_holders(source.op.space, tiling, source.output)
            return _pack_pieces(holders.pieces, len(dims))

        return store.cached(("pieces", source.tiled.number, source.output), build)


def _boxes_are_tiles(grid: Grid, dims: Sequence[int]) -> bool:
    """Returns whether the boxes of an output are just the tiles: it has all split dimensions, in order."""
    return list(dims) == sorted(dims) and all(
        len(cuts) == 2 or d in dims for d, cuts in enumerate(grid.cuts)
    )


def _pack_pieces(pieces: Sequence[tuple[Box, tuple[int, ...]]], rank: int) -> Pieces:
    """Returns boxes, and the devices that hold each of them, as arrays (see Pieces)."""
    boxes = np.zeros((len(pieces), rank, 2), np.int64)
    for k, (box, _) in enumerate(pieces):
        boxes[k, :, 0], boxes[k, :, 1] = box.lo, box.hi
    at = np.concatenate([[0], np.cumsum([len(devices) for _, devices in pieces])])
    return boxes, np.array([d for _, devices in pieces for d in devices], np.int64), at
