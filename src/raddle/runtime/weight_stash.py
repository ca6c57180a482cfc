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


class Used(NamedTuple):
    """That a forward (F) used a piece of a parameter, or that it was updated (U): a line of the log."""

    slot: int
    phase: str
    step: int
    micro: int
    version: int


class Weights:
    """The versions of one rank's parameters that something uses or will use."""

    def __init__(self, *, latest: bool = False) -> None:
        self.latest = latest  # a forward takes what is there, and not what the program says
        self.first: dict[
            tuple[int, int, int], tuple[int, Tensor]
        ] = {}  # by step, micro-batch, slot
        self.done: dict[int, int] = {}  # updates so far, by slot
        self.older: dict[tuple[int, int], Tensor] = {}  # replaced, but not used for the last time
        self.using: dict[int, int] = {}  # backwards to come that use the present weights, by slot
        self.grads: dict[tuple[int, int], Tensor] = {}  # by step and slot
        self.sums: dict[tuple[int, int], tuple[Any, Tensor]] = {}  # under way, by step and slot
        self.log: list[Used] = []

    def use(self, slots: Sequence[Any], action: Forward) -> list[Tensor]:
        """Leaves for a forward on the versions that it says, or on the latest."""
        call = action.call
        leaves = []
        for at, slot in enumerate(call.weights):
            there = self.done.get(slot, 0)
            if self.latest:  # a micro-batch that uses it several times uses one version
                own = (call.key.step, call.key.micro_batch, slot)
                version, held = self.first.setdefault(own, (there, slots[slot].data))
            else:
                version = action.versions[at]
                held = slots[slot].data if version == there else self.older[slot, version]
            leaves.append(held.detach().requires_grad_(call.backward))
            self.log.append(Used(slot, "F", call.key.step, call.key.micro_batch, version))
            if version == there and call.backward:
                self.using[slot] = self.using.get(slot, 0) + 1
        for slot, version in () if self.latest else action.expired_versions:
            self.older.pop((slot, version))
        return leaves

    def used(self, slots: Sequence[Any], call: Call, weights: Iterable[Tensor]) -> None:
        """A backward is done with its weights."""
        for slot, leaf in zip(call.weights, weights, strict=True):
            if leaf.data_ptr() == slots[slot].data_ptr():
                self.using[slot] -= 1

    def end(self, step: int) -> None:
        """Nothing of a step is to come."""
        for own in [own for own in self.first if own[0] == step]:
            del self.first[own]

    def add(self, step: int, slot: int, gradient: Tensor) -> None:
        known = self.grads.get((step, slot))
        self.grads[step, slot] = gradient if known is None else known + gradient

    def take(self, step: int, slot: int, parameter: Tensor) -> Tensor:
        """A step's gradient of a parameter, summed over all that hold it."""
        if (step, slot) in self.sums:
            pending, flat = self.sums.pop((step, slot))
            pending.wait()
            return flat
        found = self.grads.pop((step, slot), None)
        return torch.zeros_like(parameter) if found is None else found

    def make_room(self, action: UpdateParameters, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Before an update: what others use is not written."""
        for slot, parameter in zip(action.slots, parameters, strict=True):
            version = self.done.get(slot, 0)
            kept = slot in action.stashed and not self.latest
            if kept:
                self.older[slot, version] = parameter.data
            if self.using.get(slot) or kept:
                parameter.data = parameter.data.clone()
                self.using[slot] = 0
            self.done[slot] = version + 1
            self.log.append(Used(slot, "U", action.key.step, 0, version + 1))
