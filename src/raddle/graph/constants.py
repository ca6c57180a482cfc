"""Evaluates constant values while a graph is built.

A value is constant here if operators compute it from numbers alone: from no input, parameter, buffer or
random number, nor from a tensor that the module uses without having registered it as a parameter or buffer
(role "constant" in graph.py). Libraries compute attention masks and positions in this way, from `arange`
and `full`. Such a value is the same in every step. A translator of an ATen call may look at its elements
and choose a better operator, such as causal attention in place of attention with a mask.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from raddle.graph.box import Box
from raddle.graph.builder import Builder
from raddle.graph.graph import Op, Value
from raddle.graph.operator_kind import make_kernel

# Values with more elements are not evaluated: they would take too much memory.
MAX_ELEMENTS = 2**28


def constant_value(b: Builder, value: Value) -> Tensor | None:
    """Returns the elements of a value, on the CPU; None: it is not constant, or too large."""
    ops = _constant_ancestors(b, value)
    if ops is None:
        return None
    tensors: dict[str, Tensor] = {}
    with torch.no_grad():
        for op in ops:
            regions = op.space.regions(op.space.full)
            arguments = [
                None
                if region is None
                else tensors[name][region.slices_within(Box.full(tensors[name].shape))]
                for name, region in zip(op.inputs, regions, strict=True)
            ]
            results = make_kernel(op, op.space.full)(*arguments)
            tensors.update(zip(op.outputs, results, strict=True))
    return tensors[value.name]


def _constant_ancestors(b: Builder, value: Value) -> list[Op] | None:
    """Returns the operators that compute a value, in order; None: it is not constant, or too large."""
    needed, ops = {value.name}, []
    for op in reversed(b.ops):
        if needed.isdisjoint(op.outputs):
            continue
        # An opaque operator may be random. A large one costs too much memory.
        if op.kind == "opaque" or any(
            math.prod(b.values[o].shape) > MAX_ELEMENTS for o in op.outputs
        ):
            return None
        needed.update(op.inputs)
        ops.append(op)
    if any(b.values[name].role != "op" for name in needed):
        return None
    return ops[::-1]
