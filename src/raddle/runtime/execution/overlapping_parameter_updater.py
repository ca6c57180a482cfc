"""The parameter updater for overlapping steps (asynchronous pipelines).

Each step has its own gradients. A parameter is updated as soon as its gradient of a step is complete, while
other steps still run; forwards that began earlier use stashed old weights (weight_stash.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from raddle.runtime.actions import Call, Forward, StartAllReduce, UpdateParameters
from raddle.runtime.execution.parameter_updater import ParameterUpdater, start_sum
from raddle.runtime.weight_stash import WeightStash, WeightUse


class OverlappingParameterUpdater(ParameterUpdater):
    """Updates each parameter as soon as its gradient of a step is complete.

    latest: forwards use the newest weights (greedy schedules: greedy.py), not the weight versions that the
    program gives them. A version is the number of updates that a weight has had.
    """

    def __init__(self, *args: Any, latest: bool = False, **more: Any) -> None:
        super().__init__(*args, **more)
        self.latest = latest
        self.stash = WeightStash(latest=latest)

    def load(self, originals: Mapping[int, Tensor]) -> None:
        """Makes master weights. Each all-reduce allocates its buffer, as several steps may be in flight."""
        self.masters.make(self.updated_slots, originals)

    def begin(self, *, updating: bool) -> None:
        self.stash = WeightStash(latest=self.latest)  # versions count from the first step of a run

    def end_step(self, step: int) -> None:
        self.stash.end_step(step)

    def weight_uses(self) -> list[WeightUse]:
        return self.stash.uses

    def weights_for(self, action: Forward) -> list[Tensor]:
        if action.recomputation:
            return super().weights_for(action)
        return self.stash.weights_for(self.store.slots, action)

    def release_weights(self, call: Call, weights: Sequence[Tensor]) -> None:
        self.stash.release(self.store.slots, call, weights)

    def accumulate(self, call: Call, gradients: Sequence[Tensor | None]) -> None:
        for slot, gradient in zip(call.weights, gradients, strict=False):
            if gradient is not None:
                self.stash.add_gradient(call.key.step, slot, gradient)

    def accumulated_gradient(self, call: Call, slot: int) -> Tensor | None:
        return self.stash.grads.get((call.key.step, slot))

    def set_gradient(self, call: Call, slot: int, gradient: Tensor) -> None:
        self.stash.grads[call.key.step, slot] = gradient

    def start_all_reduce(self, action: StartAllReduce) -> None:
        """Starts the all-reduce of a bucket of one step's gradients."""
        step, slots = action.key.step, self.buckets[action.bucket].slots
        gradients = [self.stash.take_gradient(step, s, self.store.slots[s]) for s in slots]
        flat = torch.cat([t.reshape(-1) for t in gradients])
        devices = self.buckets[action.bucket].devices
        pending = start_sum(self.transport, devices, action, flat, sum_dtype=self.sum_dtype)
        pieces = torch.split(flat, [t.numel() for t in gradients])
        for slot, piece, gradient in zip(slots, pieces, gradients, strict=True):
            self.stash.sums[step, slot] = pending, piece.view(gradient.shape)

    def update_parameters(self, action: UpdateParameters) -> None:
        """Updates the parameters in `action.slots`, whose gradients of this step are complete."""
        parameters = [self.store.slots[s] for s in action.slots]
        gradients = [
            self.stash.take_gradient(action.key.step, s, p)
            for s, p in zip(action.slots, parameters, strict=True)
        ]
        self.stash.stash_before_update(action, parameters)
        self.masters.update(action.slots, gradients, self.optimizer_step)
