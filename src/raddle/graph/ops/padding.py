"""Padding, and copies whose elements have a table of sources.

pad    y[a b] = x[a b-1]
take   y[a b] = x[a source(b)]     (reflected and circular padding, flip, roll, repeat)
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


def _pad_line(f: Signature) -> str:
    letters = unique(f.letters[0])
    inside = [f"{a}{-lo:+d}" for a, (lo, _) in zip(letters, f.attrs["pads"], strict=True)]
    return f"y[{' '.join(letters)}] = x[{' '.join(inside)}]"


def _pad(site: OperatorTile) -> Kernel:
    value = site.attrs["value"]
    if site.region(0) is None:
        return lambda x: site.full(value)
    amounts = [amount for pair in reversed(site.pads(0)) for amount in pair]
    return lambda x: F.pad(x, amounts, value=value) if any(amounts) else x


declare("pad", _pad_line, _pad, Traits(SavedTensors.NOTHING), flops_per_point=0)


@aten("constant_pad_nd")
def constant_pad(b: Builder, x: Value, pads: Sequence[int], value: float = 0) -> Any:
    pairs = list(zip(pads[::2], pads[1::2], strict=True))[::-1]
    pairs = [(0, 0)] * (len(x.shape) - len(pairs)) + pairs
    shape = tuple(s + lo + hi for s, (lo, hi) in zip(x.shape, pairs, strict=True))
    if 0 in shape:
        raise NotSplittable
    attrs = {"pads": tuple(pairs), "value": value}
    return b.emit("pad", [x], [(shape, x.dtype)], attrs)


@aten("pad")
def _pad_call(
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
                raise NotSplittable  # all of it is cropped
    return take(b, x, tables, "pad")


def _reflected(size: int, lo: int, hi: int) -> list[int]:
    return [min(abs(i), 2 * (size - 1) - abs(i)) for i in range(-lo, size + hi)]


def _replicated(size: int, lo: int, hi: int) -> list[int]:
    return [min(max(i, 0), size - 1) for i in range(-lo, size + hi)]


def _wrapped(size: int, lo: int, hi: int) -> list[int]:
    """Circular padding; torch crops by negative amounts first, and wraps what is left."""
    left = list(range(size))[max(0, -lo) : size + min(0, hi)]
    around = range(-max(0, lo), len(left) + max(0, hi))
    return [left[i % len(left)] for i in around] if left else []


# -- take: a table of sources by dimension ---------------------------------------------


def _take_line(f: Signature) -> str:
    letters = unique(f.letters[0])
    inside = [f"source{d}({a})" if d in f.attrs["sources"] else a for d, a in enumerate(letters)]
    return f"y[{' '.join(letters)}] = x[{' '.join(inside)}]"


def _take(site: OperatorTile) -> Kernel:
    region = site.region(0)
    assert region is not None
    picks = {
        d: [i - region.lo[d] for i in sources[site.box.lo[d] : site.box.hi[d]]]
        for d, sources in site.attrs["sources"].items()
    }

    def run(x: Tensor) -> Tensor:
        for d, pick in picks.items():
            x = x.index_select(d, torch.tensor(pick, device=x.device))
        return x

    return run


declare("take", _take_line, _take, Traits(SavedTensors.NOTHING), flops_per_point=0)


def take(b: Builder, x: Value, sources: dict[int, list[int]], suffix: str) -> Any:
    """Along each dimension given, element i of the result is element sources[i]."""
    if not sources:
        return x
    shape = tuple(len(sources[d]) if d in sources else s for d, s in enumerate(x.shape))
    attrs = {"sources": {d: tuple(v) for d, v in sources.items()}}
    tables = {f"source{d}": [(i, i + 1) for i in v] for d, v in sources.items()}
    return b.emit("take", [x], [(shape, x.dtype)], attrs, tables=tables, suffix=suffix)


@aten("flip")
def _flip(b: Builder, x: Value, dims: Sequence[int]) -> Any:
    wanted = {d % len(x.shape) for d in dims}
    return take(b, x, {d: list(range(x.shape[d]))[::-1] for d in sorted(wanted)}, "flip")


@aten("roll")
def _roll(b: Builder, x: Value, shifts: Any, dims: Any = ()) -> Any:
    shifts = [shifts] if isinstance(shifts, int) else list(shifts)
    dims = [dims] if isinstance(dims, int) else list(dims)
    if not dims:
        flat = _roll(b, b.call(A.reshape.default, x, [-1]), shifts, [0])
        return b.call(A.reshape.default, flat, list(x.shape))
    sources: dict[int, list[int]] = {}
    for shift, dim in zip(shifts, dims, strict=True):
        dim, size = dim % len(x.shape), x.shape[dim]
        before = sources.get(dim, list(range(size)))
        sources[dim] = [before[(i - shift) % size] for i in range(size)]
    return take(b, x, sources, "roll")
