"""Master weights of parameters that devices hold in a narrower dtype than the module's.

The optimizer updates the master weights, and their values are rounded to the parameters. Other parameters
are their own master weights. With ZeRO, shards are the master weights of the gathered parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from raddle.runtime.actions import ShardView
from raddle.runtime.execution.store import Store


class MasterWeights:
    """The master weights of one rank. shards: ZeRO-2's, which may be tensors of their own."""

    def __init__(self, store: Store, shards: Sequence[ShardView] = ()) -> None:
        self.store, self.shards = store, shards
        # Slot of a parameter that has master weights -> these
        self.by_slot: dict[int, nn.Parameter] = {}

    def make(self, slots: Sequence[int], originals: Mapping[int, Tensor]) -> None:
        """Makes the master weights of the parameters in these slots, which this rank updates.

        originals: slot -> the values in the module's dtype, of parameters that are in another dtype.
        """
        for slot in slots:
            if slot in originals:
                self.by_slot[slot] = nn.Parameter(originals[slot].detach().clone())

    def of(self, slot: int) -> nn.Parameter:
        """Returns the parameter that the optimizer updates."""
        parameter: nn.Parameter = self.by_slot.get(slot, self.store.slots[slot])
        return parameter

    def write(self, slot: int, tensor: Tensor) -> None:
        """Gives a parameter, its master weights and its shard new values."""
        with torch.no_grad():
            self.store.slots[slot].copy_(tensor)
            if slot in self.by_slot:
                self.by_slot[slot].copy_(tensor)
            for view in self.shards:
                if view.parameter_slot == slot:
                    self.store.slots[view.shard.slot].copy_(tensor[view.rows])

    def update(
        self, slots: Sequence[int], gradients: Sequence[Tensor], optimizer_step: Callable[[], None]
    ) -> None:
        """Updates the parameters in these slots, each with its gradient."""
        for slot, gradient in zip(slots, gradients, strict=True):
            parameter = self.of(slot)
            parameter.grad = gradient.to(parameter.dtype)
        optimizer_step()
        for slot in slots:
            self.of(slot).grad = None
            if slot in self.by_slot:
                with torch.no_grad():
                    self.store.slots[slot].copy_(self.by_slot[slot])
