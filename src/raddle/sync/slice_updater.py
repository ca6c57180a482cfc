"""Makes an optimizer of torch.optim update one slice of a parameter, or one bundle of slices, at a time.

Each update uses the settings (lr, momentum...) of its step, even if the next step has begun already. An
item has a number (item.py). A clock is the number of a step: 1 is the first.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from raddle.sync.item_rows import split
from raddle.sync.private_torch import has_step_hooks

# These update every element independently, and their state for a whole tensor (a step count) is the same
# for all its slices. So updating slices gives the same bits as updating whole parameters.
ELEMENTWISE = (
    "SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "Adagrad", "Adadelta", "ASGD",
)  # fmt: skip
# Word in the name of an optimizer's class -> why this optimizer cannot update slices
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
    """Returns why an optimizer cannot update slice by slice and needs a barrier; None if it can."""
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
    # A hook is meant for all parameters at once, and a copied optimizer has no hooks.
    if not reason and has_step_hooks(optimizer):
        reason = "it has hooks of its step"
    return (
        f"{optimizer_class.__name__} cannot update slices: {reason}: {ADVICE}." if reason else None
    )


class SliceUpdater:
    """The `apply` callback of a synchroniser (Apply in parameter_server.py): updates items on this rank.

    rows: item number -> the parameters of `optimizer` that hold the rows of its slices. Their state stays
        in `optimizer.state`.
    times: item number -> number of updates at each clock: 1, or with staleness one for each worker. None:
        1 for all items.

    `snapshot(clock)` stores the settings (lr, momentum...) for this and later clocks, so that a scheduler
    does not change updates of an earlier step that are still to come. Settings that no update needs are
    dropped.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        rows: Mapping[int, Sequence[nn.Parameter]],
        *,
        times: Mapping[int, int] | None = None,
    ) -> None:
        reason = why_barrier(optimizer)
        if reason:
            raise ValueError(reason)
        groups = {
            id(p): g for g, group in enumerate(optimizer.param_groups) for p in group["params"]
        }
        unknown = [n for n, parts in rows.items() if any(id(p) not in groups for p in parts)]
        if unknown:
            raise ValueError(
                f"the {type(optimizer).__name__} does not have the rows of item {unknown[0]}: make it of "
                "all rows that are updated on this rank"
            )
        self._optimizer, self._rows = optimizer, dict(rows)
        self._stepper = copy.copy(optimizer)  # its parameters are those of the item that is updated
        # Item number -> the parameter group of each of its slices
        self._groups = {n: [groups[id(p)] for p in parts] for n, parts in rows.items()}
        self._updates_per_clock = sum(times[n] for n in rows) if times is not None else len(rows)
        # Clock of a snapshot -> the settings of each parameter group, from this clock on
        self._settings: dict[int, list[dict[str, Any]]] = {}
        self._updates_left: dict[int, int] = {}  # clock -> number of updates still to come
        self._oldest_clock = 1  # the first clock with updates still to come
        self._lock = threading.Lock()

    def snapshot(self, clock: int) -> None:
        """Stores the optimizer's settings for this clock and later ones, until the next snapshot."""
        settings = [_copy_settings(group) for group in self._optimizer.param_groups]
        with self._lock:
            self._settings[clock] = settings
            self._drop_old_settings()

    def __call__(self, number: int, clock: int, gradient: Tensor) -> None:
        """Updates one item's rows. The synchroniser never calls it from two threads at once."""
        self.update(number, clock, split(gradient, self._rows[number]))

    def update(self, number: int, clock: int, gradients: Sequence[Tensor | None]) -> None:
        """Updates one item's rows. gradients: one for each slice; None leaves the slice as it is."""
        rows, stepper = self._rows[number], self._stepper
        with self._lock:
            # The clock of the latest snapshot that is not after this clock.
            snapshot_clock = max((c for c in self._settings if c <= clock), default=None)
            if snapshot_clock is None:
                raise RuntimeError(
                    f"item {number} is to be updated at clock {clock}, and settings are known from "
                    f"{sorted(self._settings)} on: call snapshot({clock}) before"
                )
            settings = self._settings[snapshot_clock]
        updated: dict[int, list[nn.Parameter]] = {}  # parameter group -> rows to update now
        for p, group, gradient in zip(rows, self._groups[number], gradients, strict=True):
            if gradient is not None:
                updated.setdefault(group, []).append(p)
                p.grad = gradient
        stepper.state = self._optimizer.state  # `load_state_dict` replaces the dictionary
        stepper.param_groups = [{**settings[g], "params": parts} for g, parts in updated.items()]
        try:
            if updated:
                stepper.step()
        finally:
            for p in rows:
                p.grad = None
        self._count_update(clock)

    @property
    def kept_clocks(self) -> list[int]:
        """The clocks whose settings are stored."""
        return sorted(self._settings)

    def _count_update(self, clock: int) -> None:
        """Counts an update, and drops the settings of clocks that have had all their updates."""
        with self._lock:
            self._updates_left[clock] = self._updates_left.get(clock, self._updates_per_clock) - 1
            while self._updates_left.get(self._oldest_clock) == 0:
                del self._updates_left[self._oldest_clock]
                self._oldest_clock += 1
            self._drop_old_settings()

    def _drop_old_settings(self) -> None:
        """Drops the settings before those of the oldest update that is still to come. Needs the lock."""
        needed = max((c for c in self._settings if c <= self._oldest_clock), default=0)
        for clock in [c for c in self._settings if c < needed]:
            del self._settings[clock]


def _copy_settings(group: dict[str, Any]) -> dict[str, Any]:
    """Returns a copy of a group's settings. It clones tensors, as a scheduler may change them in place."""
    return {
        name: value.clone() if isinstance(value, Tensor) else value
        for name, value in group.items()
        if name not in ("params", "param_names")
    }
