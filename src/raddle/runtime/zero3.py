"""Parameters that are divided among ranks: whole while segments use them, without memory otherwise.

A rank's own rows are in a tensor of their own, which is updated. What segments use is a parameter that has
its memory taken away and given back. Autograd keeps the parameter for the backward, not a copy, so the
backward finds whatever memory it has then; `.data` writes without counting as a change, as the rows are
those that the forward saw.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class GatheredParameter(NamedTuple):
    """A divided parameter (or a box of one) as segments use it, while they do."""

    slot: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    shard_slot: int  # the slot of this rank's rows of it; -1: it is the home of none
    shard_index: tuple[slice, ...]  # where these are in it


class GatheredParameters:
    """The divided parameters of one rank."""

    def __init__(self, parameters: Iterable[GatheredParameter], slots: list[Any]) -> None:
        self.by_slot: Mapping[int, GatheredParameter] = {whole.slot: whole for whole in parameters}
        self.slots = slots

    def create(self, slot: int, place: torch.device) -> None:
        """A parameter without memory."""
        gathered = self.by_slot[slot]
        tensor = torch.empty(gathered.shape, dtype=gathered.dtype, device=place)
        tensor.untyped_storage().resize_(0)
        self.slots[slot] = nn.Parameter(tensor)

    def allocate(self, slot: int) -> Tensor:
        """What others' rows are written into; with memory, and this rank's rows in it."""
        parameter, gathered = self.slots[slot], self.by_slot[slot]
        storage = parameter.untyped_storage()
        if not storage.size():
            storage.resize_(parameter.numel() * parameter.element_size())
            if gathered.shard_slot >= 0:
                parameter.data[gathered.shard_index] = self.slots[gathered.shard_slot].detach()
        tensor: Tensor = parameter.data
        return tensor

    def storage_addresses(self, slots: Iterable[int]) -> set[int]:
        """Where the memory of those that are divided begins; to use one that has none is no small error."""
        gathered_slots = [s for s in slots if s in self.by_slot] if self.by_slot else []
        storages = [self.slots[s].untyped_storage() for s in gathered_slots]
        for slot, storage in zip(gathered_slots, storages, strict=True):
            assert storage.size(), f"the parameter in slot {slot} is used before it was pulled"
        return {storage.data_ptr() for storage in storages}

    def release(self, slots: Iterable[int]) -> None:
        """Takes the memory away: nobody uses these until they are pulled again."""
        for slot in slots:
            self.slots[slot].untyped_storage().resize_(0)
