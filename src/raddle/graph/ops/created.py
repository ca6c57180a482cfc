"""Tensors that a call makes from numbers alone: linspace, eye, windows, indices of triangles, frequencies.

    created   y[a..] =

A tile computes the whole tensor, which is small, and gives its box: so it has the same bits as the whole.
`zeros`, `full` and `arange` are in pointwise.py.

As in every file of ops/: index notation is explained in graph/space.py; `_x_kernel(tile)` returns the
function that computes one tile, which is a box of the operator on a device; `declare` adds an operator kind
with traits (traits.py), `b.emit` an operator whose name ends in `suffix`.
"""

from __future__ import annotations

from typing import Any

import torch

from raddle.graph.box import Box
from raddle.graph.builder import Builder, NotSplittable, aten, infer_meta
from raddle.graph.graph import Value
from raddle.graph.letters import ALPHABET, unique
from raddle.graph.operator_kind import Kernel, OperatorTile, Signature, declare
from raddle.graph.ops.pointwise import find_overload
from raddle.graph.overloads import resolve_overload
from raddle.graph.traits import SavedTensors, Traits

A = torch.ops.aten
NAMES = (
    "linspace", "logspace", "eye", "tril_indices", "triu_indices", "hann_window", "hamming_window",
    "blackman_window", "bartlett_window", "fft_fftfreq", "fft_rfftfreq",
)  # fmt: skip


def _created_notation(sig: Signature) -> str:
    return f"y[{' '.join(unique(ALPHABET[: len(sig.outputs[0])]))}] ="


def _created_kernel(tile: OperatorTile) -> Kernel:
    target, arguments = resolve_overload(tile.attrs["call"]), tile.attrs["args"]
    slices = tile.box.slices_within(Box.full([d.size for d in tile.op.space.dims]))
    options = {"dtype": tile.op.dtypes[0], "device": tile.device}
    return lambda: target(*arguments, **options)[slices]


declare(
    "created",
    _created_notation,
    _created_kernel,
    Traits(SavedTensors.NOTHING, is_cheap=True),
    flops_per_point=1,
)


def _declare_created(name: str) -> None:
    """Registers an ATen call whose arguments are numbers."""

    @aten(name)
    def translate(b: Builder, *args: Any, dtype: torch.dtype | None = None) -> Any:
        if any(isinstance(a, Value) for a in args):
            raise NotSplittable
        options = {"dtype": dtype, "device": None, "layout": None, "pin_memory": None}
        target = find_overload(getattr(A, name), args, options)
        given = {} if dtype is None else {"dtype": dtype}  # tril_indices has no type None
        result = infer_meta(target, args, {**given, "device": None})
        attrs = {"call": str(target).removeprefix("aten."), "args": args}
        return b.emit("created", [], [(result.shape, result.dtype)], attrs, suffix=name)


for _name in NAMES:
    _declare_created(_name)
