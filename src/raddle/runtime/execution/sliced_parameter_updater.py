"""Parameters in slices: gradients are handed to a synchroniser, a forward waits for its weights alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from raddle.runtime.actions import Forward, StartSliceAllReduce, SubmitGradients, UpdateParameters
from raddle.runtime.execution.parameter_updater import ParameterUpdater
from raddle.runtime.execution.store import Store
from raddle.runtime.parameter_sync import Agreeing
from raddle.transport.base import Transport


class SlicedParameters(ParameterUpdater):
    """`agree` is made when the parameters are in their slots, unless another executor lends its own."""

    def __init__(self, store: Store, transport: Transport, agree: Callable[[], Agreeing]) -> None:
        super().__init__(store, transport)
        self._agree = agree
        self.agreeing: Agreeing | None = None

    def load(self) -> None:
        self.agreeing = self.agreeing or self._agree()

    def begin(self, *, updating: bool) -> None:
        if updating:
            self._agreeing.begin()

    def use(self, action: Forward) -> list[Tensor]:
        if action.call.weights:
            self._agreeing.wait(action.call.weights)
        return super().weights_for(action)

    def give(self, action: SubmitGradients) -> None:
        """Hands in gradients that are complete."""
        for slot in action.slots:
            gradient = self.store.grads[slot]
            if gradient is None:
                gradient = torch.zeros_like(self.store.slots[slot])
            self._agreeing.give(slot, gradient)
            self.store.forget(slot)

    def leave(self, action: StartSliceAllReduce) -> None:
        """It is a slice's turn to be summed."""
        self._agreeing.leave(action.number)

    def step(self, action: UpdateParameters) -> None:
        self._agreeing.finish(self.optimizer_step)

    @property
    def _agreeing(self) -> Agreeing:
        assert self.agreeing is not None, "parameters are not loaded"
        return self.agreeing
