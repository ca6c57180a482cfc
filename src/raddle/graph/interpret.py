"""Runs a graph in one process, box by box: the reference that tests compare every other execution with.

All dropout is exact: its masks do not depend on the boxes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from raddle.graph.box import Box, cells
from raddle.graph.graph import FusedCall, Graph, Op
from raddle.graph.ops import make_kernel, merge_partials
from raddle.graph.ops.attention import with_exact_dropout
from raddle.graph.ops.fused import FUSED_KERNELS

Pieces = list[tuple[Box, Tensor]]  # disjoint boxes that cover a value, each with its elements


def interpret(
    graph: Graph,
    tensors: Mapping[str, Tensor],
    *,
    tiles: Mapping[str, Sequence[Box]] | None = None,
    seed: int = 0,
    fuse: bool = True,
) -> dict[str, Tensor]:
    """Runs a step; returns the loss, the outputs and the updated buffers by the names of their values.

    tensors: inputs, parameters and buffers by name. tiles: for some operators, boxes that partition their
    iteration space; the others run as one box. seed: of the random numbers of dropout. fuse: a composite
    (such as the operators of a batch norm) without tiles runs as one native call.
    """
    tiles = tiles or {}
    device = next((t.device for t in tensors.values()), torch.device("cpu"))
    pieces: dict[str, Pieces] = {}
    for name, value in graph.values.items():
        if value.role == "seed":
            pieces[name] = [(Box((), ()), torch.tensor(seed, device=device))]
        elif value.role == "constant":
            pieces[name] = [(Box.full(value.shape), graph.constants[name].to(device))]
        elif value.role != "op":
            pieces[name] = [(Box.full(value.shape), tensors[name])]
    # fused_at: the native calls to make, by the operator at whose place they run
    fused_at, replaced = _untiled_fused_calls(graph, tiles) if fuse else ({}, set())
    for op in graph.ops:
        if op.name in fused_at:
            _run_fused(fused_at[op.name], pieces, graph)
        elif op.name not in replaced:
            _run_op(op, list(tiles.get(op.name, [op.space.full])), pieces, device)
    result_names = [*graph.outputs, *graph.updates.values(), *([graph.loss] if graph.loss else [])]
    return {
        name: assemble(pieces[name], Box.full(graph.values[name].shape)) for name in result_names
    }


def _untiled_fused_calls(
    graph: Graph, tiles: Mapping[str, Sequence[Box]]
) -> tuple[dict[str, FusedCall], set[str]]:
    """Returns the fused calls without tiles, by their last operator, and the operators they replace."""
    untiled = [f for f in graph.fused_calls if f.ops and not any(op in tiles for op in f.ops)]
    return {f.ops[-1]: f for f in untiled}, {op for f in untiled for op in f.ops}


def _run_fused(fused: FusedCall, pieces: dict[str, Pieces], graph: Graph) -> None:
    arguments = [
        None if name is None else assemble(pieces[name], Box.full(graph.values[name].shape))
        for name in fused.inputs
    ]
    results = FUSED_KERNELS[fused.kind](fused.attrs)(*arguments)
    for name, tensor in zip(fused.outputs, results, strict=True):
        if name is not None:
            pieces[name] = [(Box.full(tensor.shape), tensor)]


def _run_op(op: Op, boxes: Sequence[Box], pieces: dict[str, Pieces], device: torch.device) -> None:
    """Runs every box of an operator, then combines partial results."""
    results = []
    for box in boxes:
        regions = op.space.regions(box)
        arguments = [
            None if region is None else assemble(pieces[name], region)
            for name, region in zip(op.inputs, regions, strict=True)
        ]
        results.append(make_kernel(with_exact_dropout(op), box, device)(*arguments))
    # for each box of the iteration space, the box of each output that it computes
    produced = [op.space.output_boxes(box) for box in boxes]
    for name in op.outputs:
        pieces[name] = []
    if not any(op.space.is_partial(box) for box in boxes):
        for output_boxes, tensors in zip(produced, results, strict=True):
            for name, output_box, tensor in zip(op.outputs, output_boxes, tensors, strict=True):
                pieces[name].append((output_box, tensor))
        return
    # Partial results overlap. A cell is a box of the output; its owners are the numbers of the boxes that
    # have a part of its sum.
    for cell, owners in cells([output_boxes[0] for output_boxes in produced]):
        parts = [tuple(t[cell.slices_within(produced[i][0])] for t in results[i]) for i in owners]
        complete = len(owners) == 1 and not op.space.is_partial(boxes[owners[0]])
        tensors = parts[0] if complete else merge_partials(op, parts, [boxes[i] for i in owners])
        for name, tensor in zip(op.outputs, tensors, strict=True):
            pieces[name].append((cell, tensor))


def assemble(pieces: Pieces, region: Box) -> Tensor:
    """Returns a region of a value, assembled from the pieces that overlap it."""
    overlapping = [(box, tensor) for box, tensor in pieces if not (box & region).empty]
    if len(overlapping) == 1:
        box, tensor = overlapping[0]
        return tensor if box == region else tensor[region.slices_within(box)]
    first = overlapping[0][1]
    result = torch.zeros(region.shape, dtype=first.dtype, device=first.device)
    for box, tensor in overlapping:
        common = box & region
        result[common.slices_within(region)] = tensor[common.slices_within(box)]
    return result
