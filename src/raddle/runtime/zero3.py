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


class Whole(NamedTuple):
    """A divided parameter (or a box of one) as segments use it, while they do."""

    slot: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    own: int  # the slot of this rank's rows of it; -1: it is the home of none
    rows: tuple[slice, ...]  # where these are in it


class Wholes:
    """The divided parameters of one rank."""

    def __init__(self, found: Iterable[Whole], slots: list[Any]) -> None:
        self.found: Mapping[int, Whole] = {whole.slot: whole for whole in found}
        self.slots = slots

    def make(self, slot: int, place: torch.device) -> None:
        """A parameter without memory."""
        whole = self.found[slot]
        tensor = torch.empty(whole.shape, dtype=whole.dtype, device=place)
        tensor.untyped_storage().resize_(0)
        self.slots[slot] = nn.Parameter(tensor)

    def open(self, slot: int) -> Tensor:
        """What others' rows are written into; with memory, and this rank's rows in it."""
        parameter, whole = self.slots[slot], self.found[slot]
        storage = parameter.untyped_storage()
        if not storage.size():
            storage.resize_(parameter.numel() * parameter.element_size())
            if whole.own >= 0:
                parameter.data[whole.rows] = self.slots[whole.own].detach()
        tensor: Tensor = parameter.data
        return tensor

    def memory(self, slots: Iterable[int]) -> set[int]:
        """Where the memory of those that are divided begins; to use one that has none is no small error."""
        own = [s for s in slots if s in self.found] if self.found else []
        storages = [self.slots[s].untyped_storage() for s in own]
        for slot, storage in zip(own, storages, strict=True):
            assert storage.size(), f"the parameter in slot {slot} is used before it was pulled"
        return {storage.data_ptr() for storage in storages}

    def drop(self, slots: Iterable[int]) -> None:
        """Takes the memory away: nobody uses these until they are pulled again."""
        for slot in slots:
            self.slots[slot].untyped_storage().resize_(0)
