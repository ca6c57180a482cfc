"""A stock optimizer that updates slices of parameters: those whose home is this rank.

Unused parameters. A rank without a gradient hands in negative zeros: the one number that changes no bit of
what it is added to. So a sum whose first element is a negative zero was handed in by nobody, if whoever has
a gradient never begins it with one: the slice is left as it is and comes back. That needs no message more,
and nobody has to know beforehand what the others lack.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from raddle.sync.optimizer_state import State, cut, join
from raddle.sync.parameter_slices import Slices
from raddle.sync.slice_updater import Applying


class SlicedOptimizer:
    """An `apply` for synchronisers: `own` are, by item, the rows that are updated on this rank.

    `times`: how often an item is updated at each clock. `looks` says of an item whether a sum may be one
    that nobody has handed in: to look at it takes time.
    """

    def __init__(
        self, slices: Slices, optimizer: Optimizer, own: Mapping[int, Tensor], *,
        times: int = 1, looks: Callable[[int], bool] = lambda number: True,
    ) -> None:  # fmt: skip
        self.own = {number: nn.Parameter(rows) for number, rows in own.items()}
        self._slices, self._whole, self._looks = slices, optimizer, looks
        self._home = _of_slices(optimizer, slices, self.own)
        self._applying: Applying | None = None
        if own:
            self._applying = Applying(self._home, self.own, times=dict.fromkeys(own, times))
        self._begun: list[dict[str, Any]] = []  # settings of the step that has begun

    def __call__(self, number: int, clock: int, gradient: Tensor) -> None:
        assert self._applying is not None
        if self._looks(number) and is_absent(gradient):
            self._applying.skip(clock)
        else:
            self._applying(number, clock, gradient)

    def take_settings(self, clock: int) -> None:
        """Updates from a clock on have the settings (lr, momentum...) that the optimizer has now."""
        groups = self._whole.param_groups
        self._begun = [copy.deepcopy(settings_of(group)) for group in groups]
        for own, group in zip(self._home.param_groups, groups, strict=True):
            own.update(settings_of(group))
        if self._applying is not None:
            self._applying.snapshot(clock)

    def changed(self) -> str:
        """The name of a setting that is not what was taken last; empty if none."""
        for now, then in zip(self._whole.param_groups, self._begun, strict=True):
            for name, value in settings_of(now).items():
                if name not in then or value != then[name]:
                    return name
        return ""

    def scatter(self) -> None:
        """What the whole optimizer holds goes to the slices, and is forgotten there."""
        held = self._whole.state
        self._home.state.clear()
        for number, rows in self.own.items():
            index, own = self._slices.places[number]
            p = self._slices.parameters[index]
            if held.get(p):
                self._home.state[rows] = cut(held[p], p.shape, own)
            there = self._slices.rows(number)
            if rows.data_ptr() != there.data_ptr():  # a copy: the model may have been loaded too
                with torch.no_grad():
                    rows.copy_(there)
        held.clear()

    def states(self) -> dict[int, State]:
        """By item, its state: a copy, as training may go on."""
        return {
            number: cut(self._home.state[rows], rows.shape, None)
            for number, rows in self.own.items()
            if rows in self._home.state
        }

    def joined(self, every: Mapping[int, State]) -> dict[Tensor, State]:
        """The state as the whole optimizer would have it, from those of all items."""
        whole: dict[Tensor, State] = {}
        for index, p in enumerate(self._slices.parameters):
            numbers = self._slices.numbers[index]
            parts = [every.get(n, {}) for n in numbers]
            state = join(parts, [self._slices.rows(n).shape for n in numbers], p.device)
            if state:
                whole[p] = state
        return whole


def _of_slices(optimizer: Optimizer, slices: Slices, own: Mapping[int, nn.Parameter]) -> Optimizer:
    """An optimizer of the same kind and settings, for some slices."""
    made = copy.copy(optimizer)
    made.state = defaultdict(dict)
    by: dict[int, list[nn.Parameter]] = defaultdict(list)  # by id of the parameter
    for number, rows in own.items():
        by[id(slices.parameters[slices.places[number][0]])].append(rows)
    made.param_groups = [
        {**settings_of(group), "params": [rows for p in group["params"] for rows in by[id(p)]]}
        for group in optimizer.param_groups
    ]
    return made


def absent_like(p: Tensor) -> Tensor:
    """What a rank without a gradient hands in."""
    return torch.full(p.shape, -0.0, dtype=p.dtype, device=p.device)


def is_absent(gradient: Tensor) -> bool:
    """Whether a sum is of negative zeros."""
    first = gradient.reshape(-1)[:1]
    return bool(((first == 0) & torch.signbit(first)).all())


def settings_of(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name not in ("params", "param_names")}
