"""Modules that cast to other dtypes inside their forward, as many Hugging Face models do: for `verify`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH = 6
ALL_TYPES = {d for d in vars(torch).values() if isinstance(d, torch.dtype)}
DTYPES = sorted((d for d in ALL_TYPES if d.is_floating_point or d.is_complex), key=str)


class Casting(nn.Module):
    """Linear layers, each followed by a cast. blocks: names of casts (keys of CASTS) and dtypes."""

    def __init__(self, blocks: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self.blocks = [(cast, getattr(torch, name)) for cast, name in blocks]
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in blocks)
        self.register_buffer("fine", torch.linspace(0.1, 1.7, WIDTH, dtype=torch.float64))
        self.register_buffer("mask", torch.arange(WIDTH) % 3 > 0)
        self.attribute = torch.linspace(
            0.3, 1.1, WIDTH
        )  # not a buffer: `double()` does not convert it

    def forward(self, x: Tensor) -> Tensor:
        for (cast, dtype), layer in zip(self.blocks, self.layers, strict=True):
            x = CASTS[cast](self, layer(x), dtype).to(x.dtype)
        return x.square().mean()


def _round(module: Casting, x: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype.is_complex:  # cast a buffer instead, so that gradients stay real
        return x * module.fine.to(dtype).abs().to(x.dtype)
    return x.to(dtype)


def _literal(module: Casting, x: Tensor, dtype: torch.dtype) -> Tensor:
    return x * torch.tensor(0.1, dtype=dtype).abs().to(x.dtype) + x.new_tensor(0.3)


def _limits(module: Casting, x: Tensor, dtype: torch.dtype) -> Tensor:
    masked = torch.where(module.mask, x, torch.finfo(x.dtype).min).softmax(-1)
    return masked + x / (x.norm() + torch.finfo(x.dtype).eps) * module.attribute.to(dtype).to(
        x.dtype
    )


def _norm(module: Casting, x: Tensor, dtype: torch.dtype) -> Tensor:
    return F.rms_norm(_round(module, x, dtype), (WIDTH,)) * 0.1 * module.attribute


def _positions(module: Casting, x: Tensor, dtype: torch.dtype) -> Tensor:
    angles = torch.arange(0, WIDTH) / WIDTH  # in torch's default dtype
    return (
        x
        * angles.cos().to(dtype).to(x.dtype)
        * torch.arange(1.0, WIDTH + 1, dtype=dtype).to(x.dtype)
    )


def _method(module: Casting, x: Tensor, dtype: torch.dtype) -> Tensor:
    named = {
        torch.float16: Tensor.half,
        torch.bfloat16: Tensor.bfloat16,
        torch.float32: Tensor.float,
    }
    return named[dtype](x).type(x.dtype)


CASTS: dict[str, Callable[[Casting, Tensor, torch.dtype], Tensor]] = {
    "round": _round,
    "twice": lambda module, x, dtype: x * _round(module, x, dtype),
    "together": lambda module, x, dtype: torch.cat([x[:, :3], _round(module, x, dtype)[:, 3:]], 1),
    "literal": _literal,
    "softmax": lambda module, x, dtype: x.softmax(-1, dtype=dtype),
    "limits": _limits,
    "norm": _norm,
    "positions": _positions,
    "method": _method,
}


def usable_blocks() -> list[tuple[str, str]]:
    """All pairs of a cast and a dtype that torch itself can run forward and backward."""
    blocks = []
    for cast in CASTS:
        for dtype in DTYPES:
            name = str(dtype).removeprefix("torch.")
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    Casting([(cast, name)])(torch.ones(2, WIDTH)).backward()
            except (RuntimeError, NotImplementedError, KeyError, TypeError):
                continue
            blocks.append((cast, name))
    return blocks


def build(blocks: Sequence[tuple[str, str]]) -> Any:
    return Casting(blocks), (torch.randn(4, WIDTH),)
