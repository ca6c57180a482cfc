"""Operators that only move elements: permutations, expansion, slices and concatenation.

    permute   y[a b c] = x[c a b]            slice   y[a b] = x[a b*2+1]
    expand    y[a b c] = x[0 b c]            cat     y[a b] = x0[a b], x1[a b-3]
    select    y[a b] = x[a 3 b]

Reshapes are in reshape.py; padding, and copies from a table of positions, in padding.py.

As in every file of ops/: `_x_notation` writes the index notation of an operator (graph/space.py) from its
signature; `_x_kernel(tile)` returns the function that computes one tile, which is a box of the operator on
a device; `_translate_x` turns an ATen call into operators of the builder `b`. `A` is torch.ops.aten.
`raise NotSplittable` makes the call an opaque operator, which is never split.
`declare` adds an operator kind with traits (traits.py), `b.emit` adds an operator to the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from raddle.graph.builder import Builder, NotSplittable, aten
from raddle.graph.graph import Value
from raddle.graph.letters import unique
from raddle.graph.operator_kind import Kernel, OperatorTile, Signature, declare
from raddle.graph.ops.padding import take
from raddle.graph.ops.pointwise import (
    broadcast_access,
    broadcast_letters,
    broadcast_shape,
    conjugate,
    pointwise,
)
from raddle.graph.traits import SavedTensors, Traits

A = torch.ops.aten


# -- permute ---------------------------------------------------------------------------


def _permute_notation(sig: Signature) -> str:
    letters = unique(sig.letters[0])
    return f"y[{' '.join(letters[d] for d in sig.attrs['dims'])}] = x[{' '.join(letters)}]"


declare(
    "permute",
    _permute_notation,
    lambda tile: lambda x: x.permute(tile.attrs["dims"]),
    Traits(SavedTensors.NOTHING, is_view=True, is_cheap=True),
    flops_per_point=0,
)


@aten("permute")
def permute(b: Builder, x: Value, dims: Sequence[int]) -> Any:
    """Adds a permutation of dimensions; dims: for each dimension of the result, the one of x."""
    dims = tuple(d % len(x.shape) for d in dims)
    shape = tuple(x.shape[d] for d in dims)
    return b.emit("permute", [x], [(shape, x.dtype)], {"dims": dims})


@aten("transpose", "swapaxes", "swapdims")
def _translate_transpose(b: Builder, x: Value, d0: int, d1: int) -> Any:
    dims = list(range(len(x.shape)))
    if not dims:
        return x
    dims[d0], dims[d1] = dims[d1], dims[d0]
    return permute(b, x, dims)


@aten("t", "mT")
def _translate_t(b: Builder, x: Value) -> Any:
    return x if len(x.shape) < 2 else _translate_transpose(b, x, -2, -1)


@aten("adjoint", "matrix_H", "mH")
def _translate_adjoint(b: Builder, x: Value) -> Any:
    y = _translate_t(b, x)
    return conjugate(b, y) if x.dtype.is_complex else y


@aten("numpy_T")
def _translate_numpy_T(b: Builder, x: Value) -> Any:
    return x if len(x.shape) < 2 else permute(b, x, range(len(x.shape))[::-1])


@aten("movedim", "moveaxis")
def _translate_movedim(b: Builder, x: Value, source: Any, destination: Any) -> Any:
    # movedim of a tensor with the sizes 1, 2, 3, ... shows where each dimension goes
    rank = len(x.shape)
    marked = torch.movedim(torch.empty(*range(1, rank + 1), device="meta"), source, destination)
    return permute(b, x, [size - 1 for size in marked.shape])


# -- expand ----------------------------------------------------------------------------


def _expand_notation(sig: Signature) -> str:
    letters = broadcast_letters(sig.shapes, sig.letters, sig.outputs[0])
    return f"y[{' '.join(letters)}] = x[{broadcast_access(sig.shapes[0], letters, sig.outputs[0])}]"


def _expand_kernel(tile: OperatorTile) -> Kernel:
    shape = tile.shape
    return lambda x: x.expand(shape)


declare(
    "expand",
    _expand_notation,
    _expand_kernel,
    Traits(SavedTensors.NOTHING, is_view=True, is_cheap=True),
    flops_per_point=0,
)


@aten("expand", "broadcast_to")
def expand(b: Builder, x: Value, sizes: Sequence[int], *_: Any, implicit: bool = False) -> Any:
    """Adds an expansion of dimensions of size 1, as Tensor.expand; -1 keeps the size of a dimension."""
    skip = len(sizes) - len(x.shape)  # number of new leading dimensions
    shape = tuple(x.shape[i - skip] if size == -1 else size for i, size in enumerate(sizes))
    return x if shape == x.shape else b.emit("expand", [x], [(shape, x.dtype)])


@aten("broadcast_tensors")
def _translate_broadcast_tensors(b: Builder, tensors: Sequence[Value]) -> Any:
    shape = broadcast_shape(*(t.shape for t in tensors))
    return tuple(expand(b, t, shape) for t in tensors)


@aten("expand_as")
def _translate_expand_as(b: Builder, x: Value, other: Value) -> Any:
    return expand(b, x, other.shape)


@aten("repeat", "tile")
def _translate_repeat(b: Builder, x: Value, repeats: Sequence[int]) -> Any:
    if 0 in repeats:
        raise NotSplittable
    repeats = [1] * (len(x.shape) - len(repeats)) + list(repeats)
    shape = [1] * (len(repeats) - len(x.shape)) + list(x.shape)
    # by dimension that is repeated, the source position of each element of the result (see `take`)
    sources = {
        d: [i % size for i in range(size * times)]
        for d, (size, times) in enumerate(zip(shape, repeats, strict=True))
        if times > 1
    }
    return take(b, b.call(A.reshape.default, x, shape), sources, "repeat")


@aten("repeat_interleave")
def _translate_repeat_interleave(
    b: Builder, x: Value, repeats: Any, dim: int | None = None, **_: Any
) -> Any:
    if not isinstance(repeats, int) or not repeats:
        raise NotSplittable
    if dim is None:
        x, dim = b.call(A.reshape.default, x, [-1]), 0
    size = x.shape[dim]
    return take(b, x, {dim % len(x.shape): [i // repeats for i in range(size * repeats)]}, "repeat")


# -- slice, select ---------------------------------------------------------------------


def _slice_notation(sig: Signature) -> str:
    letters, dim = unique(sig.letters[0]), sig.attrs["dim"]
    indices = [*letters]
    indices[dim] = f"{letters[dim]}*step+start"
    return f"y[{' '.join(letters)}] = x[{' '.join(indices)}]"


def _slice_kernel(tile: OperatorTile) -> Kernel:
    dim, step = tile.attrs["dim"], tile.attrs["step"]
    if step == 1:  # the region that the tile reads is the slice
        return lambda x: x
    index = (slice(None),) * dim + (slice(None, None, step),)
    return lambda x: x[index]


declare(
    "slice",
    _slice_notation,
    _slice_kernel,
    Traits(SavedTensors.NOTHING, is_view=True, is_cheap=True),
    flops_per_point=0,
)


@aten("slice")
def slice_(
    b: Builder,
    x: Value,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Any:
    """Adds the slice start:end:step along one dimension; returns x itself if it has all elements."""
    dim = dim % len(x.shape)
    start, end, step = slice(start, end, step).indices(x.shape[dim])
    size = max(0, -(-(end - start) // step))
    if size == x.shape[dim]:
        return x
    if size == 0:
        raise NotSplittable
    shape = (*x.shape[:dim], size, *x.shape[dim + 1 :])
    attrs = {"dim": dim, "start": start, "step": step}
    names = {"step": step, "start": start}
    return b.emit("slice", [x], [(shape, x.dtype)], attrs, integers=names)


@aten("narrow")
def _translate_narrow(b: Builder, x: Value, dim: int, start: int, length: int) -> Any:
    start = start % x.shape[dim] if start < 0 else start
    return slice_(b, x, dim, start, start + length)


def _select_notation(sig: Signature) -> str:
    dim = sig.attrs["dim"]
    letters = unique(sig.letters[0][:dim] + sig.letters[0][dim + 1 :])
    indices = [*letters[:dim], str(sig.attrs["index"]), *letters[dim:]]
    return f"y[{' '.join(letters)}] = x[{' '.join(indices)}]"


# The region that a tile reads has only the selected index, so it is at position 0.
declare(
    "select",
    _select_notation,
    lambda tile: lambda x: x.select(tile.attrs["dim"], 0),
    Traits(SavedTensors.NOTHING, is_view=True, is_cheap=True),
    flops_per_point=0,
)


@aten("select")
def select(b: Builder, x: Value, dim: int, index: int) -> Any:
    """Adds the slice at one index of a dimension, which the result does not have."""
    dim = dim % len(x.shape)
    attrs = {"dim": dim, "index": index % x.shape[dim]}
    shape = (*x.shape[:dim], *x.shape[dim + 1 :])
    return b.emit("select", [x], [(shape, x.dtype)], attrs)


# -- lists of slices -------------------------------------------------------------------


def _slices(b: Builder, x: Value, sizes: Sequence[int], dim: int) -> Any:
    """Adds consecutive slices of these sizes along `dim`; returns their values."""
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return tuple(slice_(b, x, dim, end - size, end) for size, end in zip(sizes, ends, strict=True))


@aten("split", "split_with_sizes")
def _translate_split(b: Builder, x: Value, sizes: Any, dim: int = 0) -> Any:
    total = x.shape[dim]
    if isinstance(sizes, int):
        sizes = [min(sizes, total - i) for i in range(0, total, sizes)]
    return _slices(b, x, sizes, dim)


@aten("chunk")
def _translate_chunk(b: Builder, x: Value, chunks: int, dim: int = 0) -> Any:
    return _translate_split(b, x, -(-x.shape[dim] // chunks), dim)


@aten("tensor_split")
def _translate_tensor_split(b: Builder, x: Value, sections: Any, dim: int = 0) -> Any:
    parts = torch.tensor_split(torch.arange(x.shape[dim]), sections)
    return _slices(b, x, [len(p) for p in parts], dim)


@aten("unbind")
def _translate_unbind(b: Builder, x: Value, dim: int = 0) -> Any:
    return tuple(select(b, x, dim, i) for i in range(x.shape[dim]))


# -- cat, stack ------------------------------------------------------------------------


def _cat_notation(sig: Signature) -> str:
    letters, dim = unique(sig.letters[0]), sig.attrs["dim"]
    accesses, start = [], 0
    for i, shape in enumerate(sig.shapes):
        indices = [*letters[:dim], f"{letters[dim]}-{start}", *letters[dim + 1 :]]
        accesses.append(f"x{i}[{' '.join(indices)}]")
        start += shape[dim]
    return f"y[{' '.join(letters)}] = {', '.join(accesses)}"


def _cat_kernel(tile: OperatorTile) -> Kernel:
    dim = tile.attrs["dim"]

    def run(*tensors: Tensor | None) -> Tensor:
        present = [t for t in tensors if t is not None]
        return present[0] if len(present) == 1 else torch.cat(present, dim)

    return run


declare("cat", _cat_notation, _cat_kernel, Traits(SavedTensors.NOTHING), flops_per_point=0)


@aten("cat", "concat", "concatenate")
def cat(b: Builder, tensors: Sequence[Value], dim: int = 0) -> Any:
    """Adds a concatenation along one dimension; leaves tensors without elements out."""
    tensors = [t for t in tensors if t.shape != (0,)]  # torch ignores such empty tensors
    filled = [t for t in tensors if 0 not in t.shape]
    if len({t.dtype for t in tensors}) > 1 or not filled:
        raise NotSplittable
    tensors = filled
    first, dim = tensors[0], dim % len(tensors[0].shape)
    total = sum(t.shape[dim] for t in tensors)
    shape = (*first.shape[:dim], total, *first.shape[dim + 1 :])
    return b.emit("cat", tensors, [(shape, first.dtype)], {"dim": dim})


@aten("stack")
def _translate_stack(b: Builder, tensors: Sequence[Value], dim: int = 0) -> Any:
    return cat(b, [b.call(A.unsqueeze.default, t, dim) for t in tensors], dim)


# -- replacing a part: for writes to a slice -------------------------------------------


@aten("slice_scatter")
def slice_scatter(
    b: Builder, x: Value, source: Value, dim: int = 0, start: int | None = None,
    end: int | None = None, step: int = 1,
) -> Any:  # fmt: skip
    """Adds a copy of x in which `source` replaces the slice start:end:step along one dimension."""
    dim, size = dim % len(x.shape), x.shape[dim]
    start, end, step = slice(start, end, step).indices(size)
    if step != 1:
        # The elements of x are followed by those of the source: size + k is element k of the source.
        replaced = {i: size + k for k, i in enumerate(range(start, end, step))}
        positions = [replaced.get(i, i) for i in range(size)]
        return take(b, cat(b, [x, source], dim), {dim: positions}, "slice_scatter")
    pieces = [slice_(b, x, dim, 0, start)] if start > 0 else []
    pieces.append(source)
    if end < x.shape[dim]:
        pieces.append(slice_(b, x, dim, end))
    return cat(b, pieces, dim) if len(pieces) > 1 else source


@aten("select_scatter")
def _translate_select_scatter(b: Builder, x: Value, source: Value, dim: int, index: int) -> Any:
    dim, index = dim % len(x.shape), index % x.shape[dim]
    return slice_scatter(b, x, b.call(A.unsqueeze.default, source, dim), dim, index, index + 1)


@aten("diff")
def _translate_diff(
    b: Builder, x: Value, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None
) -> Any:
    ends = [v for v in (prepend, x, append) if v is not None]
    x = cat(b, ends, dim) if len(ends) > 1 else x
    for _ in range(n):
        size = x.shape[dim]
        x = pointwise(b, A.sub.Tensor, slice_(b, x, dim, 1, size), slice_(b, x, dim, 0, size - 1))
    return x


@aten("meshgrid")
def _translate_meshgrid(b: Builder, tensors: Sequence[Value], *, indexing: str = "ij") -> Any:
    order = list(range(len(tensors)))
    if indexing == "xy" and len(order) > 1:
        order[:2] = [1, 0]
    shape = [(*tensors[d].shape, 1)[0] for d in order]  # a scalar counts as one element
    # for each tensor, its shape before the expansion: its length at its own dimension (-1), else 1
    rows = [[-1 if o == d else 1 for o in order] for d in range(len(tensors))]
    return tuple(
        expand(b, b.call(A.reshape.default, t, row), shape)
        for t, row in zip(tensors, rows, strict=True)
    )


@aten("glu")
def _translate_glu(b: Builder, x: Value, dim: int = -1) -> Any:
    value, gate = _translate_chunk(b, x, 2, dim)
    return pointwise(b, A.mul.Tensor, value, pointwise(b, A.sigmoid.default, gate))
