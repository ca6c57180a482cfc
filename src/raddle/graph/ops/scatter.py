"""Operators that write at positions given by a tensor: scatter, index_add, index_put and their relatives.

    scatter     y[a.. V b..] = x[a.. V b..], i[a.. : b..], s[a.. : b..]
    index_add   y[a.. V b..] = x[a.. V b..], i[:], s[a.. : b..]
    index_put   y[a.. V.. b..] = x[a.. V.. b..], i[: ..], s[a.. : .. b..]

x has the old elements, i the positions along V, s what is written. The positions are known only at run
time, so V is never split. `x[mask] = number` has the shape of x, and is an elementwise operator.

As in every file of ops/: index notation is explained in graph/space.py; `_translate_x` turns an ATen call
into operators of the builder `b`. `A` is torch.ops.aten. `raise NotSplittable` makes the call an opaque
operator, which is never split. `emit_slicewise` is explained in slicewise.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from raddle.graph.builder import Builder, NotSplittable, aten
from raddle.graph.graph import Value
from raddle.graph.letters import unique
from raddle.graph.ops.pointwise import broadcast_shape, find_overload
from raddle.graph.ops.shape import slice_
from raddle.graph.ops.slicewise import access, emit_slicewise

A = torch.ops.aten


def _scatter(
    b: Builder, name: str, x: Value, dim: int, index: Value, source: Any, *args: Any, **kwargs: Any
) -> Any:
    """Adds a scatter; source: a Value, or a number for all positions."""
    if not x.shape:
        raise NotSplittable
    dim = dim % len(x.shape)
    letters = unique(x.letters)
    # A dimension of which the positions are only a part is taken whole, as the one that is written along.
    whole = {d for d, size in enumerate(x.shape) if d == dim or index.shape[d] != size}
    written = [letter.upper() if d in whole else letter for d, letter in enumerate(letters)]
    read = [":" if d in whole else letter for d, letter in enumerate(letters)]
    accesses = [access("x", written), access("i", read)]
    if isinstance(source, Value):
        for d, size in enumerate(index.shape):  # a source may be larger than its positions
            source = slice_(b, source, d, 0, size)
        accesses.append(access("s", read))
    target = find_overload(getattr(A, name), (x, dim, index, source, *args), kwargs)
    notation = f"{access('y', written)} = {', '.join(accesses)}"
    return emit_slicewise(b, target, (x, dim, index, source, *args), notation, kwargs=kwargs)


@aten("scatter")
def _translate_scatter(b: Builder, x: Value, dim: int, index: Value, source: Any) -> Any:
    return _scatter(b, "scatter", x, dim, index, source)


@aten("scatter_add")
def _translate_scatter_add(b: Builder, x: Value, dim: int, index: Value, source: Value) -> Any:
    return _scatter(b, "scatter_add", x, dim, index, source)


@aten("scatter_reduce")
def _translate_scatter_reduce(
    b: Builder, x: Value, dim: int, index: Value, source: Value, reduce: str, *,
    include_self: bool = True,
) -> Any:  # fmt: skip
    return _scatter(b, "scatter_reduce", x, dim, index, source, reduce, include_self=include_self)


def _index_write(
    b: Builder, name: str, x: Value, dim: int, index: Value, source: Any, **kwargs: Any
) -> Any:
    """Adds index_add, index_copy or index_fill; source: a Value, or a number for all positions."""
    if not x.shape:
        raise NotSplittable
    dim = dim % len(x.shape)
    letters = unique(x.letters)
    written = [letter.upper() if d == dim else letter for d, letter in enumerate(letters)]
    accesses = [access("x", written), access("i", [":"] * len(index.shape))]
    if isinstance(source, Value):
        read = [":" if d == dim else letter for d, letter in enumerate(letters)]
        if len(source.shape) != len(x.shape):  # one number, as a tensor
            read = [":"] * len(source.shape)
        accesses.append(access("s", read))
    target = find_overload(getattr(A, name), (x, dim, index, source), kwargs)
    notation = f"{access('y', written)} = {', '.join(accesses)}"
    return emit_slicewise(b, target, (x, dim, index, source), notation, kwargs=kwargs)


@aten("index_add")
def _translate_index_add(
    b: Builder, x: Value, dim: int, index: Value, source: Value, *, alpha: float = 1
) -> Any:
    return _index_write(b, "index_add", x, dim, index, source, alpha=alpha)


@aten("index_copy")
def _translate_index_copy(b: Builder, x: Value, dim: int, index: Value, source: Value) -> Any:
    return _index_write(b, "index_copy", x, dim, index, source)


@aten("index_fill")
def _translate_index_fill(b: Builder, x: Value, dim: int, index: Value, value: Any) -> Any:
    return _index_write(b, "index_fill", x, dim, index, value)


# -- x[i] = s --------------------------------------------------------------------------


@aten("index_put", "_unsafe_index_put")
def _translate_index_put(
    b: Builder, x: Value, indices: Sequence[Value | None], source: Value, accumulate: bool = False
) -> Any:
    chosen = [i for i in indices if i is not None]
    first = next(d for d, i in enumerate(indices) if i is not None)
    if chosen[0].dtype in (torch.bool, torch.uint8):
        if len(chosen) > 1:
            raise NotSplittable
        return _masked_put(b, x, first, chosen[0], source, accumulate)
    if any(i is None for i in indices[first : first + len(chosen)]):
        raise NotSplittable  # torch moves the dimensions of the indices to the front
    return _index_put(b, x, first, chosen, source, accumulate)


def _masked_put(
    b: Builder, x: Value, first: int, mask: Value, source: Value, accumulate: bool
) -> Any:
    """Adds x[mask] = source, where all positions get the same elements."""
    after = x.shape[first + len(mask.shape) :]  # the dimensions after those of the mask
    # source broadcasts to (number of positions, *after)
    if first or (len(source.shape) > len(after) and source.shape[: -len(after) or None] != (1,)):
        raise NotSplittable
    if len(source.shape) > len(after):
        source = b.call(A.reshape.default, source, list(source.shape[1:]))
    mask = b.call(A.reshape.default, mask, [*mask.shape, *[1] * len(after)])
    written = b.call(A.add.Tensor, x, source) if accumulate else source
    return b.call(A.where.self, mask, written, x)


def _index_put(
    b: Builder, x: Value, first: int, indices: Sequence[Value], source: Value, accumulate: bool
) -> Any:
    """Adds a write at positions of consecutive dimensions, the first of which is `first`."""
    end = first + len(indices)
    letters = unique(x.letters)
    written = [a.upper() if first <= d < end else a for d, a in enumerate(letters)]
    middle = broadcast_shape(*(i.shape for i in indices))
    shape = (*x.shape[:first], *middle, *x.shape[end:])  # to which the source broadcasts
    indexed = [*letters[:first], *[":"] * len(middle), *letters[end:]]
    skip = len(shape) - len(source.shape)
    read = [
        "0" if size == 1 and full != 1 else letter
        for size, full, letter in zip(source.shape, shape[skip:], indexed[skip:], strict=True)
    ]
    accesses = [
        access("x", written),
        *(access(f"i{k}", [":"] * len(i.shape)) for k, i in enumerate(indices)),
        access("s", read),
    ]
    notation = f"{access('y', written)} = {', '.join(accesses)}"
    positions = [*[None] * first, *indices]
    args = (x, positions, source, accumulate)
    return emit_slicewise(b, A.index_put.default, args, notation)
