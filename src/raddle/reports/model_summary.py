"""Describes a captured model layer by layer, for the table and the `--json` of `raddle models`.

A layer is consecutive operators with the same `op.layer`: the name of their composite (an LSTM, a batch
norm) or, outside of composites, the operator's own name. `op.space.full` is the operator's whole iteration
space; `work` counts the FLOPs of a box of it. A row has, for example, the keys "name", "output" (the shape)
and "flops".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from raddle.graph.graph import Graph, Op
from raddle.graph.ops import work


def describe_model(graph: Graph) -> dict[str, Any]:
    """Return the totals of a model and one row for each layer.

    `flops_*` count the operations of contractions (convolutions, matrix products, attention) as
    torch.utils.flop_counter does: a multiply-add is two operations (many papers count it as one).
    `activation_bytes` are the bytes of the values that other layers read.
    """
    layers = [list(ops) for _, ops in groupby(graph.ops, key=lambda op: op.layer)]
    differentiable = graph.differentiable()  # parameters, and the values that depend on them
    readers: dict[str, set[str]] = {}  # value -> the layers that read it
    for op in graph.ops:
        for name in op.inputs:
            readers.setdefault(name, set()).add(op.layer)
    counted_parameters: set[str] = set()
    rows = [_layer_row(graph, ops, counted_parameters, readers) for ops in layers]
    return {
        "name": graph.name,
        "batch": graph.batch,
        "params": sum(math.prod(p.shape) for p in graph.parameters),
        "flops_forward": sum(row["flops"] for row in rows),
        "flops_backward": sum(_backward_flops(op, differentiable) for op in graph.ops),
        "activation_bytes": sum(row["bytes"] for row in rows),
        "layers": rows,
        "opaque": [{"op": op.name, "kind": op.label} for op in graph.opaque_ops],
    }


def _layer_row(
    graph: Graph, ops: list[Op], counted_parameters: set[str], readers: Mapping[str, set[str]]
) -> dict[str, Any]:
    """Describe one layer. A shared parameter counts for the first layer that uses it.

    counted_parameters: those of earlier layers; this layer's are added to it. readers: for each value, the
    layers that read it. The main operator, which gives "kind", "split" and "notation", is the one with the
    layer's name, else the one with the most FLOPs.
    """
    layer = ops[0].layer
    outputs = [o for op in ops for o in op.outputs]
    # The outputs that other layers read or, if there are none, the last output.
    passed_on = [o for o in outputs if readers.get(o, set()) - {layer}] or outputs[-1:]
    new_parameters = {
        i for op in ops for i in op.inputs if graph.values[i].role == "parameter"
    } - counted_parameters
    counted_parameters |= new_parameters
    main_op = next((op for op in ops if op.name == layer), max(ops, key=_size))
    return {
        "name": layer,
        "kind": main_op.composite_kind or main_op.label,
        "output": list(graph.values[passed_on[0]].shape),
        "bytes": sum(graph.values[name].nbytes for name in passed_on),
        "params": sum(math.prod(graph.values[name].shape) for name in new_parameters),
        "flops": sum(_flops(op) for op in ops),
        "split": split_text(graph, main_op),
        "opaque": any(op.opaque for op in ops),
        "notation": main_op.notation,
    }


def split_text(graph: Graph, op: Op) -> str:
    """Return the dimensions that can be split, each with its kind: `n S, c P, h A, w A, k R`.

    S: sample, P: parameter, A: attribute (such as height and width), R: reduction (splitting it splits a
    sum). A dimension of kind "-" cannot be split.
    """
    pairs = zip(op.space.dims, graph.dim_kinds(op), strict=True)
    return ", ".join(f"{dim.name} {kind}" for dim, kind in pairs if kind != "-")


def _size(op: Op) -> tuple[int, int]:
    """Return FLOPs, then the volume of the iteration space: a key to find the largest operator."""
    return _flops(op), op.space.full.volume


def _flops(op: Op) -> int:
    """Return the FLOPs of the forward; only contractions count."""
    return work(op, op.space.full).flops if _is_contraction(op) else 0


def _backward_flops(op: Op, differentiable: set[str]) -> int:
    """Return the FLOPs of the gradients of all inputs that need one; differentiable: names of values."""
    if not _is_contraction(op):
        return 0
    grad_inputs = [i for i, name in enumerate(op.inputs) if name in differentiable]
    # With an input's number, `work` counts the computation of this input's gradient.
    return sum(work(op, op.space.full, i).flops for i in grad_inputs)


def _is_contraction(op: Op) -> bool:
    """Return whether an operator is a matrix product, a convolution or an attention."""
    # is_product: its line of notation multiplies two or more operands, as that of a convolution does.
    # family: "attention", "conv" or, for all other operators, "" (graph/traits.py).
    return op.space.is_product or op.traits.family == "attention"
