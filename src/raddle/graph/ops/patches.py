"""Patches of images, as rows of a matrix and back, and windows of one dimension.

    im2col    a copy of every patch: padding and take (padding.py), then a reshape
    col2im    y[m A H W] = x[m : :]           patches that overlap are added; m: samples and channels
    unfold    windows of one dimension: take, then a reshape

As in every file of ops/: index notation is explained in graph/space.py; `_translate_x` turns an ATen call
into operators of the builder `b`. `A` is torch.ops.aten. `emit_slicewise` is explained in slicewise.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from raddle.graph.builder import Builder, NotSplittable, aten
from raddle.graph.graph import Value
from raddle.graph.ops.padding import constant_pad, take
from raddle.graph.ops.shape import permute
from raddle.graph.ops.slicewise import emit_slicewise

A = torch.ops.aten


@aten("im2col")
def _translate_im2col(
    b: Builder, x: Value, kernel: Sequence[int], dilation: Sequence[int], padding: Sequence[int],
    stride: Sequence[int],
) -> Any:  # fmt: skip
    if len(x.shape) == 3:  # no sample dimension
        y = _translate_im2col(
            b, b.call(A.unsqueeze.default, x, 0), kernel, dilation, padding, stride
        )
        return b.call(A.squeeze.dim, y, 0)
    if any(padding):
        x = constant_pad(b, x, [padding[1], padding[1], padding[0], padding[0]])
    n, c, *sizes = x.shape
    # o: number of a patch along a dimension, r: position in the patch
    positions, counts = {}, []
    for i, (size, r_size, d, s) in enumerate(zip(sizes, kernel, dilation, stride, strict=True)):
        counts.append((size - d * (r_size - 1) - 1) // s + 1)
        positions[2 + i] = [o * s + r * d for o in range(counts[i]) for r in range(r_size)]
    y = take(b, x, positions, "im2col")  # n c (o0 r0) (o1 r1)
    y = b.call(A.reshape.default, y, [n, c, counts[0], kernel[0], counts[1], kernel[1]])
    y = permute(b, y, (0, 1, 3, 5, 2, 4))
    return b.call(A.reshape.default, y, [n, c * kernel[0] * kernel[1], counts[0] * counts[1]])


@aten("col2im")
def _translate_col2im(
    b: Builder, x: Value, size: Sequence[int], kernel: Sequence[int], dilation: Sequence[int],
    padding: Sequence[int], stride: Sequence[int],
) -> Any:  # fmt: skip
    window = kernel[0] * kernel[1]
    leading = [*x.shape[:-2], x.shape[-2] // window]  # samples (if x has them) and channels
    count = leading[0] * leading[1] if len(leading) > 1 else leading[0]
    rows = b.call(A.reshape.default, x, [count, window, x.shape[-1]])
    m = rows.letters[0]
    letters = [a for a in "AHWB" if a != m.upper()][:3]
    notation = f"y[{m} {' '.join(letters)}] = x[{m} : :]"
    args = (rows, list(size), list(kernel), list(dilation), list(padding), list(stride))
    y = emit_slicewise(b, A.col2im.default, args, notation, flops_per_point=window)
    return b.call(A.reshape.default, y, [*leading, *size])


@aten("unfold")
def _translate_unfold(b: Builder, x: Value, dim: int, size: int, step: int) -> Any:
    if not x.shape or not size:
        raise NotSplittable
    dim = dim % len(x.shape)
    count = (x.shape[dim] - size) // step + 1
    y = take(b, x, {dim: [o * step + r for o in range(count) for r in range(size)]}, "unfold")
    y = b.call(A.reshape.default, y, [*x.shape[:dim], count, size, *x.shape[dim + 1 :]])
    return b.call(A.movedim.int, y, dim + 1, -1)
