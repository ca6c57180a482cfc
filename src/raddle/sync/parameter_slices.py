"""Cuts the parameters of a wrapped optimizer (sync.Optimizer) into slices, and makes an `Item` for each.

A slice is a range of rows of one parameter: `locations[number]` says which, for the item with that number.
A parameter is identified by its index in `TrainedParameters.parameters`, an item by its number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from torch import Tensor, nn

from raddle.plans.sync import Sync
from raddle.sync.item import Item, select_rows, slice_name
from raddle.sync.parameter_server import RecordItemSpan

RecordSpan = Callable[[str, str, float, float], None]  # name, lane (row) of the trace, start, end


class ParameterSlices:
    """The slices of all parameters. Every rank has all of them.

    sync: says how to cut parameters and which rank is the server of a slice. size: the number of ranks.
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
        self.locations: list[tuple[int, slice | None]] = []  # by item: parameter, rows
        self.item_numbers: dict[int, list[int]] = defaultdict(list)  # by parameter, its items
        elements = []  # by item
        for index, p in enumerate(parameters):
            for first, last in sync.row_ranges(p.shape, size):  # rows from `first` to before `last`
                self.item_numbers[index].append(len(self.locations))
                self.locations.append((index, slice(first, last) if p.ndim else None))
                elements.append((last - first) * p[0].numel() if p.ndim else 1)
        everyone = tuple(range(size))
        # By item, the rank that is its server; -1: all ranks update it. All ranks have a copy of each item.
        servers = sync.assign_servers(elements, [everyone] * len(elements))
        urgency = {index: place for place, index in enumerate(order)}  # by parameter; 0 goes first
        self.items = [
            Item(
                number, slice_name(names[index], rows), everyone,
                servers[number], elements[number], parameters[index].dtype, urgency[index],
            )
            for number, (index, rows) in enumerate(self.locations)
        ]  # fmt: skip

    def select_rows(self, whole: Tensor, number: int) -> Tensor:
        """Returns an item's rows of a tensor that has the parameter's shape."""
        return select_rows(whole, self.locations[number][1])

    def rows(self, number: int) -> Tensor:
        """Returns an item's rows of its parameter, as a view."""
        return self.select_rows(self.parameters[self.locations[number][0]].detach(), number)

    def record_by_item(self, record_span: RecordSpan | None) -> RecordItemSpan | None:
        """Wraps a trace callback that takes an item's name into one that takes its number."""
        if record_span is None:
            return None
        return lambda number, what, start, end: record_span(
            self.items[number].name, what, start, end
        )
