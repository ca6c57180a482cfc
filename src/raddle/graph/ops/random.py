"""Dropout that does not depend on the plan: the mask is a hash of an element's position in the tensor.

dropout y[a..] = x[a..], seed[]      a..: any number of dimensions

As in every file of ops/: index notation is explained in graph/space.py; `_x_kernel(tile)` returns the
function that computes one tile, which is a box of the operator on a device; `_translate_x` turns an ATen
call into operators of the builder `b`.
`declare` adds an operator kind with traits (traits.py), `b.emit` adds an operator to the graph; its
argument `suffix` is the last part of the operator's name.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from raddle.graph.box import Box
from raddle.graph.builder import Builder, aten
from raddle.graph.graph import Value
from raddle.graph.operator_kind import Kernel, OperatorTile, declare
from raddle.graph.ops.compiled_mask import CompiledMask, Mask
from raddle.graph.ops.pointwise import pointwise_notation
from raddle.graph.traits import SavedTensors, Traits


def _mix(h: Tensor) -> Tensor:
    """Returns a hash of 32-bit integers, one to one: two rounds of xor, shift and multiply.

    The constants are those of splitmix32. The masks make the shifts logical: they clear the copies of the
    sign.
    """
    h = h ^ ((h >> 16) & 0xFFFF)
    h = h * 0x21F0AAAD
    h = h ^ ((h >> 15) & 0x1FFFF)
    h = h * 0x735A2D97
    return h ^ ((h >> 15) & 0x1FFFF)


def random_bits(box: Box, shape: Sequence[int], key: Tensor) -> Tensor:
    """Returns 32 random bits, as an int32, for every element of a box of a tensor of this shape.

    key: an int32 scalar; other keys give other bits.
    """
    device = key.device
    index = torch.zeros((), dtype=torch.int32, device=device)
    stride = 1
    for d in reversed(range(len(shape))):
        along = torch.arange(box.lo[d], box.hi[d], device=device) * stride
        # The product wraps to 32 bits: positions repeat only in tensors of more than 2**32 elements.
        along = along.to(torch.int32).view(-1, *[1] * (len(shape) - 1 - d))
        index = index + along
        stride *= shape[d]
    return _mix(_mix(index + key) + key)


def random_key(seed: Tensor, stream: Tensor | int) -> Tensor:
    """Returns the key of the random bits of an operator.

    stream: a number that differs between the random operators of a model (see `next_stream`).
    """
    return _mix((seed.to(torch.int32) ^ stream).reshape(()))


def second_key(key: Tensor) -> Tensor:
    """Returns another key, for an operator that needs two random numbers for each element."""
    return _mix(key ^ 0x5BD1E995)


def drop(
    x: Tensor, seed: Tensor, box: Box, shape: Sequence[int], probability: float,
    stream: Tensor | int,
) -> Tensor:  # fmt: skip
    """Drops elements of a box of a tensor of this shape; scales the other ones by 1 / (1 - p).

    stream: see `random_key`. Along a dimension where the box has one element, and x has more, the mask is
    broadcast.
    """
    scale = 0.0 if probability >= 1 else 1 / (1 - probability)
    if x.is_cuda and x.shape == box.shape and not torch.compiler.is_compiling():
        keep = _compiled_mask(box, tuple(shape), probability, x.device)(seed, stream)
        # The product x * keep * scale as one kernel, forward and backward
        dropped: Tensor = torch.ops.aten.native_dropout_backward(x, keep, scale)
        return dropped
    return x * keep_mask(box, shape, probability, x.device)(seed, stream) * scale


def keep_mask(box: Box, shape: Sequence[int], probability: float, device: torch.device) -> Mask:
    """Returns the function that says which elements of a box are kept, from the seed and the stream."""
    # The random bits are a signed integer from -2**31 on, so the threshold is shifted by as much.
    threshold = min(round(probability * 2**32), 2**32 - 1) - 2**31

    def mask(seed: Tensor, stream: Tensor | int) -> Tensor:
        return random_bits(box, shape, random_key(seed, stream).to(device)) >= threshold

    return mask


@cache
def _compiled_mask(
    box: Box, shape: tuple[int, ...], probability: float, device: torch.device
) -> CompiledMask:
    return CompiledMask(keep_mask(box, shape, probability, device))


def _dropout_kernel(tile: OperatorTile) -> Kernel:
    p, stream_number = tile.attrs["p"], tile.attrs["stream"]
    shape = tuple(d.size for d in tile.op.space.dims)
    # The dimensions of the mask: some (feature dropout), or None for all.
    mask_dims = tile.attrs["dims"]
    box = tile.box
    if mask_dims is not None:  # all other dimensions of the mask have the interval 0:1
        box = Box(
            *(
                tuple(e[d] if d in mask_dims else i for d in range(len(shape)))
                for i, e in enumerate(box)  # (0, box.lo), then (1, box.hi)
            )
        )
        shape = tuple(s if d in mask_dims else 1 for d, s in enumerate(shape))

    def run(x: Tensor, seed: Tensor, stream: Tensor | int = stream_number) -> Tensor:
        return drop(x, seed, box, shape, p, stream)

    return run


declare(
    "dropout",
    pointwise_notation,
    _dropout_kernel,
    Traits(SavedTensors.NOTHING, extra_saved_bytes=1, is_cheap=True),
    flops_per_point=2,
    tensor_attr="stream",
)


def next_stream(b: Builder) -> int:
    """Returns the number of a random stream that no random operator of the graph has yet.

    It follows from how many random operators the graph has: unlike names, their order is stable.
    """
    return stream_of(sum("stream" in op.attrs for op in b.ops))


def stream_of(number: int) -> int:
    """Returns the number of the random stream of random operator `number` of a step, counted from 0."""
    return zlib.crc32(f"dropout {number}".encode()) - 2**31


def dropout(
    b: Builder,
    x: Value,
    p: float,
    *,
    dims: tuple[int, ...] | None = None,
    suffix: str | None = None,
) -> Any:
    """Adds a dropout; dims: the dimensions of its mask (None: all)."""
    if p == 0:
        return x
    attrs = {"p": p, "stream": next_stream(b), "dims": dims}
    return b.emit("dropout", [x, b.seed()], [(x.shape, x.dtype)], attrs, suffix=suffix)


@aten("dropout", "dropout_")
def _translate_dropout(b: Builder, x: Value, p: float, train: bool) -> Any:
    return dropout(b, x, p) if train else x


@aten("feature_dropout")
def _translate_feature_dropout(b: Builder, x: Value, p: float, train: bool) -> Any:
    return dropout(b, x, p, dims=(0, 1)) if train else x
