"""Finds the tensors of parameter slices on one rank: their gradients, what is updated, where updates go.

A slice is some rows of a parameter. A synchroniser (package sync/) sums the gradients of slices and has
them updated; it calls a slice an item (sync/item.py). `region` of a slice: its box, the devices that hold
it, and its server (-1: none). `sync.collective`: all holders update a slice after an all-reduce, without a
server.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from raddle.plans.sync import Sync
from raddle.runtime.actions import ParameterSlice
from raddle.runtime.builders.slot_table import SlotSource
from raddle.sync.item import Item, select_rows, slice_name


class RankSlices:
    """All slices, identified by their number, and the tensors of those that are on this rank.

    slices: in the order of their numbers; slots: tensors by slot, among them the parameters.
    """

    def __init__(
        self, slices: Sequence[ParameterSlice], slots: Sequence[Tensor], sync: Sync, rank: int
    ) -> None:
        self.slices, self.sync, self.rank = slices, sync, rank
        self._slots = slots
        # Slot -> numbers of its slices, if this rank computes their gradients
        self.slices_by_slot: dict[int, list[int]] = {}
        self.updated: dict[
            int, nn.Parameter
        ] = {}  # number of a slice -> the rows that this rank updates
        for number, s in enumerate(slices):
            if rank in s.region.devices:
                self.slices_by_slot.setdefault(s.slot, []).append(number)
            if rank == s.region.server or (sync.collective and rank in s.region.devices):
                self.updated[number] = self._updated_rows(s)

    def _updated_rows(self, s: ParameterSlice) -> nn.Parameter:
        """The tensor that this rank updates: a view of the weights, or a copy of them."""
        rows = self._rows_in_slot(s)
        # An asynchronous server updates at any time, so it works on a copy, not on the weights in use.
        return nn.Parameter(rows if self.sync.synchronous else rows.clone())

    def _rows_in_slot(self, s: ParameterSlice) -> Tensor:
        return select_rows(self._slots[s.slot].detach(), s.rows)

    def cut(self, number: int, tensor: Tensor) -> Tensor:
        """The rows of a slice within the tensor of its slot, or within that tensor's gradient."""
        return select_rows(tensor.detach(), self.slices[number].rows)

    def bindings(self) -> dict[int, tuple[Tensor | None, Tensor | None]]:
        """By slice on this rank: (rows that get updates, copy that an asynchronous server updates)."""
        bindings: dict[int, tuple[Tensor | None, Tensor | None]] = {}
        for number, s in enumerate(self.slices):
            if self.rank in (*s.region.devices, s.region.server):
                parameter = self.updated.get(number)
                updated = None if parameter is None else parameter.detach()
                into = self._rows_in_slot(s)
                bindings[number] = into, None if self.sync.synchronous else updated
        return bindings

    def source_of(self, number: int) -> SlotSource:
        """A slice as a SlotSource: the box of its parameter, and the slot that contains it."""
        s = self.slices[number]
        return SlotSource(s.name, "parameter", s.region.box, s.slot)

    def items(self) -> list[Item]:
        """All slices as items of a synchroniser."""
        return [self._item(number, s) for number, s in enumerate(self.slices)]

    def _item(self, number: int, s: ParameterSlice) -> Item:
        """A slice as an item. returned: whether the server sends the updated rows back to the workers."""
        box = s.region.box
        rows = slice(box.lo[0], box.hi[0]) if box.shape else None
        return Item(
            number, slice_name(s.name, rows), s.region.devices, s.region.server, box.volume, s.dtype,
            s.priority,
        )  # fmt: skip

    def refresh_server_copies(self) -> None:
        """Copies the parameters in the slots to the copies of an asynchronous server."""
        if not self.sync.synchronous:
            with torch.no_grad():
                for number, rows in self.updated.items():
                    rows.copy_(self._rows_in_slot(self.slices[number]))
