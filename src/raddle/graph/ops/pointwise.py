"""Elementwise operators with broadcasting, and operators that create tensors (zeros, arange).

Every ATen call with the tag `pointwise` is elementwise without being named here. The calls named here are
elementwise too, but have no tag.

As in every file of ops/: `_x_notation` writes the index notation of an operator (graph/space.py) from its
signature; `_x_kernel(tile)` returns the function that computes one tile, which is a box of the operator on
a device; `_translate_x` turns an ATen call into operators of the builder `b`. `A` is torch.ops.aten.
`raise NotSplittable` makes the call an opaque operator, which is never split.
`declare` adds an operator kind with traits (traits.py), `b.emit` adds an operator to the graph; its
argument `suffix` is the last part of the operator's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from raddle.graph.builder import Builder, NotSplittable, aten, infer_meta
from raddle.graph.graph import Value
from raddle.graph.letters import ALPHABET, unique
from raddle.graph.operand_refs import OperandRef, call_with_operands
from raddle.graph.operator_kind import Kernel, OperatorTile, Signature, declare
from raddle.graph.overloads import resolve_overload
from raddle.graph.traits import SavedTensors, Traits

A = torch.ops.aten


def broadcast_shape(*shapes: Sequence[int]) -> tuple[int, ...]:
    """Returns the shape of the result of an elementwise operator, by torch's rules of broadcasting."""
    return tuple(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]


def broadcast_letters(
    shapes: Sequence[Sequence[int]], letters: Sequence[str], outputs: Sequence[int]
) -> list[str]:
    """Returns the letters of a broadcast result.

    For each dimension, they come from the operand of the highest rank that is not broadcast there. shapes,
    letters: of each operand; outputs: the shape of the result.
    """
    rank = len(outputs)
    chosen = [""] * rank
    pairs = zip(shapes, letters, strict=True)  # operands with a sample dimension come first
    for shape, names in sorted(pairs, key=lambda p: (-len(p[0]), "n" not in p[1])):
        for d, size in enumerate(shape):
            position = rank - len(shape) + d
            if not chosen[position] and size == outputs[position]:
                chosen[position] = names[d]
    return unique([letter or ALPHABET[0] for letter in chosen])


def broadcast_access(shape: Sequence[int], letters: Sequence[str], outputs: Sequence[int]) -> str:
    """Returns the indices of a broadcast operand: the letters, or 0 for a dimension of size 1.

    shape: of the operand; letters and outputs: the letters and the shape of the result.
    """
    skip = len(letters) - len(shape)  # leading dimensions that the operand lacks
    pairs = zip(shape, outputs[skip:], letters[skip:], strict=True)
    return " ".join("0" if size == 1 and out != 1 else letter for size, out, letter in pairs)


def pointwise_notation(sig: Signature) -> str:
    """Returns the notation of an elementwise operator, for example y0[a b] = x0[a b], x1[0 b]."""
    out = sig.outputs[0]
    letters = broadcast_letters(sig.shapes, sig.letters, out)
    left = ", ".join(f"y{i}[{' '.join(letters)}]" for i in range(len(sig.outputs)))
    accesses = [f"x{i}[{broadcast_access(s, letters, out)}]" for i, s in enumerate(sig.shapes)]
    return f"{left} = {', '.join(accesses)}"


def _pointwise_kernel(tile: OperatorTile) -> Kernel:
    # args, kwargs: the arguments of the ATen call, with OperandRefs in place of tensors (builder.py)
    target = resolve_overload(tile.attrs["call"])
    args, kwargs = tile.attrs["args"], tile.attrs["kwargs"]
    if not kwargs and all(isinstance(a, OperandRef) and a == i for i, a in enumerate(args)):
        return target  # type: ignore[no-any-return]
    call = call_with_operands(target, args, kwargs)
    return lambda *tensors: call(tensors)


declare(
    "pointwise", pointwise_notation, _pointwise_kernel, Traits(SavedTensors.INPUTS, is_cheap=True)
)


def pointwise(b: Builder, target: Any, *args: Any, flops_per_point: int = 1, **kwargs: Any) -> Any:
    """Adds an elementwise operator; target: the ATen overload."""
    return b.pointwise(target, args, kwargs, infer_meta(target, args, kwargs), flops_per_point)


def _declare_pointwise(name: str) -> None:
    """Registers an ATen call as elementwise although it has no tag."""

    @aten(name)
    def translate(b: Builder, *args: Any, **kwargs: Any) -> Any:
        return pointwise(b, find_overload(getattr(A, name), args, kwargs), *args, **kwargs)


_SCHEMA_TYPES: dict[type, tuple[str, ...]] = {  # the names of Python types in ATen schemas
    bool: ("bool", "number"),
    int: ("int", "float", "number"),
    float: ("float", "number"),
    complex: ("number",),
    str: ("str",),
    torch.dtype: ("int",),
}


def find_overload(packet: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Returns the first overload that accepts the arguments, by their number, names and types."""
    for name in packet.overloads():
        target = getattr(packet, name)
        if "out" not in name and _accepts(target, args, kwargs):
            return target
    raise NotSplittable


def arguments_by_name(
    target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns all arguments of a call by name, with defaults for those that are left out."""
    schema = target._schema.arguments
    defaults = {a.name: a.default_value for a in schema if a.has_default_value()}
    return {**defaults, **dict(zip((a.name for a in schema), args, strict=False)), **kwargs}


def _accepts(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Returns whether an ATen overload accepts these arguments."""
    schema = {a.name: a for a in target._schema.arguments}
    by_name = arguments_by_name(target, args, kwargs)
    return (
        len(args) <= sum(not a.kwarg_only for a in schema.values())
        and by_name.keys() == schema.keys()  # none is missing, none is unknown
        and all(_matches_type(value, str(schema[name].type)) for name, value in by_name.items())
    )


def _matches_type(value: Any, kind: str) -> bool:
    """Returns whether a type of an ATen schema (kind, such as `Optional[List[int]]`) accepts a value."""
    if value is None:
        return kind.startswith("Optional")
    if isinstance(value, (list, tuple)):
        return "List" in kind and all(_matches_type(v, kind.replace("List", "")) for v in value)
    if isinstance(value, Value):
        return "Tensor" in kind and "List" not in kind
    return any(k in kind for k in _SCHEMA_TYPES.get(type(value), ()))


for _name in [
    "detach",
    "hardswish",
    "log_sigmoid",
    "floor_divide",
    "rsub",
    "divide",
    "multiply",
    "subtract",
    "special_expit",
    "greater",
    "less",
    "__and__",
    "__or__",
    "__xor__",
    "where",
    "real",
    "imag",
    "complex",
    "polar",
    "resolve_conj",
    "resolve_neg",
]:
    _declare_pointwise(_name)


# -- copies and conversions ------------------------------------------------------------


@aten("clone", "contiguous", "alias", "lift_fresh", "lift_fresh_copy")
def _identity(b: Builder, x: Value, *_: Any) -> Value:
    return x  # values never change, so a copy is the value itself


@aten("_conj", "_conj_physical")
def conjugate(b: Builder, x: Value) -> Any:
    """Computes the conjugate: torch would only set a bit of the tensor, which is lost in a transfer."""
    return pointwise(b, A.conj_physical.default, x)


@aten("_neg_view")
def _translate_negative(b: Builder, x: Value) -> Any:
    return pointwise(b, A.neg.default, x)


@aten("to", "_to_copy", "type_as")
def cast(b: Builder, x: Value, *args: Any, dtype: torch.dtype | None = None) -> Any:
    """Adds a conversion to another type; devices among the arguments are ignored."""
    for a in args:
        dtype = a if isinstance(a, torch.dtype) else a.dtype if isinstance(a, Value) else dtype
    if dtype is None or dtype == x.dtype:
        return x
    attrs = {"call": "_to_copy.default", "args": (OperandRef(0),), "kwargs": {"dtype": dtype}}
    return b.emit("pointwise", [x], [(x.shape, dtype)], attrs, flops_per_point=0, suffix="to")


@aten("copy")
def _translate_copy(b: Builder, x: Value, source: Value, *_: Any) -> Any:
    return b.call(A.expand.default, cast(b, source, x.dtype), list(x.shape))


@aten("masked_fill")
def _translate_masked_fill(b: Builder, x: Value, mask: Value, value: Any) -> Any:
    target = A.masked_fill.Tensor if isinstance(value, Value) else A.masked_fill.Scalar
    return pointwise(b, target, x, mask, value)


def _prelu_notation(sig: Signature) -> str:
    letters = unique(sig.letters[0])
    weight = letters[1] if len(letters) > 1 and sig.shapes[1] != (1,) else "0"
    return f"y[{' '.join(letters)}] = x[{' '.join(letters)}], w[{weight}]"


declare(
    "prelu",
    _prelu_notation,
    lambda tile: lambda x, w: torch.prelu(x, w),
    Traits(SavedTensors.INPUTS),
)


@aten("prelu")
def _translate_prelu(b: Builder, x: Value, weight: Value) -> Any:
    return b.emit("prelu", [x, weight], [(x.shape, x.dtype)])


# -- triangles: the diagonal is given in coordinates of the whole tensor ---------------


def _triangle_kernel(tile: OperatorTile) -> Kernel:
    row, column = tile.box.lo[-2:]
    diagonal = tile.attrs["diagonal"] + row - column
    function = torch.tril if tile.attrs["lower"] else torch.triu
    return lambda x: function(x, diagonal)


declare(
    "triangle",
    pointwise_notation,
    _triangle_kernel,
    Traits(SavedTensors.NOTHING, is_cheap=True),
    flops_per_point=0,
)


@aten("tril")
def _translate_tril(b: Builder, x: Value, diagonal: int = 0) -> Any:
    attrs = {"diagonal": diagonal, "lower": True}
    return b.emit("triangle", [x], [(x.shape, x.dtype)], attrs, suffix="tril")


@aten("triu")
def _translate_triu(b: Builder, x: Value, diagonal: int = 0) -> Any:
    attrs = {"diagonal": diagonal, "lower": False}
    return b.emit("triangle", [x], [(x.shape, x.dtype)], attrs, suffix="triu")


# -- operators that create tensors -----------------------------------------------------


def _created_notation(sig: Signature) -> str:
    # attribute "letters": set by recurrent.py alone, so that initial states can be split like the input
    return f"y[{' '.join(sig.attrs.get('letters') or unique(ALPHABET[: len(sig.outputs[0])]))}] ="


def _full_kernel(tile: OperatorTile) -> Kernel:
    return lambda: tile.full(tile.attrs["value"])


def _arange_kernel(tile: OperatorTile) -> Kernel:
    (lo,), (hi,) = tile.box
    start, step = tile.attrs["start"], tile.attrs["step"]
    dtype, device = tile.op.dtypes[0], tile.device
    # As torch computes it: start + i * step for each i, not a running sum.
    return lambda: torch.arange(lo, hi, device=device).to(dtype) * step + start


declare(
    "full",
    _created_notation,
    _full_kernel,
    Traits(SavedTensors.NOTHING, is_cheap=True),
    flops_per_point=0,
)
declare(
    "arange",
    _created_notation,
    _arange_kernel,
    Traits(SavedTensors.NOTHING, is_cheap=True),
    flops_per_point=0,
)


def full(
    b: Builder,
    shape: Sequence[int],
    value: float,
    dtype: torch.dtype | None,
    suffix: str | None = None,
) -> Any:
    """Adds a tensor filled with one value."""
    dtype = dtype or torch.get_default_dtype()
    return b.emit("full", [], [(tuple(shape), dtype)], {"value": value}, suffix=suffix)


@aten("zeros", "new_zeros", "empty", "new_empty")
def _translate_zeros(b: Builder, *args: Any, dtype: torch.dtype | None = None) -> Any:
    source = args[0] if isinstance(args[0], Value) else None
    return full(b, args[-1], 0, dtype or (source.dtype if source else None), "zeros")


@aten("ones", "new_ones")
def _translate_ones(b: Builder, *args: Any, dtype: torch.dtype | None = None) -> Any:
    source = args[0] if isinstance(args[0], Value) else None
    return full(b, args[-1], 1, dtype or (source.dtype if source else None), "ones")


@aten("full", "new_full")
def _translate_new_full(b: Builder, *args: Any, dtype: torch.dtype | None = None) -> Any:
    source = args[0] if isinstance(args[0], Value) else None
    shape, value = args[-2:]
    default = infer_meta(A.full.default, (shape, value), {}).dtype
    return full(b, shape, value, dtype or (source.dtype if source else default), "full")


@aten("zeros_like", "empty_like", "zero")
def _translate_zeros_like(b: Builder, x: Value, *, dtype: torch.dtype | None = None) -> Any:
    return full(b, x.shape, 0, dtype or x.dtype, "zeros")


@aten("ones_like")
def _translate_ones_like(b: Builder, x: Value, *, dtype: torch.dtype | None = None) -> Any:
    return full(b, x.shape, 1, dtype or x.dtype, "ones")


@aten("full_like", "fill")
def _translate_full_like(
    b: Builder, x: Value, value: Any, *, dtype: torch.dtype | None = None
) -> Any:
    if isinstance(value, Value):
        return _translate_copy(b, x, value)
    return full(b, x.shape, value, dtype or x.dtype, "full")


@aten("scalar_tensor")
def _translate_scalar_tensor(b: Builder, value: float, *, dtype: torch.dtype | None = None) -> Any:
    return full(b, (), value, dtype, "scalar")


@aten("arange")
def _translate_arange(b: Builder, *bounds: Any, dtype: torch.dtype | None = None) -> Any:
    start, end, step = {1: (0, *bounds, 1), 2: (*bounds, 1), 3: bounds}[len(bounds)]
    result = infer_meta(A.arange.start_step, (start, end, step), {"dtype": dtype, "device": None})
    attrs = {"start": start, "step": step}
    return b.emit("arange", [], [(result.shape, result.dtype)], attrs)
