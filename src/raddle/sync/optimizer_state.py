"""Cuts an optimizer's state into slices of parameters, and joins it again for a checkpoint.

A slice is a range of rows of a parameter, with a number (parameter_slices.py). The rank that updates a
slice has its state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

OptimizerState = dict[str, Any]  # of one parameter or slice: "exp_avg", "step", ...
RowRange = slice | None  # None: all rows


def cut_state(whole: OptimizerState, shape: Sequence[int], rows: RowRange) -> OptimizerState:
    """Returns the state of some rows of a parameter.

    Tensors of the parameter's shape are cut; all other values are copied.
    """

    def part(value: Any) -> Any:
        """Returns the rows of a tensor with the parameter's shape, or a copy of any other value."""
        if not isinstance(value, Tensor):
            return value
        cut_value = value[rows] if rows is not None and value.shape == torch.Size(shape) else value
        return cut_value.detach().clone()

    return {name: part(value) for name, value in whole.items()}


def join_states(
    parts: Sequence[OptimizerState], shapes: Sequence[Sequence[int]], device: torch.device
) -> OptimizerState:
    """Returns the state of a parameter from the states of its slices, in order. shapes: of the slices.

    Tensors of the slices' shapes are concatenated; other values (a step count) are the same in all slices.
    """
    first = next((part for part in parts if part), {})  # of the first slice that has a state

    def whole(name: str) -> Any:
        """Returns one entry of the whole parameter's state."""
        values: list[Any] = [part.get(name) for part in parts]
        concatenable = all(
            isinstance(v, Tensor) and v.ndim and v.shape == torch.Size(s)
            for v, s in zip(values, shapes, strict=True)
        )
        return torch.cat([v.to(device) for v in values]) if concatenable else first[name]

    return {name: whole(name) for name in first}


def merge_states(
    states_by_rank: Sequence[Mapping[int, OptimizerState]],
) -> dict[int, OptimizerState]:
    """Returns number of a slice -> its state, from those of all ranks. Each slice is on one rank."""
    return {number: state for states in states_by_rank for number, state in states.items()}
