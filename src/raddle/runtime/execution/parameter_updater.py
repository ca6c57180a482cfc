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
from raddle.runtime.weight_stash import Used
from raddle.transport.base import Pending, Transport, Widened


class Parameters:
    """The parameters of one rank, all of which an optimizer updates at once.

    `narrow` names the type in which gradients travel, if it is another than theirs.
    """

    def __init__(
        self, store: Store, transport: Transport, updated: Sequence[int] = (),
        buckets: Sequence[Bucket] = (), *, narrow: str = "",
    ) -> None:  # fmt: skip
        self.store, self.transport, self.updated, self.buckets = store, transport, updated, buckets
        self.narrow = narrow
        self.flat: list[Tensor] = []  # by bucket
        self._place: dict[int, Tensor] = {}  # parameter -> its place in a bucket
        self._sums: list[Pending] = []  # under way
        self.update: Callable[[], None] = lambda: None  # the optimizer's step

    def load(self) -> None:
        """Parameters are in their slots: buckets are made for their gradients."""
        if self.flat:
            return
        for bucket in self.buckets:
            flat = torch.zeros(bucket.elements, dtype=bucket.dtype, device=self.store.place)
            shapes = [self.store.shapes[slot] for slot in bucket.slots]
            pieces = torch.split(flat, [torch.Size(shape).numel() for shape in shapes])
            for slot, shape, piece in zip(bucket.slots, shapes, pieces, strict=True):
                self._place[slot] = piece.view(shape)
            self.flat.append(flat)

    def begin(self, *, updating: bool) -> None:
        """A run begins."""

    def end(self, step: int) -> None:
        """Nothing of a step is to come."""

    def log(self) -> list[Used]:
        """Which versions of weights were used, where steps overlap."""
        return []

    # -- for segments ----------------------------------------------------------------------------------

    def use(self, action: Forward) -> list[Tensor]:
        """The weights that a forward runs on."""
        slots = self.store.slots
        return [slots[s] for s in action.call.weights]

    def used(self, call: Call, weights: Sequence[Tensor]) -> None:
        """A backward is done with its weights."""

    def accumulate(self, call: Call, found: Sequence[Tensor | None]) -> None:
        """Gradients of a call's weights add up over the micro-batches of a step."""
        store = self.store
        for slot, gradient in zip(call.weights, found, strict=False):
            if gradient is None:
                continue
            place = self._place.get(slot)
            if place is None:
                store.add(slot, gradient)
            elif slot in store.given:
                place += gradient
            else:
                place.copy_(gradient)
                store.grads[slot] = place
                store.owned.add(slot)
            store.given.add(slot)

    def so_far(self, call: Call, slot: int) -> Tensor | None:
        """What has been added up, for autograd to add to."""
        place = self._place.get(slot)
        if place is None:
            return self.store.grads[slot]
        if slot not in self.store.given:
            place.zero_()
        return place

    def put(self, call: Call, slot: int, gradient: Tensor) -> None:
        """Autograd has added to what was there so far."""
        self.store.grads[slot] = gradient
        self.store.owned.add(slot)
        self.store.given.add(slot)

    # -- actions ---------------------------------------------------------------------------------------

    def sum(self, action: StartAllReduce) -> None:
        """Starts the sum of a bucket."""
        store = self.store
        for slot in self.buckets[action.bucket].slots:
            if slot not in store.given:
                self._place[slot].zero_()
                store.grads[slot] = self._place[slot]
                store.given.add(slot)
        self._sums.append(self._all_reduce(action, self.flat[action.bucket]))

    def _all_reduce(self, action: StartAllReduce, flat: Tensor) -> Pending:
        devices = self.buckets[action.bucket].devices
        if not self.narrow:
            return self.transport.all_reduce(devices, action.tag, flat, action.label)
        sent = flat.to(getattr(torch, self.narrow))
        return Widened(
            self.transport.all_reduce(devices, action.tag, sent, action.label), sent, flat
        )

    def give(self, action: SubmitGradients) -> None:
        raise AssertionError("only slices are handed in")

    def leave(self, action: StartSliceAllReduce) -> None:
        raise AssertionError("only slices have an order")

    def step(self, action: UpdateParameters) -> None:
        """All gradients are there: the optimizer updates all parameters of this rank."""
        store = self.store
        for pending in self._sums:
            pending.wait()
        self._sums.clear()
        for slot in self.updated:
            if slot not in store.given:  # of a share that no operator read
                store.grads[slot] = torch.zeros_like(store.slots[slot])
            store.slots[slot].grad = store.grads[slot]
        self.update()
        for slot in self.updated:
            store.slots[slot].grad = None
            store.forget(slot)
