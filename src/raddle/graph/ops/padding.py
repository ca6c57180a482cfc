"""Padding, and copies whose elements come from a table of positions.

pad    y[a b] = x[a b-1]
take   y[a b] = x[a source(b)]     (all other padding, flip, roll; in shape.py: repeat)

As in every file of ops/: `_x_notation` writes the index notation of an operator (graph/space.py) from its
signature; `_x_kernel(tile)` returns the function that computes one tile, which is a box of the operator on
a device; `_translate_x` turns an ATen call into operators of the builder `b`. `A` is torch.ops.aten.
`raise NotSplittable` makes the call an opaque operator, which is never split.
`declare` adds an operator kind with traits (traits.py), `b.emit` adds an operator to the graph; its
argument `suffix` is the last part of the operator's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from raddle.graph.builder import Builder, NotSplittable, aten
from raddle.graph.graph import Value
from raddle.graph.letters import unique
from raddle.graph.operator_kind import Kernel, OperatorTile, Signature, declare
from raddle.graph.traits import SavedTensors, Traits

A = torch.ops.aten


# -- padding with a constant -----------------------------------------------------------


def _pad_notation(sig: Signature) -> str:
    letters = unique(sig.letters[0])
    indices = [f"{a}{-lo:+d}" for a, (lo, _) in zip(letters, sig.attrs["pads"], strict=True)]
    return f"y[{' '.join(letters)}] = x[{' '.join(indices)}]"


def _pad_kernel(tile: OperatorTile) -> Kernel:
    value = tile.attrs["value"]
    if tile.region(0) is None:
        return lambda x: tile.full(value)
    amounts = [amount for pair in reversed(tile.pads(0)) for amount in pair]
    return lambda x: F.pad(x, amounts, value=value) if any(amounts) else x


declare("pad", _pad_notation, _pad_kernel, Traits(SavedTensors.NOTHING), flops_per_point=0)


@aten("constant_pad_nd")
def constant_pad(b: Builder, x: Value, pads: Sequence[int], value: float = 0) -> Any:
    """Adds a padding with a constant; pads: as for torch.nn.functional.pad."""
    # torch gives the amounts below and above for the last dimension first
    pairs = list(zip(pads[::2], pads[1::2], strict=True))[::-1]
    pairs = [(0, 0)] * (len(x.shape) - len(pairs)) + pairs
    shape = tuple(s + lo + hi for s, (lo, hi) in zip(x.shape, pairs, strict=True))
    if 0 in shape:
        raise NotSplittable
    attrs = {"pads": tuple(pairs), "value": value}
    return b.emit("pad", [x], [(shape, x.dtype)], attrs)


@aten("pad")
def _translate_pad(
    b: Builder, x: Value, pads: Sequence[int], mode: str = "constant", value: float | None = None
) -> Any:
    if mode == "constant":
        return constant_pad(b, x, pads, value or 0)
    sources_of = {"reflect": _reflected, "replicate": _replicated, "circular": _wrapped}[mode]
    rank, tables = len(x.shape), {}
    for i in range(len(pads) // 2):
        dim, lo, hi = rank - 1 - i, pads[2 * i], pads[2 * i + 1]
        if lo or hi:
            tables[dim] = sources_of(x.shape[dim], lo, hi)
            if not tables[dim]:
                raise NotSplittable  # everything is cropped
    return take(b, x, tables, "pad")


def _reflected(size: int, lo: int, hi: int) -> list[int]:
    """Returns the position in the source of each position of the padded dimension, for reflected padding.

    size: of the source. lo, hi: the padding below and above. The next two functions return the same.
    """
    return [min(abs(i), 2 * (size - 1) - abs(i)) for i in range(-lo, size + hi)]


def _replicated(size: int, lo: int, hi: int) -> list[int]:
    """Returns the same for replicated padding, which repeats the first and the last element."""
    return [min(max(i, 0), size - 1) for i in range(-lo, size + hi)]


def _wrapped(size: int, lo: int, hi: int) -> list[int]:
    """Returns the same for circular padding: torch crops (negative amounts), then wraps what remains."""
    cropped = list(range(size))[max(0, -lo) : size + min(0, hi)]
    positions = range(-max(0, lo), len(cropped) + max(0, hi))
    return [cropped[i % len(cropped)] for i in positions] if cropped else []


# -- take: for each dimension, a table of source positions -----------------------------


def _take_notation(sig: Signature) -> str:
    letters = unique(sig.letters[0])
    indices = [f"source{d}({a})" if d in sig.attrs["sources"] else a for d, a in enumerate(letters)]
    return f"y[{' '.join(letters)}] = x[{' '.join(indices)}]"


def _take_kernel(tile: OperatorTile) -> Kernel:
    region = tile.region(0)
    assert region is not None
    # by dimension, the positions in the region that the elements of the tile come from
    positions_by_dim = {
        d: tile.constant([i - region.lo[d] for i in sources[tile.box.lo[d] : tile.box.hi[d]]])
        for d, sources in tile.attrs["sources"].items()
    }

    def run(x: Tensor) -> Tensor:
        for d, positions in positions_by_dim.items():
            x = x.index_select(d, positions)
        return x

    return run


declare("take", _take_notation, _take_kernel, Traits(SavedTensors.NOTHING), flops_per_point=0)


def take(b: Builder, x: Value, sources: dict[int, list[int]], suffix: str) -> Any:
    """Adds a copy: along each dimension d of `sources`, its element i is element sources[d][i] of x."""
    if not sources:
        return x
    shape = tuple(len(sources[d]) if d in sources else s for d, s in enumerate(x.shape))
    attrs = {"sources": {d: tuple(v) for d, v in sources.items()}}
    tables = {f"source{d}": [(i, i + 1) for i in v] for d, v in sources.items()}
    return b.emit("take", [x], [(shape, x.dtype)], attrs, tables=tables, suffix=suffix)


@aten("flip")
def _translate_flip(b: Builder, x: Value, dims: Sequence[int]) -> Any:
    flipped = {d % len(x.shape) for d in dims}
    return take(b, x, {d: list(range(x.shape[d]))[::-1] for d in sorted(flipped)}, "flip")


@aten("roll")
def _translate_roll(b: Builder, x: Value, shifts: Any, dims: Any = ()) -> Any:
    shifts = [shifts] if isinstance(shifts, int) else list(shifts)
    dims = [dims] if isinstance(dims, int) else list(dims)
    if not dims:
        flat = _translate_roll(b, b.call(A.reshape.default, x, [-1]), shifts, [0])
        return b.call(A.reshape.default, flat, list(x.shape))
    sources: dict[int, list[int]] = {}
    for shift, dim in zip(shifts, dims, strict=True):
        dim, size = dim % len(x.shape), x.shape[dim]
        before = sources.get(dim, list(range(size)))
        sources[dim] = [before[(i - shift) % size] for i in range(size)]
    return take(b, x, sources, "roll")
