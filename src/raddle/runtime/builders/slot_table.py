"""Which boxes of what a device holds, and the slots that they are in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from raddle.graph.box import Box, bounding_box
from raddle.graph.graph import Graph, Op
from raddle.program.program import Key, Variant
from raddle.runtime.function_writer import Piece, TensorId

BoxSlots = list[tuple[Box, int]]  # boxes, with the slots that hold them


class SlotSource(NamedTuple):
    """A box of a value that is there before a step: a parameter, a buffer, a part of the batch."""

    name: str
    role: str
    box: Box
    slot: int
    key: Key = Key()  # of inputs and seeds: the micro-batch


class SlotTable:
    """The slots of one device, numbered as they are asked for.

    `hulls` says, by variant, which box of each input the device reads.
    """

    def __init__(self, graph: Graph, hulls: Sequence[Mapping[str, Box]] = ()) -> None:
        self.graph, self.hulls = graph, hulls
        self.shapes: list[tuple[int, ...]] = []  # by slot
        self.sources: list[SlotSource] = []
        self.computed: dict[tuple[Key, TensorId], BoxSlots] = {}
        self.received: dict[tuple[Key, TensorId], BoxSlots] = {}
        self.persistent: dict[str, BoxSlots] = {}  # parameters, buffers, constants
        self.shards: dict[
            str, BoxSlots
        ] = {}  # of divided parameters: what this device is the home of
        self._input_sources: dict[tuple[Key, str], SlotSource] = {}  # inputs and seeds

    def new_slot(self, box: Box) -> int:
        self.shapes.append(box.shape)
        return len(self.shapes) - 1

    def add_computed(self, key: Key, tensor_id: TensorId, box: Box) -> int:
        """A slot for what this device computes."""
        return self._add(self.computed.setdefault((key, tensor_id), []), box)

    def add_received(self, key: Key, tensor_id: TensorId, box: Box) -> int:
        """A slot for what comes from another device."""
        return self._add(self.received.setdefault((key, tensor_id), []), box)

    def add_persistent(self, name: str, role: str, box: Box) -> int:
        """A slot for what is there from step to step, and that operators read."""
        slot = self._add(self.persistent.setdefault(name, []), box)
        self.sources.append(SlotSource(name, role, box, slot))
        return slot

    def add_shard(self, name: str, box: Box, slot: int | None = None) -> int:
        """Rows of a divided parameter that are updated here: in the given slot, or in a new one."""
        if slot is None:
            slot = self.new_slot(box)
            self.sources.append(SlotSource(name, "parameter", box, slot))
        self.shards.setdefault(name, []).append((box, slot))
        return slot

    def input_source(self, key: Key, name: str) -> SlotSource:
        """What a batch, or a seed, gives to this device in a micro-batch."""
        if (key, name) not in self._input_sources:
            role = self.graph.values[name].role
            box = self.hulls[key.variant][name] if role == "input" else Box((), ())
            source = SlotSource(name, role, box, self.new_slot(box), key)
            self.sources.append(source)
            self._input_sources[key, name] = source
        return self._input_sources[key, name]

    def is_input(self, tensor_id: TensorId) -> bool:
        return isinstance(tensor_id, str) and self.graph.values[tensor_id].role in ("input", "seed")

    def box_slots(self, key: Key, tensor_id: TensorId) -> BoxSlots:
        """All pieces of something that this device holds."""
        if isinstance(tensor_id, tuple) or self.graph.values[tensor_id].role == "op":
            return self.computed.get((key, tensor_id), []) + self.received.get((key, tensor_id), [])
        if self.is_input(tensor_id):
            source = self.input_source(key, tensor_id)
            return [(source.box, source.slot)]
        return self.persistent[tensor_id]

    def slot_of(self, key: Key, piece: Piece) -> int:
        return next(slot for box, slot in self.box_slots(key, piece.tensor_id) if box == piece.box)

    def _add(self, box_slots: BoxSlots, box: Box) -> int:
        slot = self.new_slot(box)
        box_slots.append((box, slot))
        return slot


def read_hulls(variant: Variant, device: int, ops: Iterable[Op] | None = None) -> dict[str, Box]:
    """The smallest box of every input and frozen value that holds all that a device reads, or some ops."""
    hulls: dict[str, Box] = {}
    values = variant.graph.values
    for op in variant.graph.ops if ops is None else ops:
        names = [(i, n) for i, n in enumerate(op.inputs) if values[n].role != "op"]
        for tile in variant.tiles[op.name].tiles if names else ():
            if tile.device != device:
                continue
            regions = op.space.regions(tile.box)
            for i, name in names:
                region = regions[i]
                if region is not None:
                    hulls[name] = bounding_box([hulls.get(name, region), region])
    return hulls
