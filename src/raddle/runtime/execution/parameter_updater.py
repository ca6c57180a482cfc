"""Accumulates, all-reduces and applies the gradients of a rank's parameters: one optimizer step per step.

This is the default. Gradients are all-reduced in buckets. Three subclasses replace it:
sharded_parameter_updater.py (ZeRO); sliced_parameter_updater.py, where slices of parameters are
synchronised and updated during the step; and overlapping_parameter_updater.py, where steps overlap. A call
is a generated function for some operators in one micro-batch (actions.py); `call.weights` are the slots of
the parameters that it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from raddle.runtime.actions import (
    Bucket,
    Call,
    Forward,
    StartAllReduce,
    UpdateParameters,
)
from raddle.runtime.execution.master_weights import MasterWeights
from raddle.runtime.execution.store import Store
from raddle.runtime.weight_stash import WeightUse
from raddle.transport.base import Pending, Transport, WidenedSum


class ParameterUpdater:
    """The gradients and updates of one rank's parameters, which are identified by their slots.

    sum_dtype: the dtype in which gradients are all-reduced, for example "bfloat16"; "": their own.
    """

    def __init__(
        self, store: Store, transport: Transport, updated_slots: Sequence[int] = (),
        buckets: Sequence[Bucket] = (), *, sum_dtype: str = "",
    ) -> None:  # fmt: skip
        self.store, self.transport, self.updated_slots, self.buckets = (
            store,
            transport,
            updated_slots,
            buckets,
        )
        self.sum_dtype = sum_dtype
        self.bucket_buffers: list[Tensor] = []  # one flat tensor for each bucket
        # Slot -> its gradient, a view of a bucket buffer
        self._bucket_views: dict[int, Tensor] = {}
        self._pending_sums: list[Pending] = []  # all-reduces in flight
        self.masters = MasterWeights(store)  # what the optimizer updates
        self.optimizer_step: Callable[[], None] = lambda: None  # set by the executor

    def load(self, originals: Mapping[int, Tensor]) -> None:
        """Makes master weights, and buffers of the buckets; called when parameters are in their slots.

        originals: slot of a parameter -> its values in the module's dtype, if the slot has another dtype.
        """
        self.masters.make(self.updated_slots, originals)
        if self.bucket_buffers:
            return
        for bucket in self.buckets:
            flat = torch.zeros(bucket.elements, dtype=bucket.dtype, device=self.store.place)
            shapes = [self.store.shapes[slot] for slot in bucket.slots]
            pieces = torch.split(flat, [torch.Size(shape).numel() for shape in shapes])
            for slot, shape, piece in zip(bucket.slots, shapes, pieces, strict=True):
                self._bucket_views[slot] = piece.view(shape)
            self.bucket_buffers.append(flat)

    def begin(self, *, updating: bool) -> None:
        """Begins a run (one step, or all overlapping steps).

        updating: False if the run only accumulates gradients and ends without an update.
        """

    def end_step(self, step: int) -> None:
        """Ends a step; called after its last action."""

    def synchronize(self) -> None:
        """Waits for transfers of parameters that go on after a step; only ZeRO has such transfers."""

    def await_weights(self, call: Call) -> None:
        """Waits until the weights of a call are in their slots; without sharding they always are."""

    def weight_uses(self) -> list[WeightUse]:
        """Returns the log of used weight versions; empty unless steps overlap."""
        return []

    # -- called by Segments ----------------------------------------------------------------------------

    def weights_for(self, action: Forward) -> list[Tensor]:
        """Returns the weights that a forward runs on, in the order of `call.weights`."""
        slots = self.store.slots
        return [slots[s] for s in action.call.weights]

    def release_weights(self, call: Call, weights: Sequence[Tensor]) -> None:
        """Notes that a backward no longer needs its weights."""

    def accumulate(self, call: Call, gradients: Sequence[Tensor | None]) -> None:
        """Adds the gradients of a call's weights to those of earlier micro-batches."""
        store = self.store
        for slot, gradient in zip(call.weights, gradients, strict=False):
            if gradient is None:
                continue
            view = self._bucket_views.get(slot)
            if view is None:
                store.add_gradient(slot, with_strides_of(store.slots[slot], gradient))
            elif slot in store.with_gradient:
                view += gradient
            else:
                view.copy_(gradient)
                store.grads[slot] = view
                store.exclusive.add(slot)  # no other tensor has this memory: it may be changed
            store.with_gradient.add(slot)

    def accumulated_gradient(self, call: Call, slot: int) -> Tensor | None:
        """Returns the gradient of earlier micro-batches; it becomes `.grad`, to which autograd adds."""
        view = self._bucket_views.get(slot)
        if view is None:
            return self.store.grads[slot]
        if slot not in self.store.with_gradient:
            view.zero_()
        return view

    def set_gradient(self, call: Call, slot: int, gradient: Tensor) -> None:
        """Takes the gradient back after autograd has added to it."""
        self.store.grads[slot] = gradient
        self.store.exclusive.add(slot)
        self.store.with_gradient.add(slot)

    # -- called by the executor --------------------------------------------------------------------------

    @property
    def handlers(self) -> dict[type, Callable[[Any], None]]:
        """Kind of action -> the method that carries it out, for the kinds that this updater gets."""
        return {StartAllReduce: self.start_all_reduce, UpdateParameters: self.update_parameters}

    def start_all_reduce(self, action: StartAllReduce) -> None:
        """Starts the all-reduce of a bucket; parameters without a gradient count as zero."""
        store = self.store
        for slot in self.buckets[action.bucket].slots:
            if slot not in store.with_gradient:
                self._bucket_views[slot].zero_()
                store.grads[slot] = self._bucket_views[slot]
                store.with_gradient.add(slot)
        flat, devices = self.bucket_buffers[action.bucket], self.buckets[action.bucket].devices
        self._pending_sums.append(
            start_sum(self.transport, devices, action, flat, sum_dtype=self.sum_dtype)
        )

    def update_parameters(self, action: UpdateParameters) -> None:
        """Waits for all gradients, then lets the optimizer update all parameters of this rank."""
        store = self.store
        for pending in self._pending_sums:
            pending.wait()
        self._pending_sums.clear()
        gradients = []
        for slot in self.updated_slots:
            gradient = store.grads[slot] if slot in store.with_gradient else None
            # None: no operator here reads this region
            gradients.append(torch.zeros_like(store.slots[slot]) if gradient is None else gradient)
        self.masters.update(self.updated_slots, gradients, self.optimizer_step)
        for slot in self.updated_slots:
            store.clear_gradient(slot)


def with_strides_of(parameter: Tensor, gradient: Tensor) -> Tensor:
    """Returns a gradient with the strides of its parameter, as autograd gives to `.grad`.

    A compiled backward may lay the gradient of a convolution's weight out channels-last. One such gradient
    would make a fused optimizer launch a kernel for each parameter.
    """
    strides = parameter.stride()
    if gradient.stride() == strides:
        return gradient
    dims = zip(gradient.shape, gradient.stride(), strides, strict=True)
    if all(size == 1 or stride == target for size, stride, target in dims):
        return gradient.as_strided(gradient.shape, strides)
    return torch.empty_like(parameter).copy_(gradient)


def start_sum(
    transport: Transport, devices: tuple[int, ...], action: StartAllReduce, flat: Tensor, *,
    sum_dtype: str,
) -> Pending:  # fmt: skip
    """Starts the all-reduce of a flat buffer; returns the transfer. sum_dtype: as in ParameterUpdater."""
    if not sum_dtype:
        return transport.all_reduce(devices, action.tag, flat, action.label)
    narrowed = flat.to(getattr(torch, sum_dtype))
    return WidenedSum(  # its `wait` copies the sum from `narrowed` back into `flat`
        transport.all_reduce(devices, action.tag, narrowed, action.label), narrowed, flat
    )
