"""Finds the tensors of parameter slices on one rank: gradients, rows to update, targets of updated rows.

A slice is some rows of a parameter; a bundle is slices that are synchronised together. A synchroniser
(package sync/) sums the gradients of bundles and has them updated; it calls a bundle an item
(sync/item.py). `region` of a slice: its box, the devices that hold it, and its server (-1: none).
`sync.collective`: all holders update a slice after an all-reduce, without a server.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from raddle.plans.sync import Sync
from raddle.program.parameter_region import ParameterRegion
from raddle.runtime.actions import ParameterSlice
from raddle.runtime.builders.slot_table import SlotSource
from raddle.sync.item import Item, bundle_name, select_rows, slice_name
from raddle.sync.item_rows import Gathering


class RankSlices:
    """All slices and bundles, identified by their numbers, and the tensors of those that are on this rank.

    slices: in the order of their numbers; bundles: for each bundle, the numbers of its slices; slots:
    tensors by slot, among them the parameters.
    """

    def __init__(
        self, slices: Sequence[ParameterSlice], bundles: Sequence[Sequence[int]],
        slots: Sequence[Tensor], sync: Sync, rank: int,
    ) -> None:  # fmt: skip
        self.slices, self.bundles, self.sync, self.rank = slices, bundles, sync, rank
        self.gathering = Gathering(bundles)  # stores gradients until those of a bundle are complete
        self.bundle_of = {number: b for b, members in enumerate(bundles) for number in members}
        self._slots = slots
        # Slot -> numbers of its slices, if this rank computes their gradients
        self.slices_by_slot: dict[int, list[int]] = {}
        # Number of a slice -> the rows that this rank updates
        self.updated: dict[int, nn.Parameter] = {}
        for number, s in enumerate(slices):
            if rank in s.region.devices:
                self.slices_by_slot.setdefault(s.slot, []).append(number)
            if rank == s.region.server or (sync.collective and rank in s.region.devices):
                self.updated[number] = self._updated_rows(s)

    def _updated_rows(self, s: ParameterSlice) -> nn.Parameter:
        """Returns the tensor that this rank updates: a view of the weights, or a copy of them."""
        rows = self._rows_in_slot(s)
        # An asynchronous server updates at any time, so it works on a copy, not on the weights in use.
        return nn.Parameter(rows if self.sync.synchronous else rows.clone())

    def _rows_in_slot(self, s: ParameterSlice) -> Tensor:
        """Returns the rows of a slice in the tensor of its slot, as a view."""
        return select_rows(self._slots[s.slot].detach(), s.rows)

    def cut(self, number: int, tensor: Tensor) -> Tensor:
        """Returns the rows of a slice within the tensor of its slot, or within that tensor's gradient."""
        return select_rows(tensor.detach(), self.slices[number].rows)

    def region_of(self, bundle: int) -> ParameterRegion:
        """Returns the region of a bundle's first slice: all have the same holders and server."""
        return self.slices[self.bundles[bundle][0]].region

    def updated_bundles(self) -> dict[int, list[nn.Parameter]]:
        """Returns bundle -> the rows of its slices, for the bundles that this rank updates."""
        return {
            b: [self.updated[number] for number in members]
            for b, members in enumerate(self.bundles)
            if members[0] in self.updated
        }

    def bindings(self) -> dict[int, tuple[list[Tensor], list[Tensor] | None]]:
        """Returns bundle -> (rows that get updates, copy that an asynchronous server updates)."""
        bindings: dict[int, tuple[list[Tensor], list[Tensor] | None]] = {}
        served = self.updated_bundles()
        for b, members in enumerate(self.bundles):
            region = self.region_of(b)
            if self.rank in (*region.devices, region.server):
                updated = [p.detach() for p in served[b]] if b in served else None
                rows = [self._rows_in_slot(self.slices[n]) for n in members]
                bindings[b] = rows, None if self.sync.synchronous else updated
        return bindings

    def source_of(self, number: int) -> SlotSource:
        """Returns a slice as a SlotSource: the box of its parameter, and the slot that contains it."""
        s = self.slices[number]
        return SlotSource(s.name, "parameter", s.region.box, s.slot)

    def items(self) -> list[Item]:
        """Returns all bundles as items of a synchroniser."""
        return [self._item(b) for b in range(len(self.bundles))]

    def _item(self, bundle: int) -> Item:
        """Returns a bundle as an item."""
        slices, region = [self.slices[n] for n in self.bundles[bundle]], self.region_of(bundle)
        elements = sum(s.region.box.volume for s in slices)
        return Item(
            bundle, bundle_name([_name(s) for s in slices]), region.devices, region.server, elements,
            slices[0].dtype, slices[0].priority,
        )  # fmt: skip

    def refresh_server_copies(self) -> None:
        """Copies the parameters in the slots to the copies of an asynchronous server."""
        if not self.sync.synchronous:
            with torch.no_grad():
                for number, rows in self.updated.items():
                    rows.copy_(self._rows_in_slot(self.slices[number]))


def _name(s: ParameterSlice) -> str:
    box = s.region.box
    return slice_name(s.name, slice(box.lo[0], box.hi[0]) if box.shape else None)
