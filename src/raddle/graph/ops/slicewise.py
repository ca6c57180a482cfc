"""ATen calls that compute slices of their operands independently of each other.

    slicewise   y[a.. V b..] = x[a.. V b..], i[a.. : b..]     scatter: what is written along V is anywhere

A translator writes the notation: a small letter is a dimension of independent slices, which can be split,
as the batch of a Fourier transform. A capital letter and `:` are dimensions that the call needs whole. A
tile makes the same call with the regions that it reads. Used by scatter.py, fourier.py and patches.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raddle.graph.builder import Builder, infer_meta, stored_arguments
from raddle.graph.graph import Value
from raddle.graph.operand_refs import call_with_operands
from raddle.graph.operator_kind import Kernel, OperatorTile, declare
from raddle.graph.overloads import call_name, resolve_overload
from raddle.graph.traits import SavedTensors, Traits


def _slicewise_kernel(tile: OperatorTile) -> Kernel:
    target = resolve_overload(tile.attrs["call"])
    call = call_with_operands(target, tile.attrs["args"], tile.attrs["kwargs"])
    return lambda *tensors: call(tensors)


declare(
    "slicewise",
    lambda sig: str(sig.attrs["notation"]),
    _slicewise_kernel,
    Traits(SavedTensors.INPUTS),
)


def emit_slicewise(
    b: Builder, target: Any, args: Sequence[Any], notation: str, *,
    flops_per_point: int = 1, kwargs: Mapping[str, Any] | None = None,
) -> Any:  # fmt: skip
    """Adds an ATen call that returns one tensor; its operands are the values in `args`, in this order."""
    operands: list[Value] = []
    template = stored_arguments((tuple(args), kwargs or {}), operands)
    attrs = {
        "call": call_name(target), "args": template[0], "kwargs": template[1], "notation": notation
    }  # fmt: skip
    result = infer_meta(target, args, kwargs or {})
    outputs = [(result.shape, result.dtype)]
    suffix = target._schema.name.split("::")[1]
    return b.emit(
        "slicewise", operands, outputs, attrs, flops_per_point=flops_per_point, suffix=suffix
    )


def access(name: str, letters: Sequence[str]) -> str:
    """Returns an operand with its indices, for example x[n c].

    >>> access("x", ["n", "c"])
    'x[n c]'
    """
    return f"{name}[{' '.join(letters)}]"
