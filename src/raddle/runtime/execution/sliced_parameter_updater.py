"""The parameter updater for parameters that are synchronised slice by slice (parameter servers, P3).

A slice is a range of rows of a parameter; a bundle is slices that are synchronised together.

Complete gradients are submitted (passed to the ParameterSync) during the backward. If slices have
priorities (P3), the rank does not wait at the end of a step: each forward waits only until its own weights
are up to date.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from raddle.runtime.actions import Forward, StartSliceAllReduce, SubmitGradients, UpdateParameters
from raddle.runtime.execution.parameter_updater import ParameterUpdater
from raddle.runtime.execution.store import Store
from raddle.runtime.parameter_sync import ParameterSync
from raddle.transport.base import Transport


class SlicedParameterUpdater(ParameterUpdater):
    """Passes gradients to a ParameterSync, which synchronises and updates the slices.

    make_sync: makes the ParameterSync when parameters are loaded, unless `parameter_sync` was set before:
    two executors of a rank can share one.
    """

    def __init__(
        self, store: Store, transport: Transport, make_sync: Callable[[], ParameterSync]
    ) -> None:
        super().__init__(store, transport)
        self._make_sync = make_sync
        self.parameter_sync: ParameterSync | None = None

    def load(self, originals: Mapping[int, Tensor]) -> None:
        self.parameter_sync = self.parameter_sync or self._make_sync()

    def begin(self, *, updating: bool) -> None:
        if updating:
            self._loaded_sync.begin_step()

    def weights_for(self, action: Forward) -> list[Tensor]:
        if action.call.weights:
            self._loaded_sync.wait(action.call.weights)
        return super().weights_for(action)

    @property
    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {
            SubmitGradients: self.submit_gradients,
            StartSliceAllReduce: self.start_slice_all_reduce,
            UpdateParameters: self.update_parameters,
        }

    def submit_gradients(self, action: SubmitGradients) -> None:
        """Submits complete gradients; for parameters without a gradient it submits zeros."""
        for slot in action.slots:
            gradient = self.store.grads[slot]
            if gradient is None:
                gradient = torch.zeros_like(self.store.slots[slot])
            self._loaded_sync.submit(slot, gradient)
            self.store.clear_gradient(slot)

    def start_slice_all_reduce(self, action: StartSliceAllReduce) -> None:
        """Starts the all-reduce of one bundle of slices, with the sync kind p3:collective.

        This kind has no servers: each rank with a copy of a slice updates the copy after the all-reduce.
        """
        self._loaded_sync.start_slice_all_reduce(action.number)

    def update_parameters(self, action: UpdateParameters) -> None:
        """Ends the step of the ParameterSync, which calls `optimizer_step` only if there is a barrier."""
        self._loaded_sync.finish_step(self.optimizer_step)

    @property
    def _loaded_sync(self) -> ParameterSync:
        assert self.parameter_sync is not None, "parameters are not loaded"
        return self.parameter_sync
