"""Where the slices of a rank's parameters are: what it gives, what it updates, where updated rows go."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from raddle.plans.sync import Sync
from raddle.runtime.actions import ParameterSlice
from raddle.runtime.builders.slot_table import SlotSource
from raddle.sync.item import Item, select_rows, slice_name


class RankSlices:
    """All slices, by number, and those of them that are on one rank; `slots` hold its parameters."""

    def __init__(
        self, slices: Sequence[ParameterSlice], slots: Sequence[Tensor], sync: Sync, rank: int
    ) -> None:
        self.slices, self.sync, self.rank = slices, sync, rank
        self._slots = slots
        self.slices_by_slot: dict[
            int, list[int]
        ] = {}  # by slot, the slices whose gradients this rank gives
        self.updated: dict[int, nn.Parameter] = {}  # by slice
        for number, s in enumerate(slices):
            if rank in s.region.devices:
                self.slices_by_slot.setdefault(s.slot, []).append(number)
            if rank == s.region.server or (sync.collective and rank in s.region.devices):
                self.updated[number] = self._updated_rows(s)

    def _updated_rows(self, s: ParameterSlice) -> nn.Parameter:
        if self.sync.zero3:
            parameter: nn.Parameter = self._slots[s.shard_slot]  # type: ignore[assignment]
            return parameter
        rows = self._rows_in_slot(s)
        # Where others' updates come while this rank computes, a copy takes them.
        return nn.Parameter(rows if self.sync.synchronous else rows.clone())

    def _rows_in_slot(self, s: ParameterSlice) -> Tensor:
        return select_rows(self._slots[s.slot].detach(), s.rows)

    def cut(self, number: int, tensor: Tensor) -> Tensor:
        """The rows of a slice in what a slot holds, or in its gradient."""
        return select_rows(tensor.detach(), self.slices[number].rows)

    def bindings(self) -> dict[int, tuple[Tensor | None, Tensor | None]]:
        """By slice on this rank: what updated rows are written into, and the copy that a home updates.

        Of divided parameters they stay at home.
        """
        bindings: dict[int, tuple[Tensor | None, Tensor | None]] = {}
        for number, s in enumerate(self.slices):
            if self.rank in (*s.region.devices, s.region.server):
                parameter = self.updated.get(number)
                updated = None if parameter is None else parameter.detach()
                into = updated if self.sync.zero3 else self._rows_in_slot(s)
                bindings[number] = into, None if self.sync.synchronous else updated
        return bindings

    def source_of(self, number: int) -> SlotSource:
        """A slice as a box of its parameter."""
        s = self.slices[number]
        return SlotSource(s.name, "parameter", s.region.box, s.slot)

    def items(self) -> list[Item]:
        """All slices, as synchronisers know them."""
        return [self._item(number, s) for number, s in enumerate(self.slices)]

    def _item(self, number: int, s: ParameterSlice) -> Item:
        box = s.region.box
        rows = slice(box.lo[0], box.hi[0]) if box.shape else None
        return Item(
            number, slice_name(s.name, rows), s.region.devices, s.region.server, box.volume, s.dtype, s.priority,
            returned=not self.sync.zero3,
        )  # fmt: skip

    def refresh_server_copies(self) -> None:
        """Homes that update copies take what the slots hold now."""
        if not self.sync.synchronous:
            with torch.no_grad():
                for number, rows in self.updated.items():
                    rows.copy_(self._rows_in_slot(self.slices[number]))
