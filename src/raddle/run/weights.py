"""Weights where steps overlap: a backward finds those of its forward though newer ones are there.

An update writes into a parameter's memory only if nothing under way uses what it holds; else the parameter
moves to other memory first, and the old weights stay with those that use them (weight stashing). With the
plan's "latest" it always writes, and a backward uses what is there by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from raddle.plan.pipelining import keeps_weights
from raddle.plan.plan import Plan
from raddle.run.actions import Call, Forward, Step


class Used(NamedTuple):
    """That a piece of a parameter was used, or updated (`phase` U), by a step: a line of the log."""

    slot: int
    phase: str
    step: int
    micro: int
    version: int


class Weights:
    """The versions of one rank's parameters that something uses or will use."""

    def __init__(self, plan: Plan) -> None:
        self.stash = keeps_weights(plan)
        self.done: dict[int, int] = {}  # updates so far, by slot
        self.older: dict[tuple[int, int], Tensor] = {}  # replaced, but not used for the last time
        self.using: dict[int, int] = {}  # backwards to come that use the present weights, by slot
        self.grads: dict[tuple[int, int], Tensor] = {}  # by step and slot
        self.sums: dict[tuple[int, int], tuple[Any, Tensor]] = {}  # under way, by step and slot
        self.log: list[Used] = []

    def use(self, slots: Sequence[Any], action: Forward) -> list[Tensor]:
        """Leaves for a forward on the versions that it says, or on the latest."""
        call = action.call
        versions = action.versions or [self.done.get(s, 0) for s in call.weights]
        leaves = []
        for slot, version in zip(call.weights, versions, strict=True):
            there = self.done.get(slot, 0)
            assert version == there or (slot, version) in self.older, (
                f"version {version} of slot {slot} is gone: {there} is there"
            )
            held = slots[slot].data if version == there else self.older[slot, version]
            leaves.append(held.detach().requires_grad_(call.backward))
            self.log.append(Used(slot, "F", call.key.step, call.key.micro, version))
            if version == there and call.backward:
                self.using[slot] = self.using.get(slot, 0) + 1
        for slot, version in action.spent:
            self.older.pop((slot, version))
        return leaves

    def used(self, slots: Sequence[Any], call: Call, weights: Iterable[Tensor]) -> None:
        """A backward is done with its weights."""
        for slot, leaf in zip(call.weights, weights, strict=True):
            if leaf.data_ptr() == slots[slot].data_ptr():
                self.using[slot] -= 1
            there = self.done.get(slot, 0)
            self.log.append(Used(slot, "B", call.key.step, call.key.micro, there))

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

    def make_room(self, action: Step, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Before an update: what others use is not written."""
        for slot, parameter in zip(action.slots, parameters, strict=True):
            version = self.done.get(slot, 0)
            if slot in action.kept:
                self.older[slot, version] = parameter.data
            if self.stash and (self.using.get(slot) or slot in action.kept):
                parameter.data = parameter.data.clone()
                self.using[slot] = 0
            self.done[slot] = version + 1
            self.log.append(Used(slot, "U", action.key.step, 0, version + 1))
