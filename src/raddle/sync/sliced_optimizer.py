"""Applies an optimizer of torch.optim to the slices of parameters that this rank updates.

An item is a slice or a bundle of slices; its clock is the number of the step. Items and slices have numbers
of their own (parameter_slices.py). A synchroniser collects the gradients of an item from all ranks, and
calls `apply(number, clock, gradient)` on each rank that updates the item.

Unused parameters. A rank without a gradient submits negative zeros, because -0.0 changes no bit of a
number to which it is added. A rank with a gradient never submits -0.0 as the first element of a slice. So
if the first element of a sum is -0.0, no rank had a gradient: the slice is sent back unchanged. This
needs no extra message, and no rank has to know beforehand which gradients the others lack.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from raddle.sync.item_rows import split
from raddle.sync.optimizer_state import OptimizerState, cut_state, join_states
from raddle.sync.parameter_slices import ParameterSlices
from raddle.sync.slice_updater import SliceUpdater


class SlicedOptimizer:
    """Updates items on this rank: the `apply` callback of a synchroniser (Apply in parameter_server.py).

    optimizer: the model's optimizer, which has the whole parameters.
    rows_by_item: item number -> the rows of its slices, for the items that this rank updates.
    times: number of updates of an item at each clock: with staleness one for each worker, else 1.
    may_be_absent(number): whether it is possible that no rank had a gradient of a slice; only then the sum
        is read.
    """

    def __init__(
        self, slices: ParameterSlices, optimizer: Optimizer,
        rows_by_item: Mapping[int, Sequence[Tensor]], *, times: int = 1,
        may_be_absent: Callable[[int], bool] = lambda number: True,
    ) -> None:  # fmt: skip
        # Number of a slice -> the rows that are updated
        self.parameters = {
            number: nn.Parameter(rows)
            for item, parts in rows_by_item.items()
            for number, rows in zip(slices.slices_of_item[item], parts, strict=True)
        }
        self._slices, self._model_optimizer, self._may_be_absent = slices, optimizer, may_be_absent
        # Copied from the model's optimizer; trains `self.parameters`.
        self._slice_optimizer = _copy_for_slices(optimizer, slices, self.parameters)
        self._updater: SliceUpdater | None = None
        if rows_by_item:
            self._updater = SliceUpdater(
                self._slice_optimizer,
                {n: [self.parameters[s] for s in slices.slices_of_item[n]] for n in rows_by_item},
                times=dict.fromkeys(rows_by_item, times),
            )
        # The settings of each parameter group in the current step
        self._step_settings: list[dict[str, Any]] = []

    def __call__(self, number: int, clock: int, gradient: Tensor) -> None:
        """Updates the slices of an item of which a rank had a gradient; gradient: the sum over ranks."""
        assert self._updater is not None
        members = self._slices.slices_of_item[number]
        parts = split(gradient, [self.parameters[s] for s in members])
        present = [
            None if self._may_be_absent(s) and is_absent(part) else part
            for s, part in zip(members, parts, strict=True)
        ]
        self._updater.update(number, clock, present)

    def snapshot_settings(self, clock: int) -> None:
        """Stores the optimizer's present settings (lr, momentum...) for updates from `clock` on."""
        groups = self._model_optimizer.param_groups
        self._step_settings = [copy.deepcopy(settings_of(group)) for group in groups]
        for target, group in zip(self._slice_optimizer.param_groups, groups, strict=True):
            target.update(settings_of(group))
        if self._updater is not None:
            self._updater.snapshot(clock)

    def changed_setting(self) -> str:
        """Returns the name of a setting that has changed since the last snapshot; empty if none."""
        groups = zip(self._model_optimizer.param_groups, self._step_settings, strict=True)
        for group, snapshot in groups:
            for name, value in settings_of(group).items():
                if name not in snapshot or value != snapshot[name]:
                    return name
        return ""

    def scatter_state(self) -> None:
        """Moves the state of the model's optimizer to the slices.

        With staleness the slices are copies of the model's rows; they get the model's values again.
        """
        model_state = self._model_optimizer.state
        self._slice_optimizer.state.clear()
        for number, rows in self.parameters.items():
            index, row_range = self._slices.locations[number]
            p = self._slices.parameters[index]
            if model_state.get(p):
                self._slice_optimizer.state[rows] = cut_state(model_state[p], p.shape, row_range)
            model_rows = self._slices.rows(number)
            if rows.data_ptr() != model_rows.data_ptr():  # a copy; the model may be newly loaded
                with torch.no_grad():
                    rows.copy_(model_rows)
        model_state.clear()

    def states(self) -> dict[int, OptimizerState]:
        """Returns a copy of the state of each slice, by number."""
        return {
            number: cut_state(self._slice_optimizer.state[rows], rows.shape, None)
            for number, rows in self.parameters.items()
            if rows in self._slice_optimizer.state
        }

    def join_states(self, states: Mapping[int, OptimizerState]) -> dict[Tensor, OptimizerState]:
        """Returns parameter -> its whole state, from the states of all slices."""
        whole: dict[Tensor, OptimizerState] = {}
        for index, p in enumerate(self._slices.parameters):
            numbers = self._slices.slices_of[index]
            parts = [states.get(n, {}) for n in numbers]
            state = join_states(parts, [self._slices.rows(n).shape for n in numbers], p.device)
            if state:
                whole[p] = state
        return whole


def _copy_for_slices(
    optimizer: Optimizer, slices: ParameterSlices, parameters: Mapping[int, nn.Parameter]
) -> Optimizer:
    """Returns a copy of the optimizer that trains slices instead of whole parameters."""
    copied = copy.copy(optimizer)
    copied.state = defaultdict(dict)
    rows_by_parameter: dict[int, list[nn.Parameter]] = defaultdict(list)  # key: id(parameter)
    for number, rows in parameters.items():
        rows_by_parameter[id(slices.parameters[slices.locations[number][0]])].append(rows)
    copied.param_groups = [
        {
            **settings_of(group),
            "params": [rows for p in group["params"] for rows in rows_by_parameter[id(p)]],
        }
        for group in optimizer.param_groups
    ]
    return copied


def absent_like(p: Tensor) -> Tensor:
    """Returns the negative zeros that a rank without a gradient submits."""
    return torch.full(p.shape, -0.0, dtype=p.dtype, device=p.device)


def is_absent(gradient: Tensor) -> bool:
    """Returns whether no rank had a gradient: the first element of the sum is -0.0."""
    first = gradient.reshape(-1)[:1]
    return bool(((first == 0) & torch.signbit(first)).all())


def settings_of(group: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings (lr, momentum...) of a parameter group."""
    return {name: value for name, value in group.items() if name not in ("params", "param_names")}
