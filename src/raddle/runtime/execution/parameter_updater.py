"""How parameters of a rank get their gradients and are updated: after a step, from sums in buckets.

This is what every plan does that says nothing else. Two others take its place: `sliced.py` where slices are
updated while others compute, and `overlapping.py` where steps overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from raddle.runtime.actions import (
    Bucket,
    Call,
    Forward,
    StartAllReduce,
    StartSliceAllReduce,
    SubmitGradients,
    UpdateParameters,
)
from raddle.runtime.execution.store import Store
from raddle.runtime.weight_stash import WeightUse
from raddle.transport.base import Pending, Transport, WidenedSum


class ParameterUpdater:
    """The parameters of one rank, all of which an optimizer updates at once.

    `narrow` names the type in which gradients travel, if it is another than theirs.
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
        self.bucket_buffers: list[Tensor] = []  # by bucket
        self._bucket_views: dict[int, Tensor] = {}  # parameter -> its place in a bucket
        self._pending_sums: list[Pending] = []  # under way
        self.optimizer_step: Callable[[], None] = lambda: None  # the optimizer's step

    def load(self) -> None:
        """Parameters are in their slots: buckets are made for their gradients."""
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
        """A run begins."""

    def end_step(self, step: int) -> None:
        """Nothing of a step is to come."""

    def weight_uses(self) -> list[WeightUse]:
        """Which versions of weights were used, where steps overlap."""
        return []

    # -- for segments ----------------------------------------------------------------------------------

    def weights_for(self, action: Forward) -> list[Tensor]:
        """The weights that a forward runs on."""
        slots = self.store.slots
        return [slots[s] for s in action.call.weights]

    def release_weights(self, call: Call, weights: Sequence[Tensor]) -> None:
        """A backward is done with its weights."""

    def accumulate(self, call: Call, gradients: Sequence[Tensor | None]) -> None:
        """Gradients of a call's weights add up over the micro-batches of a step."""
        store = self.store
        for slot, gradient in zip(call.weights, gradients, strict=False):
            if gradient is None:
                continue
            view = self._bucket_views.get(slot)
            if view is None:
                store.add_gradient(slot, gradient)
            elif slot in store.with_gradient:
                view += gradient
            else:
                view.copy_(gradient)
                store.grads[slot] = view
                store.exclusive.add(slot)
            store.with_gradient.add(slot)

    def accumulated_gradient(self, call: Call, slot: int) -> Tensor | None:
        """What has been added up, for autograd to add to."""
        view = self._bucket_views.get(slot)
        if view is None:
            return self.store.grads[slot]
        if slot not in self.store.with_gradient:
            view.zero_()
        return view

    def set_gradient(self, call: Call, slot: int, gradient: Tensor) -> None:
        """Autograd has added to what was there so far."""
        self.store.grads[slot] = gradient
        self.store.exclusive.add(slot)
        self.store.with_gradient.add(slot)

    # -- actions ---------------------------------------------------------------------------------------

    def start_all_reduce(self, action: StartAllReduce) -> None:
        """Starts the sum of a bucket."""
        store = self.store
        for slot in self.buckets[action.bucket].slots:
            if slot not in store.with_gradient:
                self._bucket_views[slot].zero_()
                store.grads[slot] = self._bucket_views[slot]
                store.with_gradient.add(slot)
        self._pending_sums.append(self._start_sum(action, self.bucket_buffers[action.bucket]))

    def _start_sum(self, action: StartAllReduce, flat: Tensor) -> Pending:
        devices = self.buckets[action.bucket].devices
        if not self.sum_dtype:
            return self.transport.all_reduce(devices, action.tag, flat, action.label)
        narrowed = flat.to(getattr(torch, self.sum_dtype))
        return WidenedSum(
            self.transport.all_reduce(devices, action.tag, narrowed, action.label), narrowed, flat
        )

    def submit_gradients(self, action: SubmitGradients) -> None:
        raise AssertionError("only slices are handed in")

    def start_slice_all_reduce(self, action: StartSliceAllReduce) -> None:
        raise AssertionError("only slices have an order")

    def update_parameters(self, action: UpdateParameters) -> None:
        """All gradients are there: the optimizer updates all parameters of this rank."""
        store = self.store
        for pending in self._pending_sums:
            pending.wait()
        self._pending_sums.clear()
        for slot in self.updated_slots:
            if slot not in store.with_gradient:  # of a share that no operator read
                store.grads[slot] = torch.zeros_like(store.slots[slot])
            store.slots[slot].grad = store.grads[slot]
        self.optimizer_step()
        for slot in self.updated_slots:
            store.slots[slot].grad = None
            store.clear_gradient(slot)
