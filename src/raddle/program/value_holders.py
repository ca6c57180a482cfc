"""Finds which devices hold which boxes of a value, and from which of them another device fetches its input.

A box is a range of indices in each dimension of the value. A holder is a device that computed or merged a
box. The cut points of a grid are, for each dimension, 0, the borders between its boxes, and the size.
`chosen_copy` and `target_at_turn` are also JIT-compiled, for the fast simulation.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import product

from raddle.graph.box import Box, merge_boxes, subtract
from raddle.graph.space import Access, Space
from raddle.plans.tiling import Grid, Tiling
from raddle.program.program import Message


class ValueHolders:
    """The boxes of one value, each with the devices that computed or merged it.

    grid: if the boxes form a grid, the index to find them faster.
    """

    def __init__(
        self, pieces: Sequence[tuple[Box, tuple[int, ...]]], grid: _GridLookup | None = None
    ) -> None:
        self.pieces = pieces  # boxes with their holders
        self.grid = grid
        self._local: dict[int, list[Box]] | None = None  # by device, made on first use

    def boxes_on(self, device: int) -> list[Box]:
        """Returns the boxes that a device holds."""
        if self._local is None:
            self._local = {}
            for box, devices in self.pieces:
                for d in devices:
                    self._local.setdefault(d, []).append(box)
        return self._local.get(device, [])

    def overlapping(self, box: Box) -> Iterable[tuple[Box, tuple[int, ...]]]:
        """Returns the boxes that overlap `box`, with their holders."""
        if self.grid is not None:
            return (self.pieces[i] for i in self.grid.find(box))
        return (piece for piece in self.pieces if not (piece[0] & box).empty)


class _GridLookup:
    """Finds the boxes of a grid that overlap a box, by bisection of its cut points."""

    def __init__(self, cuts: Sequence[Sequence[int]]) -> None:
        self.cuts = cuts

    def find(self, box: Box) -> Iterable[int]:
        """Yields the numbers of the grid's boxes that overlap `box`, in row-major order."""
        spans = []
        for cuts, lo, hi in zip(self.cuts, box.lo, box.hi, strict=True):
            spans.append(range(bisect_right(cuts, lo) - 1, bisect_left(cuts, hi)))
        for point in product(*spans):
            number = 0
            for part, cuts in zip(point, self.cuts, strict=True):
                number = number * (len(cuts) - 1) + part
            yield number


def output_holders(space: Space, tiling: Tiling, output: int) -> ValueHolders:
    """Returns the holders of an output, if no result is partial: the devices that computed it."""
    dims = space.outputs[output]  # by dimension of the output, that of the iteration space
    if isinstance(tiling, Grid) and list(dims) == sorted(dims):
        # absent_dim_parts: into how many parts the tiling cuts the dimensions that the output lacks.
        # If 1, each box of the output is that of one tile (and its copies), in the same row-major order.
        cuts = [tiling.cuts[d] for d in dims]
        copies = tiling.copies
        absent_dim_parts = 1
        for d, c in enumerate(tiling.cuts):
            absent_dim_parts *= 1 if d in dims else len(c) - 1
        if absent_dim_parts == 1:
            boxes = Grid(tuple(cuts), (0,) * box_count(cuts)).boxes
            pieces = [
                (box, tiling.devices[i * copies : (i + 1) * copies]) for i, box in enumerate(boxes)
            ]
            return ValueHolders(pieces, _GridLookup(cuts))
    devices_by_box: dict[Box, list[int]] = {}
    for tile in tiling.tiles:
        devices = devices_by_box.setdefault(space.output_boxes(tile.box)[output], [])
        if tile.device not in devices:
            devices.append(tile.device)
    return ValueHolders([(box, tuple(devices)) for box, devices in devices_by_box.items()])


def box_count(cuts: Sequence[Sequence[int]]) -> int:
    """Returns the number of boxes of a grid with these cut points."""
    count = 1
    for c in cuts:
        count *= len(c) - 1
    return count


def chosen_copy(device: int, copies: int) -> int:
    """Returns the number of the copy that a device fetches.

    Devices choose different copies, to spread the load.
    """
    return device % copies


def in_sending_order(messages: Iterable[Message], devices: int) -> tuple[Message, ...]:
    """Sorts the messages of a move: by the turn in which their source sends them.

    devices: how many the plan has.
    """
    return tuple(sorted(messages, key=lambda m: (sending_turn(m.source, m.target, devices), m)))


def sending_turn(source: int, target: int, devices: int) -> int:
    """Returns the turn in which a device sends to another: first to the next device, and so on.

    In this order, no two devices send to the same device in the same turn. devices: their number.
    """
    return (target - source) % devices


def target_at_turn(source: int, turn: int, devices: int) -> int:
    """Returns the device to which `source` sends in a turn: the inverse of `sending_turn`."""
    return (source + turn) % devices


def boxes_to_fetch(
    holders: ValueHolders, device: int, regions: Iterable[Box], received: list[Box]
) -> dict[int, list[Box]]:
    """Returns, by source, the boxes that a device has to fetch so that it has all of `regions`.

    The device fetches nothing that it holds or has in `received`. The boxes fetched are added to
    `received`.
    """
    boxes_by_source: dict[int, list[Box]] = {}
    for region in regions:
        missing = subtract(region, [*holders.boxes_on(device), *received])
        for box in missing:
            for piece, devices in holders.overlapping(box):
                common = piece & box
                if not common.empty:
                    boxes_by_source.setdefault(
                        devices[chosen_copy(device, len(devices))], []
                    ).append(common)
        received.extend(missing)
    return {source: merge_boxes(boxes) for source, boxes in boxes_by_source.items()}


def always_local(
    producer: Tiling, space: Space, output: int, consumer: Tiling, access: Access
) -> bool:
    """Returns a quick test by cut points: whether every consumer finds its whole input on its own device.

    True is certain; False means that the boxes have to be compared. space: of the producer. output: which
    of the producer's outputs the value is. access: how the consumer indexes the value.
    Two cut points, 0 and the size, mean that a dimension is not split.
    """
    if not isinstance(producer, Grid) or not isinstance(consumer, Grid):
        return False
    dims = space.outputs[output]
    if all(len(producer.cuts[d]) == 2 for d in dims):  # every device with a tile holds all of it
        same = consumer.devices is producer.devices
        return same or set(consumer.devices) <= set(producer.devices)
    if producer.devices != consumer.devices or producer.copies != consumer.copies:
        return False
    split = [d for d, c in enumerate(producer.cuts) if len(c) > 2]
    if any(d not in dims for d in split):
        return False
    matched = []
    for d in split:
        # The consumer's dimension, if the index is that alone, without a stride or an offset; else None.
        plain = access.indices[dims.index(d)].plain_dim
        if plain is None or consumer.cuts[plain] != producer.cuts[d]:
            return False
        matched.append(plain)
    return matched == [d for d, c in enumerate(consumer.cuts) if len(c) > 2]
