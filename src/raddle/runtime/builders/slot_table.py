"""The slot table of a device: which boxes of which tensors the device holds, and in which slots.

It exists only while actions are built. A box is a rectangular part of a tensor. A piece is a box together
with the tensor that it is a part of. A variant is a way in which some micro-batches run: their size, and
the tiles with their devices (program/program.py). A key names a micro-batch: its step, its number in the
step, and its variant. The id of a tensor is the name of a value or, for a partial result, a tuple
(function_writer.py).

Example, on device 1 of 2 with data parallelism (a box is written as the range of each dimension):

    parameter "0.weight", box [0:6 0:4]     slot 0, the whole weight
    parameter "0.bias",   box [0:6]         slot 1
    ...                                     slots 2 and 3, the parameters of the next layer
    input "input",        box [4:8 0:4]     slot 4, the samples 4 to 7
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from raddle.graph.box import Box, bounding_box
from raddle.graph.graph import Graph, Op
from raddle.program.program import Key, Variant
from raddle.runtime.function_writer import Piece, TensorId

BoxSlots = list[tuple[Box, int]]  # boxes of one tensor, each with the slot that holds it


class SlotSource(NamedTuple):
    """Says what fills a slot from outside a step: a box of a parameter, of a buffer or of a batch input."""

    name: str
    # "parameter" (trained), "gathered" (ZeRO-3 parameter, gathered before use), "frozen" (parameter without
    # gradient), "buffer", "constant" (of the graph), "input" (of the batch) or "seed" (of random numbers)
    role: str
    box: Box
    slot: int
    key: Key = Key()  # step and micro-batch; only for inputs and seeds


class SlotTable:
    """The slots of one device, numbered in the order in which they are added.

    hulls: for each variant, value -> the bounding box of all that the device reads of it (read_hulls).
    """

    def __init__(self, graph: Graph, hulls: Sequence[Mapping[str, Box]] = ()) -> None:
        self.graph, self.hulls = graph, hulls
        self.shapes: list[tuple[int, ...]] = []  # shape of each slot
        self.sources: list[SlotSource] = []
        self.computed: dict[tuple[Key, TensorId], BoxSlots] = {}  # on this device
        self.received: dict[tuple[Key, TensorId], BoxSlots] = {}  # from other devices
        self.persistent: dict[str, BoxSlots] = {}  # parameters, buffers, constants
        self.shards: dict[str, BoxSlots] = {}  # ZeRO: rows of parameters that this device updates
        self._input_sources: dict[tuple[Key, str], SlotSource] = {}  # inputs and seeds

    def new_slot(self, box: Box) -> int:
        """Returns the number of a new slot for a box."""
        self.shapes.append(box.shape)
        return len(self.shapes) - 1

    def add_computed(self, key: Key, tensor_id: TensorId, box: Box) -> int:
        """Adds a slot for a box that this device computes; returns the slot."""
        return self._add(self.computed.setdefault((key, tensor_id), []), box)

    def add_received(self, key: Key, tensor_id: TensorId, box: Box) -> int:
        """Adds a slot for a box that another device sends; returns the slot."""
        return self._add(self.received.setdefault((key, tensor_id), []), box)

    def add_persistent(self, name: str, role: str, box: Box) -> int:
        """Adds a slot for a box that stays from step to step and that operators read; returns the slot."""
        slot = self._add(self.persistent.setdefault(name, []), box)
        self.sources.append(SlotSource(name, role, box, slot))
        return slot

    def add_shard(self, name: str, box: Box) -> int:
        """Adds a slot for a ZeRO-3 shard that this device updates; returns the slot."""
        slot = self.add_shard_view(name, box)
        self.sources.append(SlotSource(name, "parameter", box, slot))
        return slot

    def add_shard_view(self, name: str, box: Box) -> int:
        """Adds a slot without a source for a shard: in ZeRO-2 a view of the parameter. Returns it."""
        return self._add(self.shards.setdefault(name, []), box)

    def input_source(self, key: Key, name: str) -> SlotSource:
        """Returns the source of a batch input or seed in a micro-batch; the first call adds its slot."""
        if (key, name) not in self._input_sources:
            role = self.graph.values[name].role
            box = self.hulls[key.variant][name] if role == "input" else Box((), ())
            source = SlotSource(name, role, box, self.new_slot(box), key)
            self.sources.append(source)
            self._input_sources[key, name] = source
        return self._input_sources[key, name]

    def is_input(self, tensor_id: TensorId) -> bool:
        """Returns whether a tensor is an input of the batch or a random seed."""
        return isinstance(tensor_id, str) and self.graph.values[tensor_id].role in ("input", "seed")

    def box_slots(self, key: Key, tensor_id: TensorId) -> BoxSlots:
        """Returns all boxes of a tensor that this device holds, with their slots."""
        # A tuple is a partial result; the role "op" is that of values which an operator computes.
        if isinstance(tensor_id, tuple) or self.graph.values[tensor_id].role == "op":
            return self.computed.get((key, tensor_id), []) + self.received.get((key, tensor_id), [])
        if self.is_input(tensor_id):
            source = self.input_source(key, tensor_id)
            return [(source.box, source.slot)]
        return self.persistent[tensor_id]

    def slot_of(self, key: Key, piece: Piece) -> int:
        """Returns the slot that holds exactly this piece."""
        return next(slot for box, slot in self.box_slots(key, piece.tensor_id) if box == piece.box)

    def _add(self, box_slots: BoxSlots, box: Box) -> int:
        """Adds a slot for a box to a list; returns the slot."""
        slot = self.new_slot(box)
        box_slots.append((box, slot))
        return slot


def read_hulls(variant: Variant, device: int, ops: Iterable[Op] | None = None) -> dict[str, Box]:
    """Returns value -> bounding box of what a device reads of it, for values that no operator computes.

    These are the inputs, seeds, parameters, buffers and constants.
    ops: only what these operators read; None: what all operators read.
    """
    hulls: dict[str, Box] = {}
    values = variant.graph.values
    for op in variant.graph.ops if ops is None else ops:
        names = [(i, n) for i, n in enumerate(op.inputs) if values[n].role != "op"]
        for tile in variant.tiles[op.name].tiles if names else ():
            if tile.device != device:
                continue
            regions = op.space.regions(tile.box)  # of each operand, what the tile reads
            for i, name in names:
                region = regions[i]
                if region is not None:
                    hulls[name] = bounding_box([hulls.get(name, region), region])
    return hulls
