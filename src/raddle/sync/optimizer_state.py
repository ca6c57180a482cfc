"""An optimizer's state, whole and in slices: what stands at homes, and what a checkpoint has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

State = dict[str, Any]  # of one parameter, or of a slice
Rows = slice | None  # None: all


def cut(whole: State, shape: Sequence[int], rows: Rows) -> State:
    """The state of some rows: what has the parameter's shape is cut, the rest copied."""

    def part(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        own = value[rows] if rows is not None and value.shape == torch.Size(shape) else value
        return own.detach().clone()

    return {name: part(value) for name, value in whole.items()}


def join(parts: Sequence[State], shapes: Sequence[Sequence[int]], device: torch.device) -> State:
    """The state of a parameter from those of its slices, in their order; `shapes` are the slices'."""
    first = next((part for part in parts if part), {})

    def whole(name: str) -> Any:
        values: list[Any] = [part.get(name) for part in parts]
        fits = all(
            isinstance(v, Tensor) and v.ndim and v.shape == torch.Size(s)
            for v, s in zip(values, shapes, strict=True)
        )
        return torch.cat([v.to(device) for v in values]) if fits else first[name]

    return {name: whole(name) for name in first}


def gather(every: Sequence[Mapping[int, State]]) -> dict[int, State]:
    """By item, from all ranks."""
    return {number: state for own in every for number, state in own.items()}
