"""Weights where steps overlap: a backward finds those of its forward though newer ones are there.

An update writes into a parameter's memory only if nothing under way uses what it holds; else the parameter
moves to other memory first, and the old weights stay with those that use them (weight stashing).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from raddle.runtime.actions import Call, Forward, UpdateParameters


class WeightUse(NamedTuple):
    """That a forward (F) used a piece of a parameter, or that it was updated (U): a line of the log."""

    slot: int
    phase: str
    step: int
    micro: int
    version: int


class WeightStash:
    """The versions of one rank's parameters that something uses or will use."""

    def __init__(self, *, latest: bool = False) -> None:
        self.latest = latest  # a forward takes what is there, and not what the program says
        self.first_used: dict[
            tuple[int, int, int], tuple[int, Tensor]
        ] = {}  # by step, micro-batch, slot
        self.update_counts: dict[int, int] = {}  # updates so far, by slot
        self.stashed: dict[tuple[int, int], Tensor] = {}  # replaced, but not used for the last time
        self.pending_backwards: dict[
            int, int
        ] = {}  # backwards to come that use the present weights, by slot
        self.grads: dict[tuple[int, int], Tensor] = {}  # by step and slot
        self.sums: dict[tuple[int, int], tuple[Any, Tensor]] = {}  # under way, by step and slot
        self.uses: list[WeightUse] = []

    def weights_for(self, slots: Sequence[Any], action: Forward) -> list[Tensor]:
        """Leaves for a forward on the versions that it says, or on the latest."""
        call = action.call
        leaves = []
        for at, slot in enumerate(call.weights):
            latest_version = self.update_counts.get(slot, 0)
            if self.latest:  # a micro-batch that uses it several times uses one version
                key = (call.key.step, call.key.micro_batch, slot)
                version, weights = self.first_used.setdefault(
                    key, (latest_version, slots[slot].data)
                )
            else:
                version = action.versions[at]
                weights = (
                    slots[slot].data if version == latest_version else self.stashed[slot, version]
                )
            leaves.append(weights.detach().requires_grad_(call.backward))
            self.uses.append(WeightUse(slot, "F", call.key.step, call.key.micro_batch, version))
            if version == latest_version and call.backward:
                self.pending_backwards[slot] = self.pending_backwards.get(slot, 0) + 1
        for slot, version in () if self.latest else action.expired_versions:
            self.stashed.pop((slot, version))
        return leaves

    def release(self, slots: Sequence[Any], call: Call, weights: Iterable[Tensor]) -> None:
        """A backward is done with its weights."""
        for slot, leaf in zip(call.weights, weights, strict=True):
            if leaf.data_ptr() == slots[slot].data_ptr():
                self.pending_backwards[slot] -= 1

    def end_step(self, step: int) -> None:
        """Nothing of a step is to come."""
        for key in [first_key for first_key in self.first_used if first_key[0] == step]:
            del self.first_used[key]

    def add_gradient(self, step: int, slot: int, gradient: Tensor) -> None:
        accumulated = self.grads.get((step, slot))
        self.grads[step, slot] = gradient if accumulated is None else accumulated + gradient

    def take_gradient(self, step: int, slot: int, parameter: Tensor) -> Tensor:
        """A step's gradient of a parameter, summed over all that hold it."""
        if (step, slot) in self.sums:
            pending, flat = self.sums.pop((step, slot))
            pending.wait()
            return flat
        gradient = self.grads.pop((step, slot), None)
        return torch.zeros_like(parameter) if gradient is None else gradient

    def stash_before_update(
        self, action: UpdateParameters, parameters: Sequence[torch.nn.Parameter]
    ) -> None:
        """Before an update: what others use is not written."""
        for slot, parameter in zip(action.slots, parameters, strict=True):
            version = self.update_counts.get(slot, 0)
            is_stashed = slot in action.stashed and not self.latest
            if is_stashed:
                self.stashed[slot, version] = parameter.data
            if self.pending_backwards.get(slot) or is_stashed:
                parameter.data = parameter.data.clone()
                self.pending_backwards[slot] = 0
            self.update_counts[slot] = version + 1
            self.uses.append(WeightUse(slot, "U", action.key.step, 0, version + 1))
