"""The program: one list of instructions in a global order; every device executes those that concern it.

A device's own order is the global order restricted to it, so whatever respects the dependencies of this
list cannot deadlock. An instruction's *key* says which step, micro-batch and variant it belongs to; a run
says which version of the weights it uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from raddle.graph.box import Box
from raddle.graph.graph import Graph, Op
from raddle.plans.pipelining import micro_batch_sizes
from raddle.plans.plan import Plan
from raddle.plans.sync import Sync
from raddle.plans.tiling import Tiling
from raddle.program.message_kind import MessageKind


class Key(NamedTuple):
    """Which of the repetitions of a graph an instruction belongs to; `replica` numbers the variants."""

    step: int = 0
    micro_batch: int = 0
    variant: int = 0


class Message(NamedTuple):
    """Boxes of a value that go from one device to another, packed into one buffer.

    `part` is the tile of a partial result that they belong to (-1: a complete value).
    """

    source: int
    target: int
    boxes: tuple[Box, ...]
    part: int = -1

    @property
    def elements(self) -> int:
        return sum(box.volume for box in self.boxes)


class Cell(NamedTuple):
    """A box of an output whose partial results, by tile, are merged on some devices."""

    box: Box
    parts: tuple[int, ...]
    devices: tuple[int, ...]


class ParameterRegion(NamedTuple):
    """A box of a parameter, the devices that hold it, and its home, where it is updated (-1: on each)."""

    box: Box
    devices: tuple[int, ...]
    server: int = -1

    @property
    def first_updater(self) -> int:
        """The one device that counts it, or hands it out."""
        return self.updaters[0]

    @property
    def updaters(self) -> tuple[int, ...]:
        """The devices that update it."""
        return self.devices if self.server < 0 else (self.server,)

    @property
    def needs_sync(self) -> bool:
        """Whether it is on several devices, its home among them, so that gradients are brought together."""
        return len({*self.devices, self.server} - {-1}) > 1


@dataclass(frozen=True, slots=True)
class Run:
    """Computes the tiles of an operator.

    "F" forward; "R" forward again, for a backward that found nothing kept; "B" backward, the gradients of
    all that it read; where the plan splits the backward, "B" gives those of activations and "W", which may
    come later, those of parameters. `versions` says how many updates each of its parameters has had;
    without it, as many as there were steps.
    """

    op: str
    phase: str
    key: Key
    devices: tuple[int, ...]
    deps: tuple[int, ...]
    versions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Merge:
    """Combines partial results of an operator cell by cell, or takes the gradient apart again."""

    op: str
    phase: str
    key: Key
    cells: tuple[Cell, ...]
    devices: tuple[int, ...]
    deps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Move:
    """Sends boxes of a value, or of its gradient, between devices.

    `collective` names the pattern where it is one; the messages say the same, pair by pair.
    """

    value: str
    kind: MessageKind
    key: Key
    messages: tuple[Message, ...]
    collective: str
    deps: tuple[int, ...]

    @property
    def devices(self) -> tuple[int, ...]:
        return tuple(sorted({d for m in self.messages for d in (m.source, m.target)}))


@dataclass(frozen=True, slots=True)
class Reduce:
    """Sums the gradients of parameters over the devices that hold each share, a bucket at a time."""

    parameters: tuple[str, ...]
    key: Key
    regions: tuple[
        tuple[ParameterRegion, ...], ...
    ]  # by parameter, those that several devices hold
    devices: tuple[int, ...]
    deps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Update:
    """Applies the optimizer to a parameter where it is held (or at its home)."""

    parameter: str
    key: Key
    regions: tuple[ParameterRegion, ...]
    devices: tuple[int, ...]
    deps: tuple[int, ...]


Instruction = Run | Merge | Move | Reduce | Update


@dataclass(frozen=True)
class Variant:
    """How some micro-batches run: the graph for their size, the tiles where their workers are."""

    graph: Graph
    tiles: Mapping[str, Tiling]
    merges: dict[str, tuple[Cell, ...]]  # operators with partial results
    replicated_loss_ops: frozenset[str] = (
        frozenset()
    )  # merged operators whose gradient starts on every device

    @cached_property
    def ops(self) -> dict[str, Op]:
        return {op.name: op for op in self.graph.ops}

    @cached_property
    def loss_devices(self) -> tuple[int, ...]:
        """Where the loss is. Its gradient starts on the first, or, where the program closes so, on all."""
        op = next(op for op in self.graph.ops if self.graph.loss in op.outputs)
        if op.name in self.merges:
            return self.merges[op.name][0].devices
        return tuple(dict.fromkeys(t.device for t in self.tiles[op.name].tiles))


@dataclass(frozen=True)
class Program:
    """A lowered plan. The same object is checked, simulated and run."""

    graph: Graph  # of the largest micro-batches
    plan: Plan
    instructions: tuple[Instruction, ...]
    active: frozenset[str]  # values whose gradient is needed
    variants: tuple[Variant, ...]  # the first is the graph's, with the plan's own tiles
    regions: dict[str, tuple[ParameterRegion, ...]]  # parameters: who holds what
    # Where steps do not wait for parameters: what is sent to a home, updated and sent back, or what
    # is summed over all holders and updated on each.
    slices: dict[str, tuple[ParameterRegion, ...]] = field(default_factory=dict)

    def variant(self, key: Key) -> Variant:
        return self.variants[key.variant]

    @cached_property
    def priority(self) -> dict[str, int]:
        """Parameters in the order of their first use: the smaller, the more urgent."""
        used = (name for op in self.graph.ops for name in op.inputs if name in self.regions)
        return {name: at for at, name in enumerate(dict.fromkeys(used))}

    @cached_property
    def micro_batch_sizes(self) -> list[int]:
        """Samples of each micro-batch."""
        return micro_batch_sizes(self.plan, self.graph)

    def instructions_of(self, device: int) -> list[Instruction]:
        """What one device does, in order."""
        return [i for i in self.instructions if device in i.devices]

    def producer(self, value: str) -> Op:
        return self._producers[value]

    @cached_property
    def _producers(self) -> dict[str, Op]:
        return {o: op for op in self.graph.ops for o in op.outputs}

    def reduced_element_bytes(self, parameter: str) -> int:
        """Bytes of an element of a gradient as it is all-reduced."""
        return reduced_element_bytes(self.plan.parsed_sync, self.element_bytes(parameter))

    def element_bytes(self, value: str) -> int:
        """Bytes of an element of a value."""
        return self.graph.values[value].dtype.itemsize


def reduced_element_bytes(sync: Sync, width: int) -> int:
    """Bytes of an element of a gradient as it is all-reduced, and that has so many in memory."""
    return 2 if sync.wire_dtype else width


def reduced_bytes(program: Program, reduce: Reduce) -> dict[tuple[int, ...], int]:
    """By the devices that sum a part of a bucket, the bytes that each of them hands in."""
    nbytes_by_group: dict[tuple[int, ...], int] = {}
    for name, shares in zip(reduce.parameters, reduce.regions, strict=True):
        for share in shares:
            nbytes = share.box.volume * program.reduced_element_bytes(name)
            nbytes_by_group[share.devices] = nbytes_by_group.get(share.devices, 0) + nbytes
    return nbytes_by_group


def message_bytes(program: Program, move: Move, message: Message) -> int:
    """Bytes of a message as they are handed to the transport."""
    return (
        message.elements
        * program.element_bytes(move.value)
        * tensors_in_message(program, move, message)
    )


def tensors_in_message(program: Program, move: Move, message: Message) -> int:
    """How many tensors of the box travel."""
    if message.part < 0:
        return 1
    op, variant = program.producer(move.value), program.variant(move.key)
    return tensors_per_part(variant.ops[op.name], variant.tiles[op.name].tiles[message.part].box)


def tensors_per_part(op: Op, box: Box) -> int:
    """How many tensors a tile of a reduction gives: partial log-sum-exps are pairs, moments always."""
    return {"moments": 2, "lse": 2 if op.space.is_partial(box) else 1}.get(op.space.combine, 1)
