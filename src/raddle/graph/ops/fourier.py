"""Fourier transforms, split along the dimensions that are not transformed.

    fft    y[a.. K] = x[a.. :]        stft   y[a F T] = x[a :], w[:]

As in every file of ops/: index notation is explained in graph/space.py; `_translate_x` turns an ATen call
into operators of the builder `b`. `A` is torch.ops.aten. `emit_slicewise` is explained in slicewise.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from raddle.graph.builder import Builder, aten, infer_meta
from raddle.graph.graph import Value
from raddle.graph.letters import unique, unused_letter
from raddle.graph.opaque_flops import opaque_flops_per_point
from raddle.graph.ops.padding import take
from raddle.graph.ops.slicewise import access, emit_slicewise

A = torch.ops.aten


def _fourier(b: Builder, target: Any, x: Value, dims: Sequence[int], *args: Any) -> Any:
    """Adds a transform over these dimensions, some of which may change their size; args: after x."""
    dims = [d % len(x.shape) for d in dims]
    letters = unique(x.letters)
    read = [":" if d in dims else letter for d, letter in enumerate(letters)]
    result = infer_meta(target, (x, *args), {})
    out = list(letters)
    for d in dims:
        if result.shape[d] != x.shape[d]:
            out[d] = unused_letter(out + letters)
        out[d] = out[d].upper()
    flops = opaque_flops_per_point(target._schema.name, [x])
    notation = f"{access('y', out)} = {access('x', read)}"
    return emit_slicewise(b, target, (x, *args), notation, flops_per_point=flops)


def _declare_transform(name: str) -> None:
    """Registers a transform of one dimension: (x, size, dim, normalisation)."""

    @aten(name)
    def translate(b: Builder, x: Value, n: Any = None, dim: int = -1, norm: Any = None) -> Any:
        return _fourier(b, getattr(A, name).default, x, [dim], n, dim, norm)


def _declare_transforms(name: str, default: Sequence[int] | None) -> None:
    """Registers a transform of several dimensions: (x, sizes, dims, normalisation)."""

    @aten(name)
    def translate(b: Builder, x: Value, s: Any = None, dim: Any = default, norm: Any = None) -> Any:
        rank = len(x.shape)
        dims = (
            list(range(rank - len(s if s is not None else x.shape), rank)) if dim is None else dim
        )
        return _fourier(b, getattr(A, name).default, x, dims, s, list(dims), norm)


for _name in ("fft_fft", "fft_ifft", "fft_rfft", "fft_irfft", "fft_hfft", "fft_ihfft"):
    _declare_transform(_name)
for _name in ("fft_fft", "fft_ifft", "fft_rfft", "fft_irfft"):
    _declare_transforms(f"{_name}2", (-2, -1))
    _declare_transforms(f"{_name}n", None)


def _shift(b: Builder, x: Value, dim: Any, sign: int, suffix: str) -> Any:
    """Adds a rotation by half of the size of each dimension."""
    dims = range(len(x.shape)) if dim is None else [dim] if isinstance(dim, int) else dim
    sources = {}
    for d in sorted(d % len(x.shape) for d in dims):
        size = x.shape[d]
        by = size // 2 if sign > 0 else (size + 1) // 2
        sources[d] = [(i - by) % size for i in range(size)]
    return take(b, x, sources, suffix)


@aten("fft_fftshift")
def _translate_fftshift(b: Builder, x: Value, dim: Any = None) -> Any:
    return _shift(b, x, dim, 1, "fft_fftshift")


@aten("fft_ifftshift")
def _translate_ifftshift(b: Builder, x: Value, dim: Any = None) -> Any:
    return _shift(b, x, dim, -1, "fft_ifftshift")


@aten("stft")
def _translate_stft(
    b: Builder, x: Value, n_fft: int, hop: Any = None, length: Any = None, window: Any = None,
    *args: Any, **kwargs: Any,
) -> Any:  # fmt: skip
    target = A.stft.center if isinstance(next(iter(args), None), str) else A.stft.default
    call = (x, n_fft, hop, length, window, *args)
    samples = unique(x.letters)[: len(x.shape) - 1]
    rank = len(infer_meta(target, call, kwargs).shape)
    others: list[str] = []
    for _ in range(rank - len(samples)):
        others.append(unused_letter([*samples, *others]))
    accesses = [access("x", [*samples, ":"])] + (["w[:]"] if window is not None else [])
    out = [*samples, *(a.upper() for a in others)]
    flops = opaque_flops_per_point("fft_rfft", [torch.empty(n_fft, device="meta")])
    notation = f"{access('y', out)} = {', '.join(accesses)}"
    return emit_slicewise(b, target, call, notation, flops_per_point=flops, kwargs=kwargs)
