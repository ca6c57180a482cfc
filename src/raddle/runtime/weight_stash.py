"""Weight stashing (PipeDream) for overlapping steps: a backward uses the same weights as its forward.

An update writes in place only if no forward or backward still needs the present weights. Otherwise the
parameter first gets new memory, and the old weights stay in the old memory as long as they are needed. The
version of a weight is the number of updates that it has had. A call is a generated function for some
operators in one micro-batch (actions.py); `call.weights` are the slots of the parameters that it reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from raddle.runtime.actions import Call, Forward, UpdateParameters


class WeightUse(NamedTuple):
    """A line of the log: a forward used a version of a weight, or an update made a new version."""

    slot: int  # of the parameter
    phase: str  # "F": used by a forward; "U": made by an update
    step: int
    micro: int  # micro-batch; of an update: 0
    version: int  # number of updates so far in this run


class WeightStash:
    """The weight versions and gradients of one rank's parameters in one run of overlapping steps."""

    def __init__(self, *, latest: bool = False) -> None:
        # Greedy schedules (greedy.py): forwards use the newest weights, not the versions in the program.
        self.latest = latest
        # Only with `latest`: (step, micro-batch, slot) -> version and weights of the first use.
        self.first_used: dict[tuple[int, int, int], tuple[int, Tensor]] = {}
        self.update_counts: dict[int, int] = {}  # slot -> updates so far
        # (slot, version) -> old weights still needed
        self.stashed: dict[tuple[int, int], Tensor] = {}
        # Slot -> number of backwards still to come that use the present weights.
        self.pending_backwards: dict[int, int] = {}
        self.grads: dict[tuple[int, int], Tensor] = {}  # (step, slot) -> gradient
        # (step, slot) -> pending all-reduce, and the gradient that it sums in place
        self.sums: dict[tuple[int, int], tuple[Any, Tensor]] = {}
        self.uses: list[WeightUse] = []  # the log

    def weights_for(self, slots: Sequence[Any], action: Forward) -> list[Tensor]:
        """Returns autograd leaves with the weights that a forward uses, in the order of `call.weights`."""
        call = action.call
        leaves = []
        for index, slot in enumerate(call.weights):
            latest_version = self.update_counts.get(slot, 0)
            if self.latest:  # all uses of a weight in one micro-batch have the same version
                key = (call.key.step, call.key.micro_batch, slot)
                version, weights = self.first_used.setdefault(
                    key, (latest_version, slots[slot].data)
                )
            else:
                version = action.versions[index]
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
        """Notes that a backward no longer needs its weights."""
        for slot, leaf in zip(call.weights, weights, strict=True):
            if leaf.data_ptr() == slots[slot].data_ptr():  # the parameter still has this memory
                self.pending_backwards[slot] -= 1

    def end_step(self, step: int) -> None:
        """Forgets the first uses of weights in a step that has ended."""
        for key in [first_key for first_key in self.first_used if first_key[0] == step]:
            del self.first_used[key]

    def add_gradient(self, step: int, slot: int, gradient: Tensor) -> None:
        """Adds to the gradient of a parameter in a step."""
        accumulated = self.grads.get((step, slot))
        self.grads[step, slot] = gradient if accumulated is None else accumulated + gradient

    def take_gradient(self, step: int, slot: int, parameter: Tensor) -> Tensor:
        """Removes and returns a step's gradient of a parameter, all-reduced if there was an all-reduce."""
        if (step, slot) in self.sums:
            pending, summed = self.sums.pop((step, slot))
            pending.wait()
            return summed
        gradient = self.grads.pop((step, slot), None)
        return torch.zeros_like(parameter) if gradient is None else gradient

    def stash_before_update(
        self, action: UpdateParameters, parameters: Sequence[torch.nn.Parameter]
    ) -> None:
        """Gives parameters new memory before an update, if their old weights are still needed."""
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
