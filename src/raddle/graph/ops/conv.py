"""Convolutions and transposed convolutions of one to three dimensions: strided, dilated, grouped.

cg and kg are the numbers of filters and of input channels of a group; without groups c//cg is 0. s0, d0 and
p0 are stride, dilation and padding of the first spatial dimension, s1, d1 and p1 those of the second. The
spatial dimensions are d h w (depth, height, width); T R Q are those of the window. w[...] is the weight.

As in every file of ops/: index notation is explained in graph/space.py; `_x_kernel(tile)` returns the
function that computes one tile, which is a box of the operator on a device; `_translate_x` turns an ATen
call into operators of the builder `b`. `A` is torch.ops.aten.
`declare` adds an operator kind with traits (traits.py); `b.emit` adds an operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from raddle.graph.box import Box
from raddle.graph.builder import Builder, aten
from raddle.graph.graph import Op, Value
from raddle.graph.operator_kind import Kernel, OperatorTile, declare, int_per_dim, numbered_integers
from raddle.graph.traits import SavedTensors, Traits

A = torch.ops.aten
CONV_NOTATION = {
    1: "y[n c w] += x[n c//cg*kg+k w*s0+R*d0-p0] * w[c k R] + b[c]",
    2: "y[n c h w] += x[n c//cg*kg+k h*s0+R*d0-p0 w*s1+Q*d1-p1] * w[c k R Q] + b[c]",
    3: "y[n c d h w] += x[n c//cg*kg+k d*s0+T*d0-p0 h*s1+R*d1-p1 w*s2+Q*d2-p2] * w[c k T R Q] + b[c]",
}
TRANSPOSED_NOTATION = {
    1: "y[n c w] += x[n c//cg*kg+k (w-R*d0+p0)/s0] * w[c//cg*kg+k c%cg R] + b[c]",
    2: "y[n c h w] += x[n c//cg*kg+k (h-R*d0+p0)/s0 (w-Q*d1+p1)/s1] * w[c//cg*kg+k c%cg R Q] + b[c]",
    3: "y[n c d h w] += x[n c//cg*kg+k (d-T*d0+p0)/s0 (h-R*d1+p1)/s1 (w-Q*d2+p2)/s2]"
    " * w[c//cg*kg+k c%cg T R Q] + b[c]",
}


def choose_padding(
    pads: Sequence[tuple[int, int]], stride: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Returns the padding to give to the call itself, and that for F.pad (last dimension first).

    pads: the padding below (lo) and above (hi) for each dimension. The call would pad by lo on both sides.
    If lo exceeds hi by less than a stride, no further window fits, so F.pad is not needed.
    """
    if all(0 <= lo - hi < s for (lo, hi), s in zip(pads, stride, strict=True)):
        return [lo for lo, _ in pads], []
    return [0] * len(pads), [amount for pair in reversed(pads) for amount in pair]


def _conv_kernel(tile: OperatorTile) -> Kernel:
    stride, dilation = tile.attrs["stride"], tile.attrs["dilation"]
    if tile.region(0) is None:  # the box reads nothing but padding
        return _only_bias(tile)
    call: Callable[..., Tensor] = (F.conv1d, F.conv2d, F.conv3d)[len(stride) - 1]
    padding, explicit_padding = choose_padding(tile.pads(0)[2:], stride)
    by_group = _grouped_call(tile, lambda x, w, g: call(x, w, None, stride, padding, dilation, g))

    def run(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
        x = F.pad(x, explicit_padding) if explicit_padding else x
        if by_group is None:
            return call(x, w, b, stride, padding, dilation, 1)
        return _with_bias(by_group(x, w), b)

    return run


def _transposed_kernel(tile: OperatorTile) -> Kernel:
    stride, dilation, padding = (tile.attrs[k] for k in ("stride", "dilation", "padding"))
    region, weight = tile.region(0), tile.region(1)
    if region is None or weight is None:
        return _only_bias(tile)
    rank = len(stride)
    call: Callable[..., Tensor] = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[
        rank - 1
    ]
    out = tile.op.space.output_boxes(tile.box)[0]
    # The full result of a region starts at lo*s and ends at (hi-1)*s + (r-1)*d + 1 (s: stride, d: dilation,
    # r: size of the window). crops: amounts for F.pad; a negative amount cuts elements off.
    crops = []
    for i in range(rank):
        lo, hi, r = region.lo[2 + i], region.hi[2 + i], weight.shape[2 + i]
        begin, end = lo * stride[i], (hi - 1) * stride[i] + (r - 1) * dilation[i] + 1
        crops.append((begin - out.lo[2 + i] - padding[i], out.hi[2 + i] + padding[i] - end))
    crop = [amount for pair in reversed(crops) for amount in pair]
    by_group = _grouped_call(
        tile, lambda x, w, g: call(x, w, None, stride, 0, 0, g, dilation), transposed=True
    )

    def run(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
        if by_group is None and not any(crop):
            return call(x, w, b, stride, 0, 0, 1, dilation)
        y = by_group(x, w) if by_group else call(x, w, None, stride, 0, 0, 1, dilation)
        return _with_bias(F.pad(y, crop) if any(crop) else y, b)

    return run


def _transposed_flops(op: Op, box: Box, operand: int | None) -> int:
    """Returns the FLOPs of a box: each input element is multiplied with each element of the window.

    operand: None for the forward, else the operand whose gradient is computed; both take the same FLOPs.
    The gradient of the bias (operand 2) counts as none.
    """
    space = op.space
    region = space.regions(box)[0]
    if region is None or (operand is not None and operand > 1):
        return 0
    size = {d.name: hi - lo for d, lo, hi in zip(space.dims, box.lo, box.hi, strict=True)}
    window = math.prod(size[name] for name in "TRQ" if name in size)
    return 2 * size["n"] * size["c"] * size["k"] * window * math.prod(region.shape[2:])


def _grouped_call(
    tile: OperatorTile, call: Callable[[Tensor, Tensor, int], Tensor], transposed: bool = False
) -> Callable[[Tensor, Tensor], Tensor] | None:
    """Returns a function that runs a grouped convolution for a box of filters; None if there is one group.

    The box may begin and end inside a group. call(x, w, groups): the convolution. transposed: the weight's
    dimension 0 is the input channels, not the filters.
    """
    if tile.attrs["groups"] == 1:
        return None
    cg, kg = tile.attrs["cg"], tile.attrs["kg"]
    (c0, c1), (k0, k1) = tile.range("c"), tile.range("k")
    # groups g0 to g1 - 1; kn: input channels of the box, in each group
    g0, g1, kn = c0 // cg, (c1 - 1) // cg + 1, k1 - k0
    # Runs of groups with equally many filters of the box: part of a group, full groups, part of a group.
    runs: list[list[int]] = []  # filters per group, number of groups, first filter in its group
    for g in range(g0, g1):
        lo, hi = max(c0, g * cg), min(c1, (g + 1) * cg)
        if runs and runs[-1][0] == hi - lo == cg:
            runs[-1][1] += 1
        else:
            runs.append([hi - lo, 1, lo - g * cg])
    has_gaps = kn < kg and g1 - g0 > 1  # the region has channels that are not read
    read_channels = [g * kg + k for g in range(g1 - g0) for k in range(kn)] if has_gaps else []
    index = tile.constant(read_channels) if read_channels else None
    # If transposed: the first filter, counted within its group, of the weight's region (its dimension 1).
    column0 = c0 % cg if g1 - g0 == 1 else 0

    def run(x: Tensor, w: Tensor) -> Tensor:
        if index is not None:
            x = x.index_select(1, index)
            w = w.index_select(0, index) if transposed else w
        pieces, first_group, first_filter = [], 0, 0
        for filters, groups, begin in runs:
            xs = x.narrow(1, first_group * kn, groups * kn)
            if transposed:
                ws = w.narrow(0, first_group * kn, groups * kn).narrow(1, begin - column0, filters)
            else:
                ws = w.narrow(0, first_filter, groups * filters)
            pieces.append(call(xs, ws, groups))
            first_group, first_filter = first_group + groups, first_filter + groups * filters
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1)

    return run


def _with_bias(y: Tensor, b: Tensor | None) -> Tensor:
    """Adds the bias, in the dtype of y: under autocast, a float32 bias would make the sum float32."""
    return y if b is None else y + b.to(y.dtype).view(-1, *[1] * (y.dim() - 2))


def _only_bias(tile: OperatorTile) -> Kernel:
    """Returns the kernel of a tile that reads nothing but padding: zeros plus the bias."""
    return lambda x=None, w=None, b=None: _with_bias(tile.full(0), b)


for _rank in (1, 2, 3):
    declare(
        f"conv{_rank}d",
        CONV_NOTATION[_rank],
        _conv_kernel,
        # strided: windows may ignore the input's last elements
        Traits(SavedTensors.INPUTS, family="conv", strided=True),
    )
    declare(
        f"conv_transpose{_rank}d",
        TRANSPOSED_NOTATION[_rank],
        _transposed_kernel,
        Traits(SavedTensors.INPUTS, family="conv"),  # its stride is that of the output
        flops=_transposed_flops,
    )


@aten("conv1d", "conv2d", "conv3d")
def _translate_conv(
    b: Builder,
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    rank = len(weight.shape) - 2
    stride, dilation = int_per_dim(stride, rank), int_per_dim(dilation, rank)
    kernel = weight.shape[2:]
    if isinstance(padding, str):
        total = [
            d * (r - 1) if padding == "same" else 0 for d, r in zip(dilation, kernel, strict=True)
        ]
        # padding below and above, for each dimension
        before, after = tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
    else:
        before = after = int_per_dim(padding, rank)
    if len(x.shape) == rank + 1:  # no sample dimension
        y = _translate_conv(
            b, b.call(A.unsqueeze.default, x, 0), weight, bias, stride, padding, dilation, groups
        )
        return b.call(A.squeeze.dim, y, 0)
    # The sizes of the output, by the formula of torch.nn.Conv2d (r: size of the window).
    spatial = tuple(
        (size + lo + hi - d * (r - 1) - 1) // s + 1
        for size, lo, hi, d, r, s in zip(
            x.shape[2:], before, after, dilation, kernel, stride, strict=True
        )
    )
    shape = (x.shape[0], weight.shape[0], *spatial)
    cg, kg = weight.shape[0] // groups, x.shape[1] // groups
    attrs = {"stride": stride, "dilation": dilation, "groups": groups, "cg": cg, "kg": kg}
    integers = {"cg": cg, "kg": kg, **numbered_integers(s=stride, d=dilation, p=before)}
    return b.emit(f"conv{rank}d", [x, weight, bias], [(shape, x.dtype)], attrs, integers=integers)


@aten("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _translate_transposed(
    b: Builder,
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    rank = len(weight.shape) - 2
    stride, padding, extra, dilation = (
        int_per_dim(v, rank) for v in (stride, padding, output_padding, dilation)
    )
    if len(x.shape) == rank + 1:  # no sample dimension
        y = _translate_transposed(
            b,
            b.call(A.unsqueeze.default, x, 0),
            weight,
            bias,
            stride,
            padding,
            extra,
            groups,
            dilation,
        )
        return b.call(A.squeeze.dim, y, 0)
    cg, kg = weight.shape[1], x.shape[1] // groups
    # The sizes of the output, by the formula of torch.nn.ConvTranspose2d (r: size of the window).
    spatial = tuple(
        (size - 1) * s - 2 * p + d * (r - 1) + e + 1
        for size, s, p, d, r, e in zip(
            x.shape[2:], stride, padding, dilation, weight.shape[2:], extra, strict=True
        )
    )
    shape = (x.shape[0], cg * groups, *spatial)
    attrs = {
        "stride": stride, "dilation": dilation, "padding": padding, "groups": groups, "cg": cg, "kg": kg
    }  # fmt: skip
    # "k" gives the size of dimension k, which no operand has as a plain index (see parse_space)
    integers = {"cg": cg, "kg": kg, "k": kg, **numbered_integers(s=stride, d=dilation, p=padding)}
    kind = f"conv_transpose{rank}d"
    return b.emit(kind, [x, weight, bias], [(shape, x.dtype)], attrs, integers=integers)


@aten("convolution")
def _translate_convolution(
    b: Builder, x: Value, weight: Value, bias: Value | None, stride: Any, padding: Any,
    dilation: Any, transposed: bool, output_padding: Any, groups: int,
) -> Any:  # fmt: skip
    if transposed:
        return _translate_transposed(
            b, x, weight, bias, stride, padding, output_padding, groups, dilation
        )
    return _translate_conv(b, x, weight, bias, stride, padding, dilation, groups)
