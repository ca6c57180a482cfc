"""Decomposes a composite ATen call into the calls by which torch computes it.

torch.export keeps such calls, as `triplet_margin_loss`. torch has no backward for them: their gradient is
that of the calls inside. A trace does not show what torch computes without a gradient, so only those calls
are decomposed whose gradients are tested (tests/graph/test_decompose.py).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg

from raddle.graph.graph import Value
from raddle.graph.operand_refs import call_with_operands

DECOMPOSED = frozenset(
    (
        "kron",
        "linalg_norm",
        "pairwise_distance",
        "take_along_dim",
        "triplet_margin_loss",
    )
)


def decompose(
    translate: Callable[..., Any], target: Any, args: Sequence[Any], kwargs: Mapping[str, Any],
    operands: Sequence[Value],
) -> Any:  # fmt: skip
    """Translates the calls of which a composite call consists; returns its values.

    translate: translates one ATen call. args, kwargs: with OperandRefs in place of the operands.
    """
    call = call_with_operands(target, args, kwargs)
    meta = [torch.empty(v.shape, dtype=v.dtype, device="meta") for v in operands]
    traced = make_fx(lambda *tensors: call(tensors))(*meta)
    values: dict[Any, Any] = {}
    inputs = iter(operands)
    for node in traced.graph.nodes:
        if node.op == "placeholder":
            values[node] = next(inputs)
        elif node.op == "output":
            return map_arg(node.args[0], values.__getitem__)
        elif node.op == "get_attr":  # a number that the composite call made
            constant: Tensor = getattr(traced, node.target)
            values[node] = translate(torch.ops.aten.scalar_tensor.default, constant.item())
        elif node.target is operator.getitem:
            values[node] = values[node.args[0]][node.args[1]]
        else:
            arguments = map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = translate(node.target, *arguments[0], **arguments[1])
    raise AssertionError("a traced function has an output")
