"""ZeRO-3 parameters: gathered while segments use them, without memory otherwise.

Each rank has its own shard (rows of the parameter) in a separate tensor, which the optimizer updates.
Segments use a gathered parameter: a tensor whose storage is freed after use and allocated again before the
next use. Autograd saves this tensor for the backward, not a copy of it, so the backward finds the newly
gathered values. They are written through `.data`, so autograd does not refuse the backward because of a
changed tensor; this is correct, as the values are those of the forward.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class GatheredParameter(NamedTuple):
    """A sharded parameter, or a box of one, that a rank gathers before use."""

    slot: int
    shape: tuple[int, ...]
    dtype: torch.dtype


class GatheredParameters:
    """Allocates and frees the gathered parameters of one rank. slots: tensors by slot number."""

    def __init__(self, parameters: Iterable[GatheredParameter], slots: list[Any]) -> None:
        self.by_slot: Mapping[int, GatheredParameter] = {p.slot: p for p in parameters}
        self.slots = slots

    def create(self, slot: int, place: torch.device) -> None:
        """Puts a parameter without memory into a slot."""
        gathered = self.by_slot[slot]
        tensor = torch.empty(gathered.shape, dtype=gathered.dtype, device=place)
        tensor.untyped_storage().resize_(0)
        self.slots[slot] = nn.Parameter(tensor)

    def allocate(self, slot: int) -> Tensor:
        """Returns the tensor to gather into; allocates it, if necessary."""
        parameter = self.slots[slot]
        storage = parameter.untyped_storage()
        if not storage.size():
            storage.resize_(parameter.numel() * parameter.element_size())
        tensor: Tensor = parameter.data
        return tensor

    def storage_addresses(self, slots: Iterable[int]) -> set[int]:
        """Returns the storage addresses of the gathered parameters in these slots; all must have memory."""
        gathered_slots = [s for s in slots if s in self.by_slot] if self.by_slot else []
        storages = [self.slots[s].untyped_storage() for s in gathered_slots]
        for slot, storage in zip(gathered_slots, storages, strict=True):
            assert storage.size(), f"the parameter in slot {slot} is used before it was gathered"
        return {storage.data_ptr() for storage in storages}

    def release(self, slots: Iterable[int]) -> None:
        """Frees the memory of gathered parameters until they are gathered again."""
        for slot in slots:
            self.slots[slot].untyped_storage().resize_(0)
