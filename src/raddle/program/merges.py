"""Decides where the partial results of an operator are merged, and which messages bring them there.

A tile that covers only a part of a reduced dimension (the k of a matrix product, say) gives a partial
result. The output is divided into cells; each cell is merged, on one or more devices, from the parts of all
tiles that contribute to it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from raddle.errors import InputError
from raddle.graph.box import Box, cells, grid, merge_boxes
from raddle.graph.graph import Op
from raddle.plans.tiling import Grid, Tiling
from raddle.program.program import Cell, Message
from raddle.program.replicated_loss import SMALL_RESULT


def is_local_statistics(op: Op, bn: str) -> bool:
    """Returns whether an operator takes mean and variance of each tile alone (batch norm, `bn: local`)."""
    # moments: the operator that computes mean and variance
    return bn == "local" and op.kind == "moments" and op.composite_kind == "batch_norm"


def is_partial(op: Op, tiling: Tiling, bn: str) -> bool:
    """Returns whether tiles split a reduced dimension, so that their results have to be merged.

    bn: over which samples batch norm takes its statistics (plans/plan.py).
    """
    if not op.space.combine:  # how partial results are combined; "": nothing is reduced
        return False
    if isinstance(tiling, Grid):
        # Two cut points, 0 and the size: not split.
        if all(len(tiling.cuts[d]) == 2 for d in op.space.reduced_dims):
            return False
    elif not any(op.space.is_partial(box) for box in tiling.boxes):
        return False
    if not is_local_statistics(op, bn):
        return True
    # Local batch statistics are not merged: those of each tile count as a copy of the result.
    if len(set(tiling.devices)) == len(tiling.devices):
        return False
    outputs_and_devices = [(op.space.output_boxes(t.box)[0], t.device) for t in tiling.tiles]
    if len(set(outputs_and_devices)) < len(outputs_and_devices):
        raise InputError(
            f"with bn: local, '{op.name}' may have one tile of the samples per device: "
            "use bn: global, or fewer tiles."
        )
    return False


def refuse_statistics_of_one_value(op: Op, tiling: Tiling, bn: str) -> None:
    """Raises InputError, as PyTorch does in training, if a batch norm takes the variance of one value."""
    if is_local_statistics(op, bn) and any(_values_per_channel(op, b) == 1 for b in tiling.boxes):
        raise InputError(
            f"with bn: local, a device has one value of each channel of '{op.name}', and one value has no "
            "variance: use bn: global, a larger batch, or fewer devices."
        )


def _values_per_channel(op: Op, box: Box) -> int:
    """Returns from how many values the box takes each mean and variance."""
    return math.prod(box.hi[d] - box.lo[d] for d in op.space.reduced_dims)


def place_merge(
    op: Op,
    tiling: Tiling,
    readers: Sequence[int],
    element_bytes: int,
    *,
    replicated: bool,
    sums: Tiling | None = None,
) -> tuple[tuple[Cell, ...], tuple[Message, ...]]:
    """Returns the cells of an operator's output, and the messages that bring the parts to their devices.

    readers: the devices of its consumers. element_bytes: bytes of an element of the result. replicated:
    whether every device merges the result, because it belongs to a replicated loss (replicated_loss.py).
    sums: a tiling that says where cells are merged, if the plan has one for the operator; not used if
    replicated.
    """
    tiles = tiling.tiles
    first_copy: dict[Box, int] = {}  # if a tile has copies, only the first contributes
    for number, tile in enumerate(tiles):
        first_copy.setdefault(tile.box, number)
    counted_tiles = list(first_copy.values())
    # By counted tile, the box of the output that it contributes to.
    output_boxes = [op.space.output_boxes(tiles[i].box)[0] for i in counted_tiles]
    merged_cells: list[Cell] = []
    messages: dict[tuple[int, int, int], list[Box]] = {}  # by source, target and part
    # Disjoint boxes, each with the positions in `counted_tiles` of the tiles that contribute to it.
    for box, positions in cells(output_boxes):
        parts = tuple(counted_tiles[position] for position in positions)  # tile numbers
        # The devices that have a part of this box.
        owners = tuple(dict.fromkeys(tiles[i].device for i in parts))
        if replicated and not readers:  # the loss itself
            merged_cells.append(Cell(box, parts, tuple(sorted(set(tiling.devices)))))
        elif sums is not None and not replicated:
            merged_cells += _cells_of_plan(op, box, parts, sums)
        elif len(owners) == 1 and not replicated:
            merged_cells.append(Cell(box, parts, owners))
        elif box.volume * element_bytes <= SMALL_RESULT:  # merged on every device that reads it
            merged_cells.append(Cell(box, parts, tuple(readers) or owners[:1]))
        else:  # each owner merges one piece: a reduce-scatter
            merged_cells += [
                Cell(piece, parts, (owner,))
                for piece, owner in zip(split_longest_dim(box, len(owners)), owners, strict=False)
            ]
    for cell in merged_cells:
        for target in cell.devices:
            for part in cell.parts:
                if tiles[part].device != target:
                    messages.setdefault((tiles[part].device, target, part), []).append(cell.box)
    return tuple(merged_cells), tuple(
        Message(s, t, tuple(merge_boxes(boxes)), part)
        for (s, t, part), boxes in sorted(messages.items())
    )


def _cells_of_plan(op: Op, box: Box, parts: tuple[int, ...], sums: Tiling) -> list[Cell]:
    """Cuts a box into the cells that `plan.sums` asks for.

    A tile of `sums` is a cell on a device; if it has copies, the device of each copy merges the cell.
    parts: the numbers of the tiles that contribute to the box.
    """
    devices: dict[Box, list[int]] = {}  # by cell, those that merge it
    for tile in sums.tiles:
        devices.setdefault(op.space.output_boxes(tile.box)[0], []).append(tile.device)
    pieces = [(box & output, tuple(mergers)) for output, mergers in devices.items()]
    return [Cell(piece, parts, mergers) for piece, mergers in pieces if not piece.empty]


def merged_bytes(cell: Cell, element_bytes: int) -> int:
    """Returns the bytes that a merge reads and writes in memory: the parts of the cell, and the result."""
    return (len(cell.parts) + 1) * cell.box.volume * element_bytes


def longest_dim(shape: Sequence[int]) -> int:
    """Returns the longest dimension: a large result is divided along it among the devices that merge it."""
    return max(range(len(shape)), key=lambda d: shape[d])


def split_longest_dim(box: Box, count: int) -> list[Box]:
    """Cuts a box into at most `count` parts along its longest dimension."""
    shape = box.shape
    dim = longest_dim(shape)
    parts = min(count, shape[dim])
    pieces = grid(shape, [parts if d == dim else 1 for d in range(len(shape))])
    return [piece.shift(box.lo) for piece in pieces]
