"""Pools: maximum and average, with strides, padding, dilation and ceil mode, and adaptive pools.

max_pool   y[n c h w] = x[n c h*s0+R*d0-p0 w*s1+Q*d1-p1]      borders are padded with -inf
avg_pool   the same, a sum; its divisor depends on the border
adaptive   y[n c h w] = x[n c window0(h) window1(w)]

s0, d0 and p0 are stride, dilation and padding of the first spatial dimension. The spatial dimensions are
d h w (depth, height, width); T R Q are those of the window. window0(h) is entry h of a table of ranges
(index.py).

As in every file of ops/: index notation is explained in graph/space.py; `_x_kernel(tile)` returns the
function that computes one tile, which is a box of the operator on a device; `_translate_x` turns an ATen
call into operators of the builder `b`. `A` is torch.ops.aten.
`raise NotSplittable` makes the call an opaque operator, which is never split.
`declare` adds an operator kind with traits (traits.py), `b.emit` adds an operator to the graph.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from raddle.graph.builder import Builder, NotSplittable, aten, infer_meta
from raddle.graph.graph import Value
from raddle.graph.operator_kind import Kernel, OperatorTile, declare, int_per_dim, numbered_integers
from raddle.graph.ops.conv import choose_padding
from raddle.graph.traits import SavedTensors, Traits

A = torch.ops.aten
POOL_NOTATION = {
    1: "y[n c w] = x[n c w*s0+R*d0-p0]",
    2: "y[n c h w] = x[n c h*s0+R*d0-p0 w*s1+Q*d1-p1]",
    3: "y[n c d h w] = x[n c d*s0+T*d0-p0 h*s1+R*d1-p1 w*s2+Q*d2-p2]",
}
ADAPTIVE_NOTATION = {
    1: "y[n c w] = x[n c window0(w)]",
    2: "y[n c h w] = x[n c window0(h) window1(w)]",
    3: "y[n c d h w] = x[n c window0(d) window1(h) window2(w)]",
}
WINDOW_LETTERS = {1: "R", 2: "RQ", 3: "TRQ"}


def _max_pool_kernel(tile: OperatorTile) -> Kernel:
    kernel, stride, dilation = (tile.attrs[k] for k in ("kernel", "stride", "dilation"))
    call: Any = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[len(kernel) - 1]
    padding, explicit_padding = _pool_padding(tile, kernel, stride)

    def run(x: Tensor) -> Tensor:
        x = F.pad(x, explicit_padding, value=-math.inf) if explicit_padding else x
        return call(x, kernel, stride, padding, dilation)  # type: ignore[no-any-return]

    return run


def _pool_padding(tile: OperatorTile, kernel: Any, stride: Any) -> tuple[list[int], list[int]]:
    """Returns the padding for the pool's argument and that for F.pad, as `choose_padding` (conv.py) does.

    F.pad does all of it if the pool refuses: it pads by at most half its window, and avg_pool3d pads no
    input that is smaller than the window.
    """
    pads, region = tile.pads(0)[2:], tile.region(0)
    assert region is not None
    padding, explicit_padding = choose_padding(pads, stride)
    sizes = zip(padding, kernel, region.shape[2:], strict=True)
    if any(p > k // 2 or (p and size < k) for p, k, size in sizes):
        padding, explicit_padding = [0] * len(kernel), [a for pair in reversed(pads) for a in pair]
    return padding, explicit_padding


def _avg_pool_kernel(tile: OperatorTile) -> Kernel:
    kernel, stride = tile.attrs["kernel"], tile.attrs["stride"]
    rank = len(kernel)
    call: Any = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[rank - 1]
    padding, explicit_padding = _pool_padding(tile, kernel, stride)
    out = tile.op.space.output_boxes(tile.box)[0]
    # The pool divides by the whole window; these factors correct it at the borders. "counts" has, for each
    # spatial dimension and output position, a factor of the right divisor (_divisor).
    factors = [[math.prod(kernel) / c for c in tile.attrs["counts"][0][out.lo[2] : out.hi[2]]]]
    for i in range(1, rank):
        factors.append([1 / c for c in tile.attrs["counts"][i][out.lo[2 + i] : out.hi[2 + i]]])
    uniform = all(math.isclose(math.prod(f), 1) for f in _corners(factors))
    scales = [] if uniform else [tile.constant(factor, torch.float64) for factor in factors]

    def run(x: Tensor) -> Tensor:
        y: Tensor = call(
            F.pad(x, explicit_padding) if explicit_padding else x, kernel, stride, padding
        )
        for i, scale in enumerate(scales):
            y = y * scale.to(y.dtype).view(-1, *[1] * (rank - 1 - i))
        return y

    return run


def _corners(factors: Sequence[Sequence[float]]) -> list[tuple[float, ...]]:
    """Returns all combinations of the smallest and the largest factor of each dimension.

    If their products are 1, so are the products of all other combinations.
    """
    corners: list[tuple[float, ...]] = [()]
    for values in factors:
        corners = [(*c, v) for c in corners for v in (min(values), max(values))]
    return corners


for _rank in (1, 2, 3):
    declare(
        f"max_pool{_rank}d",
        POOL_NOTATION[_rank],
        _max_pool_kernel,
        # 8 bytes for the index of each maximum; strided: windows may ignore the input's last elements
        Traits(SavedTensors.INPUTS, extra_saved_bytes=8, strided=True),
    )
    declare(
        f"avg_pool{_rank}d",
        POOL_NOTATION[_rank],
        _avg_pool_kernel,
        Traits(SavedTensors.INPUTS, strided=True),
    )


def _batched(b: Builder, x: Value, rank: int, function: Any) -> Any:
    """Applies a pool; an input without a sample dimension is treated as a batch of one."""
    if len(x.shape) == rank + 2:
        return function(x)
    return b.call(A.squeeze.dim, function(b.call(A.unsqueeze.default, x, 0)), 0)


@aten("max_pool1d", "max_pool2d", "max_pool3d")
def _translate_max_pool(
    b: Builder, x: Value, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:  # fmt: skip
    rank = len(x.shape) - 2 if not isinstance(kernel, (list, tuple)) else len(kernel)
    kernel, padding, dilation = (int_per_dim(v, rank) for v in (kernel, padding, dilation))
    stride = int_per_dim(stride, rank) if stride else kernel
    target = (A.max_pool1d.default, A.max_pool2d.default, A.max_pool3d.default)[rank - 1]
    attrs = {"kernel": kernel, "stride": stride, "dilation": dilation}
    integers = numbered_integers(s=stride, d=dilation, p=padding) | dict(
        zip(WINDOW_LETTERS[rank], kernel, strict=True)
    )

    def emit(v: Value) -> Any:
        result = infer_meta(target, (v, kernel, stride, padding, dilation, ceil_mode), {})
        return b.emit(f"max_pool{rank}d", [v], [(result.shape, v.dtype)], attrs, integers=integers)

    return _batched(b, x, rank, emit)


@aten("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _translate_avg_pool(
    b: Builder, x: Value, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Any:  # fmt: skip
    rank = len(x.shape) - 2 if not isinstance(kernel, (list, tuple)) else len(kernel)
    kernel, padding = int_per_dim(kernel, rank), int_per_dim(padding, rank)
    stride = int_per_dim(stride, rank) if stride else kernel
    target = (A.avg_pool1d.default, A.avg_pool2d.default, A.avg_pool3d.default)[rank - 1]

    def emit(v: Value) -> Any:
        shape = infer_meta(target, (v, kernel, stride, padding, ceil_mode), {}).shape
        counts = [
            [_divisor(i, k, s, p, size, count_padding=count_include_pad) for i in range(out)]
            for k, s, p, size, out in zip(
                kernel, stride, padding, v.shape[2:], shape[2:], strict=True
            )
        ]
        if divisor_override:
            counts = [[divisor_override if i == 0 else 1] * len(c) for i, c in enumerate(counts)]
        attrs = {"kernel": kernel, "stride": stride, "counts": tuple(map(tuple, counts))}
        integers = numbered_integers(s=stride, d=(1,) * rank, p=padding) | dict(
            zip(WINDOW_LETTERS[rank], kernel, strict=True)
        )
        return b.emit(f"avg_pool{rank}d", [v], [(shape, v.dtype)], attrs, integers=integers)

    return _batched(b, x, rank, emit)


def _divisor(i: int, k: int, s: int, p: int, size: int, *, count_padding: bool) -> int:
    """Returns the factor of one dimension in the divisor of an average, as in torch.

    i, k, s, p: number, size, stride and padding of the window. size: of the input. count_padding: whether
    elements of the padding count.
    """
    begin = i * s - p
    end = min(begin + k, size + p)
    return end - begin if count_padding else min(end, size) - max(begin, 0)


# -- adaptive --------------------------------------------------------------------------


def _windows(size: int, out: int) -> list[tuple[int, int]]:
    """Returns the window of each output element of an adaptive pool, along one dimension."""
    return [(i * size // out, -(-(i + 1) * size // out)) for i in range(out)]


def _adaptive_kernel(tile: OperatorTile) -> Kernel:
    """Returns the kernel of an adaptive pool.

    It is one native pool if all windows have the same size; else it computes window by window.

    Attributes: "sizes" has the input and output size of each spatial dimension; "largest" is True for the
    maximum, False for the average.
    """
    sizes, largest = tile.attrs["sizes"], tile.attrs["largest"]
    out, region = tile.op.space.output_boxes(tile.box)[0], tile.region(0)
    assert region is not None
    rank = len(sizes)
    if all(size % o == 0 for size, o in sizes):
        if not largest:  # not F.avg_pool3d, which has no float16 on CPUs
            mean: Any = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)
            return lambda x: mean[rank - 1](x, out.shape[2:])
        kernel = [size // o for size, o in sizes]
        pools: Any = (F.max_pool1d, F.max_pool2d, F.max_pool3d)
        return lambda x: pools[rank - 1](x, kernel, kernel)
    spans = [
        [
            (lo - region.lo[2 + i], hi - region.lo[2 + i])
            for lo, hi in _windows(*sizes[i])[out.lo[2 + i] : out.hi[2 + i]]
        ]
        for i in range(rank)
    ]

    def run(x: Tensor) -> Tensor:
        # The last dimension first: of equal maxima, the first in row-major order wins, as in torch.
        for i, windows in reversed(list(enumerate(spans))):
            parts = [x.narrow(2 + i, lo, hi - lo) for lo, hi in windows]
            parts = [
                p.max(2 + i, keepdim=True)[0] if largest else p.mean(2 + i, keepdim=True)
                for p in parts
            ]
            x = torch.cat(parts, 2 + i)
        return x

    return run


for _rank in (1, 2, 3):
    declare(
        f"adaptive_pool{_rank}d",
        ADAPTIVE_NOTATION[_rank],
        _adaptive_kernel,
        Traits(SavedTensors.INPUTS),
    )


def adaptive_pool(b: Builder, x: Value, output: Any, *, largest: bool, rank: int) -> Any:
    """Adds an adaptive pool; largest: the maximum, else the average."""
    outputs = int_per_dim(output, rank)

    def emit(v: Value) -> Any:
        sizes = tuple((s, s if o is None else o) for s, o in zip(v.shape[2:], outputs, strict=True))
        shape = (*v.shape[:2], *(o for _, o in sizes))
        tables = {f"window{i}": _windows(*pair) for i, pair in enumerate(sizes)}
        attrs = {"sizes": sizes, "largest": largest}
        flops_per_point = math.prod(-(-s // o) for s, o in sizes)
        kind = f"adaptive_pool{rank}d"
        return b.emit(
            kind, [v], [(shape, v.dtype)], attrs, tables=tables, flops_per_point=flops_per_point
        )

    return _batched(b, x, rank, emit)


@aten("adaptive_avg_pool1d")
def _translate_adaptive_avg1(b: Builder, x: Value, output: Any) -> Any:
    return adaptive_pool(b, x, output, largest=False, rank=1)


@aten("adaptive_avg_pool2d", "_adaptive_avg_pool2d")
def _translate_adaptive_avg2(b: Builder, x: Value, output: Any) -> Any:
    return adaptive_pool(b, x, output, largest=False, rank=2)


@aten("adaptive_avg_pool3d", "_adaptive_avg_pool3d")
def _translate_adaptive_avg3(b: Builder, x: Value, output: Any) -> Any:
    return adaptive_pool(b, x, output, largest=False, rank=3)


def _declare_adaptive_max(rank: int) -> None:
    @aten(f"adaptive_max_pool{rank}d")
    def translate(b: Builder, x: Value, output: Any) -> Any:
        if b.used_outputs != {0}:
            raise NotSplittable  # the model uses the indices of the maxima
        return adaptive_pool(b, x, output, largest=True, rank=rank), None


for _rank in (1, 2, 3):
    _declare_adaptive_max(_rank)
