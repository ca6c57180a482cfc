"""Reshapes that can be split: views, flatten, squeeze, pixel shuffle.

Source and target shape are written as products of common *factors*: (4 6) -> (8 3) is
(4 (2 3)) -> ((4 2) 3).

    flatten   (n c h w) -> (n c):   y[n c] = x[n c//49 c//7%7 c%7]
    split     (n c) -> (n c a):     y[n c a] = x[n c*4+a]

So every box of the result needs a box of the source. Dimensions without common factors, as in
(4 6) -> (3 8), are never split.

As in every file of ops/: `_x_notation` writes the index notation of an operator (graph/space.py) from its
signature; `_x_kernel(tile)` returns the function that computes one tile, which is a box of the operator on
a device; `_translate_x` turns an ATen call into operators of the builder `b`. `A` is torch.ops.aten.
`raise NotSplittable` makes the call an opaque operator, which is never split.
`declare` adds an operator kind with traits (traits.py), `b.emit` adds an operator to the graph.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from raddle.graph.builder import Builder, NotSplittable, aten, infer_meta
from raddle.graph.graph import Value
from raddle.graph.letters import unique, unused_letter
from raddle.graph.operator_kind import Kernel, OperatorTile, Signature, declare
from raddle.graph.ops.shape import permute
from raddle.graph.traits import SavedTensors, Traits

A = torch.ops.aten


class Factor(NamedTuple):
    """A common factor of a source and a target dimension.

    Its value is index // stride % size, for the index and the stride of either dimension.
    """

    size: int
    source: int  # number of the source dimension
    source_stride: int  # distance of its neighbouring values in the source dimension
    target: int  # number of the target dimension
    target_stride: int  # the same in the target dimension


@cache
def factors(
    source: tuple[int, ...], target: tuple[int, ...]
) -> tuple[tuple[Factor, ...], frozenset[int]]:
    """Returns the common factors of two shapes, and the target dimensions without common factors.

    >>> [f.size for f in factors((4, 6), (8, 3))[0]]
    [4, 2, 3]
    """
    common: list[Factor] = []
    mixed: set[int] = set()  # target dimensions without common factors
    # A group is a run of source dimensions and the run of target dimensions of the same volume.
    for sources, targets in _groups(source, target):
        # ends: the strides of the group's dimensions, which are where a factor ends
        ends = sorted({*_strides(source, sources), *_strides(target, targets)}, reverse=True)
        total = math.prod(source[d] for d in sources)
        # The strides of all factors, from the largest; each must divide the one before.
        strides = [total, *[e for e in ends if e < total]]
        if any(a % b for a, b in pairwise(strides)):
            mixed.update(targets)
            continue
        for larger, smaller in zip(strides, [*strides[1:], 1], strict=True):
            if larger // smaller > 1:
                s, s_stride = _locate(source, sources, smaller)
                t, t_stride = _locate(target, targets, smaller)
                common.append(Factor(larger // smaller, s, s_stride, t, t_stride))
    return tuple(common), frozenset(mixed)


def _groups(source: Sequence[int], target: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Returns the shortest runs of source and target dimensions of equal volume, without sizes of 1."""
    source_dims = [d for d, s in enumerate(source) if s != 1]
    target_dims = [d for d, s in enumerate(target) if s != 1]
    groups = []
    while source_dims or target_dims:
        sources, targets = [source_dims.pop(0)], [target_dims.pop(0)]
        source_volume, target_volume = source[sources[0]], target[targets[0]]
        while source_volume != target_volume:
            if source_volume < target_volume:
                sources.append(source_dims.pop(0))
                source_volume *= source[sources[-1]]
            else:
                targets.append(target_dims.pop(0))
                target_volume *= target[targets[-1]]
        groups.append((sources, targets))
    return groups


def _strides(shape: Sequence[int], dims: Sequence[int]) -> list[int]:
    """Returns the stride of each of these dimensions in the tensor of these dimensions alone."""
    return [math.prod(shape[d] for d in dims[i + 1 :]) for i in range(len(dims))]


def _locate(shape: Sequence[int], dims: Sequence[int], stride: int) -> tuple[int, int]:
    """Returns the dimension that contains the factor of this stride in the group, and its stride there."""
    for d, dim_stride in zip(dims, _strides(shape, dims), strict=True):
        if dim_stride <= stride < dim_stride * shape[d]:
            return d, stride // dim_stride
    raise AssertionError((shape, dims, stride))


def _reshape_notation(sig: Signature) -> str:
    source, target = sig.shapes[0], sig.outputs[0]
    common, mixed = factors(source, target)
    letters = _target_letters(sig.letters[0], target, common, mixed)
    indices: list[list[str]] = [[] for _ in source]
    for size, s, s_stride, t, t_stride in common:
        text = letters[t] + (f"//{t_stride}" if t_stride > 1 else "")
        text += f"%{size}" if size * t_stride < target[t] else ""
        indices[s].append(text + (f"*{s_stride}" if s_stride > 1 else ""))
    tokens = [
        "+".join(terms) if terms else ("0" if size == 1 else ":")
        for terms, size in zip(indices, source, strict=True)
    ]
    return f"y[{' '.join(letters)}] = x[{' '.join(tokens)}]"


def _target_letters(
    source: str, target: Sequence[int], common: Sequence[Factor], mixed: frozenset[int]
) -> list[str]:
    """Returns the letters of the target.

    A dimension gets the source letter of its first factor, if unused.
    """
    letters = [""] * len(target)
    used: set[str] = set()
    for factor in common:
        letter = source[factor.source]
        if not letters[factor.target] and letter not in used:
            letters[factor.target] = letter
            used.add(letter)
    taken = [*source, *letters]
    for d in range(len(target)):
        if not letters[d]:
            letters[d] = unused_letter(taken)
            taken.append(letters[d])
    return [a.upper() if d in mixed else a for d, a in enumerate(unique(letters))]


def _reshape_kernel(tile: OperatorTile) -> Kernel:
    if tile.is_full:
        shape = tile.shape
        return lambda x: x.reshape(shape)
    region = tile.region(0)
    assert region is not None
    target = tuple(d.size for d in tile.op.space.dims)
    source = tuple(tile.attrs["source"])
    common, mixed = factors(source, target)
    ranges = [_factor_range(f, tile.box.lo[f.target], tile.box.hi[f.target]) for f in common]
    picks = _picks(common, ranges, region.lo, region.hi)
    positions_read = [(dim, tile.constant(positions)) for dim, positions in picks]
    # After index_select the tensor is a box of the factors, so each target dimension is a contiguous range.
    # merged_shape: its shape in target dimensions; cuts: the range of each of them that the tile needs
    merged_shape, cuts = [], []
    for t, size in enumerate(target):
        dim_factors = [(f, r) for f, r in zip(common, ranges, strict=True) if f.target == t]
        start = sum(lo * f.target_stride for f, (lo, _) in dim_factors)
        merged_shape.append(
            size if t in mixed else math.prod(hi - lo for _, (lo, hi) in dim_factors)
        )
        cuts.append(
            (tile.box.lo[t] - start, tile.box.hi[t] - start)
            if dim_factors
            else (0, merged_shape[t])
        )

    def run(x: Tensor) -> Tensor:
        for dim, positions in positions_read:
            x = x.index_select(dim, positions)
        y = x.reshape(merged_shape)
        return y[tuple(slice(lo, hi) for lo, hi in cuts)]

    return run


def _factor_range(factor: Factor, lo: int, hi: int) -> tuple[int, int]:
    """Returns the range of a factor's values over a range of its target dimension."""
    first, last = lo // factor.target_stride, (hi - 1) // factor.target_stride
    if first // factor.size == last // factor.size:
        return first % factor.size, last % factor.size + 1
    return 0, factor.size


def _picks(
    common: Sequence[Factor],
    ranges: Sequence[tuple[int, int]],
    los: Sequence[int],
    his: Sequence[int],
) -> list[tuple[int, list[int]]]:
    """Returns the positions in the region that are read, for each source dimension that is not read whole.

    ranges: of the values of each factor. los, his: the bounds of the region.
    """
    positions_read = []
    for d, (lo, hi) in enumerate(zip(los, his, strict=True)):
        dim_factors = [(f, r) for f, r in zip(common, ranges, strict=True) if f.source == d]
        if not dim_factors:
            continue
        positions = [-lo]  # positions count from the start of the region
        for f, (first, end) in dim_factors:
            positions = [p + v * f.source_stride for p in positions for v in range(first, end)]
        if len(positions) < hi - lo:
            positions_read.append((d, positions))
    return positions_read


declare(
    "reshape",
    _reshape_notation,
    _reshape_kernel,
    Traits(SavedTensors.NOTHING, is_view=True, is_cheap=True),
    flops_per_point=0,
)


def reshape(b: Builder, x: Value, shape: Sequence[int]) -> Any:
    """Adds a reshape; returns its output value. One size may be -1, as in torch."""
    shape = tuple(infer_meta(A.reshape.default, (x, list(shape)), {}).shape)
    if 0 in shape:
        raise NotSplittable
    if shape == x.shape:
        return x
    return b.emit("reshape", [x], [(shape, x.dtype)], {"source": x.shape})


@aten("view", "_unsafe_view")
def _translate_view(b: Builder, x: Value, shape: Any) -> Any:
    if isinstance(shape, torch.dtype):
        raise NotSplittable  # view(dtype) reads the bytes as another type
    return reshape(b, x, shape)


aten("reshape")(reshape)


@aten("view_as", "reshape_as")
def _translate_view_as(b: Builder, x: Value, other: Value) -> Any:
    return reshape(b, x, other.shape)


@aten("flatten")
def _translate_flatten(b: Builder, x: Value, start: int = 0, end: int = -1) -> Any:
    return reshape(b, x, infer_meta(A.flatten.using_ints, (x, start, end), {}).shape)


@aten("ravel")
def _translate_ravel(b: Builder, x: Value) -> Any:
    return reshape(b, x, [-1])


@aten("unflatten")
def _translate_unflatten(b: Builder, x: Value, dim: int, sizes: Sequence[int]) -> Any:
    return reshape(b, x, infer_meta(A.unflatten.int, (x, dim, list(sizes)), {}).shape)


@aten("unsqueeze")
def _translate_unsqueeze(b: Builder, x: Value, dim: int) -> Any:
    return reshape(b, x, infer_meta(A.unsqueeze.default, (x, dim), {}).shape)


@aten("squeeze")
def _translate_squeeze(b: Builder, x: Value, dim: Any = None) -> Any:
    dims = range(len(x.shape)) if dim is None else [dim] if isinstance(dim, int) else dim
    squeezed = {d % len(x.shape) for d in dims} if x.shape else set()
    return reshape(b, x, [s for d, s in enumerate(x.shape) if d not in squeezed or s != 1])


@aten("pixel_shuffle")
def _translate_pixel_shuffle(b: Builder, x: Value, r: int) -> Any:
    *lead, c, h, w = x.shape
    i = len(lead)
    y = reshape(b, x, [*lead, c // r**2, r, r, h, w])
    # (c r r h w) -> (c h r w r)
    y = permute(b, y, [*range(i), i, i + 3, i + 1, i + 4, i + 2])
    return reshape(b, y, [*lead, c // r**2, h * r, w * r])


@aten("pixel_unshuffle")
def _translate_pixel_unshuffle(b: Builder, x: Value, r: int) -> Any:
    *lead, c, h, w = x.shape
    i = len(lead)
    y = reshape(b, x, [*lead, c, h // r, r, w // r, r])
    # (c h r w r) -> (c r r h w)
    y = permute(b, y, [*range(i), i, i + 2, i + 4, i + 1, i + 3])
    return reshape(b, y, [*lead, c * r**2, h // r, w // r])
