"""Cuts the parameters of a wrapped optimizer (sync.Optimizer) into slices, and joins small ones in bundles.

A slice is a range of rows of one parameter: `locations[number]` says which, for the slice with that number.
A bundle is slices that are synchronised together (program/parameter_slices.py); each bundle is an `Item`.
A parameter is identified by its index (trained_parameters.py), an item by its number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from torch import Tensor, nn

from raddle.plans.sync import Sync
from raddle.program.parameter_slices import join_slices
from raddle.sync.item import Item, bundle_name, select_rows, slice_name
from raddle.sync.item_rows import Gathering
from raddle.sync.parameter_server import RecordItemSpan

RecordSpan = Callable[[str, str, float, float], None]  # name, lane (row) of the trace, start, end


class ParameterSlices:
    """The slices of all parameters, and the items. Every rank has all of them.

    sync: says how to cut parameters and which rank is the server of an item. size: the number of ranks.
    order: indices of parameters, the most urgent first.
    """

    def __init__(
        self,
        names: Sequence[str],
        parameters: Sequence[nn.Parameter],
        sync: Sync,
        size: int,
        order: Sequence[int],
    ) -> None:
        self.names, self.parameters = names, parameters
        # For each slice: the index of its parameter, and its rows (None: no dimensions)
        self.locations: list[tuple[int, slice | None]] = []
        self.slices_of: dict[int, list[int]] = defaultdict(list)  # parameter -> its slices
        elements = []  # number of elements of each slice
        for index, p in enumerate(parameters):
            for start, stop in sync.row_ranges(p.shape, size):
                self.slices_of[index].append(len(self.locations))
                self.locations.append((index, slice(start, stop) if p.ndim else None))
                elements.append((stop - start) * p[0].numel() if p.ndim else 1)
        everyone = tuple(range(size))
        urgency = {index: place for place, index in enumerate(order)}  # parameter -> 0: goes first
        by_urgency = sorted(range(len(elements)), key=lambda n: (urgency[self.locations[n][0]], n))
        # Only slices with equal keys (holders, dtype) are joined.
        keys = [(everyone, parameters[self.locations[n][0]].dtype) for n in by_urgency]
        joined = join_slices([elements[n] for n in by_urgency], keys, sync.bundle_limit)
        # For each item its slices, those of the most urgent parameter first. Items are in the order of the
        # number of their first slice.
        self.slices_of_item = sorted([by_urgency[k] for k in members] for members in joined)
        totals = [sum(elements[n] for n in members) for members in self.slices_of_item]
        # For each item its server; -1: all ranks update it. All ranks have a copy of each item.
        servers = sync.assign_servers(totals, [everyone] * len(totals))
        self.items = []
        for number, members in enumerate(self.slices_of_item):
            index = self.locations[members[0]][0]
            name = bundle_name(
                [slice_name(names[i], rows) for i, rows in map(self.locations.__getitem__, members)]
            )
            self.items.append(
                Item(
                    number, name, everyone, servers[number], totals[number], parameters[index].dtype,
                    urgency[index],
                )
            )  # fmt: skip
        self.item_numbers: dict[int, list[int]] = defaultdict(list)  # parameter -> its items
        for number, members in enumerate(self.slices_of_item):
            for index in dict.fromkeys(self.locations[n][0] for n in members):
                self.item_numbers[index].append(number)

    def gathering(self) -> Gathering:
        """Returns an object that collects gradients of slices until those of an item are complete."""
        return Gathering(self.slices_of_item)

    def select_rows(self, whole: Tensor, number: int) -> Tensor:
        """Returns a slice's rows of a tensor that has the parameter's shape. number: of the slice."""
        return select_rows(whole, self.locations[number][1])

    def rows(self, number: int) -> Tensor:
        """Returns a slice's rows of its parameter, as a view. number: of the slice."""
        return self.select_rows(self.parameters[self.locations[number][0]].detach(), number)

    def item_rows(self, item: int) -> list[Tensor]:
        """Returns the rows of an item's slices, as views."""
        return [self.rows(number) for number in self.slices_of_item[item]]

    def record_by_item(self, record_span: RecordSpan | None) -> RecordItemSpan | None:
        """Returns a trace callback that takes an item's number and passes its name to `record_span`."""
        if record_span is None:
            return None
        return lambda number, lane, start, end: record_span(
            self.items[number].name, lane, start, end
        )
