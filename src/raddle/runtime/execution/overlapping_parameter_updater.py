"""Parameters where steps overlap: a step has gradients of its own, weights are updated one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from raddle.runtime.actions import Call, Forward, StartAllReduce, UpdateParameters
from raddle.runtime.execution.parameter_updater import Parameters
from raddle.runtime.weight_stash import Used, Weights


class OverlappingParameters(Parameters):
    """`latest`: a forward takes the weights that are there, and not those that the program says."""

    def __init__(self, *args: Any, latest: bool = False, **more: Any) -> None:
        super().__init__(*args, **more)
        self.latest = latest
        self.weights = Weights(latest=latest)

    def load(self) -> None:
        """Sums have memory of their own."""

    def begin(self, *, updating: bool) -> None:
        self.weights = Weights(latest=self.latest)  # versions count from the first step of a run

    def end(self, step: int) -> None:
        self.weights.end(step)

    def log(self) -> list[Used]:
        return self.weights.log

    def use(self, action: Forward) -> list[Tensor]:
        if action.recomputation:
            return super().use(action)
        return self.weights.use(self.store.slots, action)

    def used(self, call: Call, weights: Sequence[Tensor]) -> None:
        self.weights.used(self.store.slots, call, weights)

    def accumulate(self, call: Call, found: Sequence[Tensor | None]) -> None:
        for slot, gradient in zip(call.weights, found, strict=False):
            if gradient is not None:
                self.weights.add(call.key.step, slot, gradient)

    def so_far(self, call: Call, slot: int) -> Tensor | None:
        return self.weights.grads.get((call.key.step, slot))

    def put(self, call: Call, slot: int, gradient: Tensor) -> None:
        self.weights.grads[call.key.step, slot] = gradient

    def sum(self, action: StartAllReduce) -> None:
        step, slots = action.key.step, self.buckets[action.bucket].slots
        found = [self.weights.take(step, s, self.store.slots[s]) for s in slots]
        flat = torch.cat([t.reshape(-1) for t in found])
        pending = self._all_reduce(action, flat)
        pieces = torch.split(flat, [t.numel() for t in found])
        for slot, piece, tensor in zip(slots, pieces, found, strict=True):
            self.weights.sums[step, slot] = pending, piece.view(tensor.shape)

    def step(self, action: UpdateParameters) -> None:
        """Updates the parameters whose gradients of a step are complete."""
        parameters = [self.store.slots[s] for s in action.slots]
        gradients = [
            self.weights.take(action.key.step, s, p)
            for s, p in zip(action.slots, parameters, strict=True)
        ]
        self.weights.make_room(action, parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        self.update()
        for parameter in parameters:
            parameter.grad = None
