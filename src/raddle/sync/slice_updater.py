"""A stock optimizer of torch.optim updates one slice at a time, with the settings of that slice's step."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from raddle.sync.private_torch import has_step_hooks

# Every element is updated by itself, and what is kept for a whole tensor (a step's count) is the same for
# its slices: so slices give the same bits.
ELEMENTWISE = (
    "SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "Adagrad", "Adadelta", "ASGD",
)  # fmt: skip
NOT_ELEMENTWISE = {
    "LBFGS": "it calls a closure and looks at all parameters at once",
    "SparseAdam": "its gradients are sparse",
    "Adafactor": "it keeps means over a parameter's rows and columns, and its norm",
    "Muon": "it makes a parameter's whole update orthogonal",
    "LAMB": "it needs the norm of a whole parameter",
    "LARS": "it needs the norm of a whole parameter",
}
ADVICE = "update whole parameters after a barrier"


def why_barrier(optimizer: Optimizer) -> str | None:
    """Why an optimizer cannot update slice by slice; None if it can."""
    optimizer_class = type(optimizer)
    reason = next(
        (
            why
            for word, why in NOT_ELEMENTWISE.items()
            if word.lower() in optimizer_class.__name__.lower()
        ),
        "",
    )
    if not reason and optimizer_class not in (
        getattr(torch.optim, name, None) for name in ELEMENTWISE
    ):
        reason = "it is not known to update every element by itself"
    # A copy of an optimizer has no hooks, and a hook is meant for all parameters at once.
    if not reason and has_step_hooks(optimizer):
        reason = "it has hooks of its step"
    return (
        f"{optimizer_class.__name__} cannot update slices: {reason}: {ADVICE}." if reason else None
    )


class SliceUpdater:
    """An `apply` for the homes of one rank: `rows` are, by item, parameters of the optimizer.

    Their state stays in `optimizer.state`. `snapshot(clock)` keeps the settings (lr, momentum...) that
    hold from a clock on, so that a scheduler does not reach updates of the step before which are still
    under way. `times`: how often an item is updated at each clock: once, or with staleness once for
    each of its workers; settings that no update can ask for any more are forgotten.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        rows: Mapping[int, nn.Parameter],
        *,
        times: Mapping[int, int] | None = None,
    ) -> None:
        reason = why_barrier(optimizer)
        if reason:
            raise ValueError(reason)
        groups = {
            id(p): g for g, group in enumerate(optimizer.param_groups) for p in group["params"]
        }
        unknown = [number for number, p in rows.items() if id(p) not in groups]
        if unknown:
            raise ValueError(
                f"item {unknown[0]} is no parameter of the {type(optimizer).__name__}: make the "
                "optimizer of the rows at home"
            )
        self._optimizer, self._rows = optimizer, dict(rows)
        self._stepper = copy.copy(optimizer)
        self._group_of_item = {number: groups[id(p)] for number, p in rows.items()}
        self._updates_per_clock = sum(times[n] for n in rows) if times is not None else len(rows)
        self._settings: dict[int, list[dict[str, Any]]] = {}  # by the clock from which they hold
        self._updates_left: dict[int, int] = {}  # by clock, the updates that are still to come
        self._oldest_clock = 1  # clock of which updates are still to come
        self._lock = threading.Lock()

    def snapshot(self, clock: int) -> None:
        """Keeps the optimizer's settings for this clock and later ones, until the next snapshot."""
        settings = [_copy_settings(group) for group in self._optimizer.param_groups]
        with self._lock:
            self._settings[clock] = settings
            self._drop_old_settings()

    def __call__(self, number: int, clock: int, gradient: Tensor) -> None:
        """Updates one item's rows. Not from two threads at once: the synchroniser takes care of it."""
        rows, stepper = self._rows[number], self._stepper
        with self._lock:
            since = max((c for c in self._settings if c <= clock), default=None)
            if since is None:
                raise RuntimeError(
                    f"item {number} is to be updated at clock {clock}, and settings are known from "
                    f"{sorted(self._settings)} on: call snapshot({clock}) before"
                )
            settings = self._settings[since][self._group_of_item[number]]
        stepper.state = self._optimizer.state  # `load_state_dict` puts another one in its place
        stepper.param_groups = [{**settings, "params": [rows]}]
        rows.grad = gradient.view_as(rows)
        try:
            stepper.step()
        finally:
            rows.grad = None
        self._count_update(clock)

    def skip(self, clock: int) -> None:
        """Counts an update that does not come, or the settings of its clock would be kept for ever."""
        self._count_update(clock)

    @property
    def kept_clocks(self) -> list[int]:
        """The clocks whose settings are kept."""
        return sorted(self._settings)

    def _count_update(self, clock: int) -> None:
        with self._lock:
            self._updates_left[clock] = self._updates_left.get(clock, self._updates_per_clock) - 1
            while self._updates_left.get(self._oldest_clock) == 0:
                del self._updates_left[self._oldest_clock]
                self._oldest_clock += 1
            self._drop_old_settings()

    def _drop_old_settings(self) -> None:
        needed = max((c for c in self._settings if c <= self._oldest_clock), default=0)
        for clock in [c for c in self._settings if c < needed]:
            del self._settings[clock]


def _copy_settings(group: dict[str, Any]) -> dict[str, Any]:
    """Without the parameters; a learning rate may be a tensor, which a scheduler changes in place."""
    return {
        name: value.clone() if isinstance(value, Tensor) else value
        for name, value in group.items()
        if name not in ("params", "param_names")
    }
