"""Interpolation: along each dimension, an output element is a weighted sum of input elements (*taps*).

interpolate    y[n c h w] = x[n c taps0(h) taps1(w)]
grid_sampler   y[n c h w] = x[n c : :], grid[n h w :]      at positions that are data

As in every file of ops/: index notation is explained in graph/space.py; `_x_kernel(tile)` returns the
function that computes one tile, which is a box of the operator on a device; `_translate_x` turns an ATen
call into operators of the builder `b`. `A` is torch.ops.aten.
`declare` adds an operator kind with traits (traits.py), `b.emit` adds an operator to the graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from raddle.graph.builder import Builder, aten
from raddle.graph.graph import Value
from raddle.graph.operator_kind import Kernel, OperatorTile, Signature, declare, int_per_dim
from raddle.graph.ops.norm import accumulation_dtype
from raddle.graph.ops.slicewise import access, emit_slicewise
from raddle.graph.traits import SavedTensors, Traits

A = torch.ops.aten
# For each output element: the weight of each input element that it reads, by position.
Taps = list[dict[int, float]]


def _interpolate_notation(sig: Signature) -> str:
    spatial = {1: "w", 2: "hw", 3: "dhw"}[len(sig.outputs[0]) - 2]
    indices = " ".join(f"taps{i}({a})" for i, a in enumerate(spatial))
    return f"y[n c {' '.join(spatial)}] = x[n c {indices}]"


def _interpolate_kernel(tile: OperatorTile) -> Kernel:
    out, region = tile.op.space.output_boxes(tile.box)[0], tile.region(0)
    assert region is not None
    # Column k has the k-th tap of every output element: positions in the region, and weights.
    # attrs["taps"]: by spatial dimension and output element, its taps as pairs (position, weight).
    dtype, columns_by_dim = tile.op.dtypes[0], []
    for i, taps in enumerate(tile.attrs["taps"]):
        box_taps = [list(t) for t in taps[out.lo[2 + i] : out.hi[2 + i]]]
        width = max(len(t) for t in box_taps)
        padded = [t + [(t[0][0], 0.0)] * (width - len(t)) for t in box_taps]
        columns_by_dim.append(
            [
                (
                    tile.constant([p[k][0] - region.lo[2 + i] for p in padded]),
                    tile.constant([p[k][1] for p in padded], torch.float64)
                    if any(p[k][1] != 1 for p in padded)
                    else None,
                )
                for k in range(width)
            ]
        )

    def run(x: Tensor) -> Tensor:
        x = x.to(accumulation_dtype(dtype))
        for i, columns in enumerate(columns_by_dim):
            total: Tensor | None = None
            for index, weight in columns:
                part = x.index_select(2 + i, index)
                if weight is not None:
                    scale = weight.to(x.dtype)
                    part = part * scale.view(-1, *[1] * (len(columns_by_dim) - 1 - i))
                total = part if total is None else total + part
            assert total is not None
            x = total
        return x.to(dtype)

    return run


declare(
    "interpolate",
    _interpolate_notation,
    _interpolate_kernel,
    Traits(SavedTensors.NOTHING),
    flops_per_point=2,
)


def _nearest_2d(size: int, out: int, scale: float | None) -> Taps:
    """Returns the taps along one dimension of upsample_nearest2d.

    There torch ignores the scale of a dimension whose size stays the same or doubles.
    """
    return _nearest_taps(size, out, None if out in (size, 2 * size) else scale, exact=False)


def _nearest_taps(size: int, out: int, scale: float | None, exact: bool) -> Taps:
    """Returns the taps of nearest-neighbour interpolation: one element each.

    exact: torch's mode "nearest-exact", which starts from the middle of an element. In all functions here:
    size, out: the numbers of input and output elements; scale: the factor that the call gives, None for
    out / size.
    """
    # torch computes the position in float32, for every type of tensor
    ratio = torch.tensor(1 / scale if scale else size / out, dtype=torch.float32)
    output_positions = torch.arange(out, dtype=torch.float32) + (0.5 if exact else 0.0)
    return [{min(int(i), size - 1): 1.0} for i in (output_positions * ratio).floor().tolist()]


def _position(i: int, size: int, out: int, scale: float | None, align_corners: bool) -> float:
    """Returns the position of output element i in the input, in general between two elements."""
    if align_corners:
        return i * (size - 1) / (out - 1) if out > 1 else 0.0
    return (i + 0.5) * (1 / scale if scale else size / out) - 0.5


def _linear_taps(size: int, out: int, scale: float | None, align_corners: bool) -> Taps:
    """Returns the taps of linear interpolation: the two nearest elements."""
    if out == size:  # a copy, for any scale
        return [{i: 1.0} for i in range(size)]
    taps: Taps = []
    for i in range(out):
        position = max(0.0, _position(i, size, out, scale, align_corners))
        low = min(int(position), size - 1)
        fraction = min(max(position - low, 0.0), 1.0)
        taps.append(_collect([(low, 1 - fraction), (min(low + 1, size - 1), fraction)]))
    return taps


def _keys_weight(x: float, a: float) -> float:
    """Returns the weight at a distance x in Keys' cubic convolution with parameter a."""
    x = abs(x)
    if x <= 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return ((x - 5) * x + 8) * x * a - 4 * a if x < 2 else 0.0


def _cubic_taps(size: int, out: int, scale: float | None, align_corners: bool) -> Taps:
    """Returns the taps of cubic interpolation: the four nearest elements."""
    taps: Taps = []
    for i in range(out):
        position = _position(i, size, out, scale, align_corners)
        low = math.floor(position)
        pairs = [
            (min(max(j, 0), size - 1), _keys_weight(position - j, -0.75))
            for j in range(low - 1, low + 3)
        ]
        taps.append(_collect(pairs))
    return taps


def _antialiased(reach: float, weight: Callable[[float], float]) -> Callable[..., Taps]:
    """Returns a function like `_linear_taps` for interpolation with antialiasing.

    A filter that is as wide as the output elements averages the input elements below it. reach: where the
    filter ends, in input elements; weight(distance): its height.
    """

    def taps_of(size: int, out: int, scale: float | None, align_corners: bool) -> Taps:
        if align_corners:
            ratio = (size - 1) / (out - 1) if out > 1 else 0.0
        else:
            ratio = 1 / scale if scale else size / out
        width = max(ratio, 1.0)  # of the filter: it is not narrowed where the image grows
        taps: Taps = []
        for i in range(out):
            center = ratio * (i + 0.5)
            low = max(int(center - reach * width + 0.5), 0)
            high = min(int(center + reach * width + 0.5), size)
            weights = [weight((j - center + 0.5) / width) for j in range(low, high)]
            total = sum(weights)
            taps.append(_collect([(low + k, v / total) for k, v in enumerate(weights)]))
        return taps

    return taps_of


def _collect(pairs: Sequence[tuple[int, float]]) -> dict[int, float]:
    """Returns the sum of weights for each position; a tap of weight 0 is not read."""
    weights: dict[int, float] = {}
    for index, weight in pairs:
        if weight:
            weights[index] = weights.get(index, 0.0) + weight
    return weights


def _interpolate(b: Builder, x: Value, output: Any, scales: Any, taps_of: Any) -> Any:
    """Adds an interpolation. taps_of(size, output size, scale) -> Taps of one dimension."""
    rank = len(x.shape) - 2
    scales = [None] * rank if scales is None else [None if s is None else float(s) for s in scales]
    if output is None:
        output = [math.floor(s * f) for s, f in zip(x.shape[2:], scales, strict=True)]
    sizes = list(zip(x.shape[2:], int_per_dim(output, rank), scales, strict=True))
    taps_by_dim = [taps_of(size, out, scale) for size, out, scale in sizes]
    tables = {
        f"taps{i}": [(min(t), max(t) + 1) for t in taps] for i, taps in enumerate(taps_by_dim)
    }
    attrs = {"taps": tuple(tuple(tuple(sorted(t.items())) for t in taps) for taps in taps_by_dim)}
    shape = (*x.shape[:2], *(len(taps) for taps in taps_by_dim))
    return b.emit("interpolate", [x], [(shape, x.dtype)], attrs, tables=tables)


def _arguments(args: Sequence[Any]) -> tuple[Any, bool, Any]:
    """Returns output sizes, align_corners and scales, from either overload (default, vec) of the call."""
    output, *others = args
    align_corners = others.pop(0) if others and isinstance(others[0], bool) else False
    scales: Any = None
    if others and any(scale is not None for scale in others):
        # overload vec has one list of scales, overload default a scale for each dimension
        scales = others[0] if isinstance(others[0], (list, tuple)) else others
    return output, align_corners, scales


def _declare_upsample(name: str, taps_of: Any) -> None:
    """Registers an ATen call; taps_of(size, output size, scale, align_corners) -> Taps."""

    @aten(name)
    def translate(b: Builder, x: Value, *args: Any) -> Any:
        output, align_corners, scales = _arguments(args)
        return _interpolate(b, x, output, scales, lambda s, o, f: taps_of(s, o, f, align_corners))


# s, o, f below: size, output size, scale factor
for _rank in (1, 3):
    _declare_upsample(
        f"upsample_nearest{_rank}d", lambda s, o, f, _: _nearest_taps(s, o, f, exact=False)
    )
_declare_upsample("upsample_nearest2d", lambda s, o, f, _: _nearest_2d(s, o, f))
for _rank in (1, 2, 3):
    _declare_upsample(
        f"_upsample_nearest_exact{_rank}d", lambda s, o, f, _: _nearest_taps(s, o, f, exact=True)
    )
for _name in ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"):
    _declare_upsample(_name, _linear_taps)
_declare_upsample("upsample_bicubic2d", _cubic_taps)
# torch has another parameter of the cubic convolution with antialiasing than without.
_declare_upsample("_upsample_bicubic2d_aa", _antialiased(2.0, lambda x: _keys_weight(x, -0.5)))
_declare_upsample("_upsample_bilinear2d_aa", _antialiased(1.0, lambda x: max(0.0, 1.0 - abs(x))))


@aten("grid_sampler")
def _translate_grid_sampler(
    b: Builder, x: Value, grid: Value, mode: int, padding: int, align_corners: bool
) -> Any:
    spatial = list("hw" if len(x.shape) == 4 else "dhw")
    accesses = [
        access("x", ["n", "c", *":" * len(spatial)]),
        access("grid", ["n", *spatial, ":"]),
    ]
    notation = f"{access('y', ['n', 'c', *spatial])} = {', '.join(accesses)}"
    args = (x, grid, mode, padding, align_corners)
    # A sum of 2 elements along each dimension, with a weight for each
    flops = 2 * 2 ** len(spatial)
    return emit_slicewise(b, A.grid_sampler.default, args, notation, flops_per_point=flops)
