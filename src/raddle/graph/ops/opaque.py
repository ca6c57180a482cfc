"""Opaque operators: ATen calls that run as they are and are never split.

A call is opaque if no file of ops/ translates it, or none translates it with these arguments.

`_opaque_notation` writes the index notation of an operator (graph/space.py) from its signature: capital
letters are dimensions that are never split, `:` reads a whole dimension. `_opaque_kernel` returns the
function that computes the operator; `declare` adds the operator kind with its traits (traits.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raddle.errors import InputError
from raddle.graph.dtypes import carries_gradient, resolve_conj_and_neg
from raddle.graph.operand_refs import call_with_operands
from raddle.graph.operator_kind import Kernel, OperatorTile, Signature, declare
from raddle.graph.overloads import resolve_overload
from raddle.graph.traits import SavedTensors, Traits

_CAPITALS = (
    "ABCDEFGHIJKLMOPQRSTUVWXYZ"  # without N, which could be mistaken for n, the sample dimension
)


def _letters(shape: Sequence[int], sizes: dict[str, int]) -> list[str]:
    """Returns letters for an output. No dimension is ever split, so dimensions of one size may share one.

    sizes: by letter used so far, its size; new letters are added to it.
    """
    chosen: list[str] = []
    for size in shape:
        free = (a for a in _CAPITALS if a not in chosen and sizes.get(a, size) == size)
        letter = next(free, None)
        if letter is None:
            raise InputError(
                f"a call returns tensors with more than {len(_CAPITALS)} different dimensions, "
                "which cannot be captured: make it several calls."
            )
        sizes[letter] = size
        chosen.append(letter)
    return chosen


def _opaque_notation(sig: Signature) -> str:
    sizes: dict[str, int] = {}
    outputs = [" ".join(_letters(shape, sizes)) for shape in sig.outputs]
    left = ", ".join(f"y{i}[{o}]" for i, o in enumerate(outputs))
    right = ", ".join(f"x{i}[{' '.join(':' for _ in s)}]" for i, s in enumerate(sig.shapes))
    return f"{left} = {right}"


def _opaque_kernel(tile: OperatorTile) -> Kernel:
    """Returns a function that makes the stored ATen call; the tile is always the whole operator.

    `Builder.opaque` stores the attributes: "args" and "kwargs" have OperandRefs in place of tensors,
    "outputs" has the positions of the results that are tensors, "single" is False if the call returns a
    list.
    """
    target = resolve_overload(tile.attrs["call"])
    output_indices, single = tile.attrs["outputs"], tile.attrs["single"]
    takes_device = any(a.name == "device" for a in target._schema.arguments)
    # whether torch may conjugate or negate a result lazily (resolve_conj_and_neg)
    may_be_lazy = any(carries_gradient(dtype) for dtype in tile.op.dtypes)
    device_argument: dict[str, Any] = {"device": tile.device} if takes_device else {}
    kwargs = {**tile.attrs["kwargs"], **device_argument}
    call = call_with_operands(target, tile.attrs["args"], kwargs)

    def run(*tensors: Any) -> Any:
        result = call(tensors)
        results = (result,) if single else tuple(result[i] for i in output_indices)
        return tuple(resolve_conj_and_neg(t) for t in results) if may_be_lazy else results

    return run


declare("opaque", _opaque_notation, _opaque_kernel, Traits(SavedTensors.BOTH), flops_per_point=0)
