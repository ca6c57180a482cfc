"""Which boxes of what a device holds, and the slots that they are in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from raddle.graph.box import Box, hull
from raddle.graph.graph import Graph, Op
from raddle.program.program import Key, Variant
from raddle.runtime.function_writer import Of, Piece

Held = list[tuple[Box, int]]  # boxes, with the slots that hold them


class Source(NamedTuple):
    """A box of a value that is there before a step: a parameter, a buffer, a part of the batch."""

    name: str
    role: str
    box: Box
    slot: int
    key: Key = Key()  # of inputs and seeds: the micro-batch


class Pieces:
    """The slots of one device, numbered as they are asked for.

    `hulls` says, by variant, which box of each input the device reads.
    """

    def __init__(self, graph: Graph, hulls: Sequence[Mapping[str, Box]] = ()) -> None:
        self.graph, self.hulls = graph, hulls
        self.shapes: list[tuple[int, ...]] = []  # by slot
        self.sources: list[Source] = []
        self.made: dict[tuple[Key, Of], Held] = {}
        self.received: dict[tuple[Key, Of], Held] = {}
        self.lasting: dict[str, Held] = {}  # parameters, buffers, constants
        self.rows: dict[str, Held] = {}  # of divided parameters: what this device is the home of
        self._fed: dict[tuple[Key, str], Source] = {}  # inputs and seeds

    def slot(self, box: Box) -> int:
        self.shapes.append(box.shape)
        return len(self.shapes) - 1

    def make(self, key: Key, of: Of, box: Box) -> int:
        """A slot for what this device computes."""
        return self._put(self.made.setdefault((key, of), []), box)

    def receive(self, key: Key, of: Of, box: Box) -> int:
        """A slot for what comes from another device."""
        return self._put(self.received.setdefault((key, of), []), box)

    def keep(self, name: str, role: str, box: Box) -> int:
        """A slot for what is there from step to step, and that operators read."""
        slot = self._put(self.lasting.setdefault(name, []), box)
        self.sources.append(Source(name, role, box, slot))
        return slot

    def keep_rows(self, name: str, box: Box, slot: int | None = None) -> int:
        """Rows of a divided parameter that are updated here: in the given slot, or in a new one."""
        if slot is None:
            slot = self.slot(box)
            self.sources.append(Source(name, "parameter", box, slot))
        self.rows.setdefault(name, []).append((box, slot))
        return slot

    def feed(self, key: Key, name: str) -> Source:
        """What a batch, or a seed, gives to this device in a micro-batch."""
        if (key, name) not in self._fed:
            role = self.graph.values[name].role
            box = self.hulls[key.variant][name] if role == "input" else Box((), ())
            source = Source(name, role, box, self.slot(box), key)
            self.sources.append(source)
            self._fed[key, name] = source
        return self._fed[key, name]

    def is_fed(self, of: Of) -> bool:
        return isinstance(of, str) and self.graph.values[of].role in ("input", "seed")

    def held(self, key: Key, of: Of) -> Held:
        """All pieces of something that this device holds."""
        if isinstance(of, tuple) or self.graph.values[of].role == "op":
            return self.made.get((key, of), []) + self.received.get((key, of), [])
        if self.is_fed(of):
            source = self.feed(key, of)
            return [(source.box, source.slot)]
        return self.lasting[of]

    def slot_of(self, key: Key, piece: Piece) -> int:
        return next(slot for box, slot in self.held(key, piece.of) if box == piece.box)

    def _put(self, held: Held, box: Box) -> int:
        slot = self.slot(box)
        held.append((box, slot))
        return slot


def hulls_of(variant: Variant, device: int, ops: Iterable[Op] | None = None) -> dict[str, Box]:
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
                    hulls[name] = hull([hulls.get(name, region), region])
    return hulls
