"""The program: the instructions of all devices for a few training steps, as one list.

`lower` makes it from a graph and a plan; the same object is checked, simulated and run. An instruction
names its devices, and `deps`: the numbers (places in the list) of the instructions that it waits for. Each
device executes the instructions that name it, in the order of the list. Every dependency points to an
earlier instruction, so this cannot deadlock.

    Run      computes an operator, forward or backward       Move     sends boxes between devices
    Merge    combines partial results                        Reduce   sums gradients over their holders
    Update   applies the optimizer                           Gather   all-gathers shards of parameters

A box is a range of indices in each dimension of a tensor (graph/box.py). A tile is a part of an operator
that one device computes (plans/tiling.py). Devices, tiles and instructions are referred to by numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch

from raddle.graph.box import Box
from raddle.graph.graph import Graph, Op
from raddle.plans.optimizers import optimizer_info
from raddle.plans.pipelining import micro_batch_sizes
from raddle.plans.plan import Plan
from raddle.plans.tiling import Tiling
from raddle.program.bundle import Bundle
from raddle.program.collective_kind import Collective
from raddle.program.message_kind import MessageKind
from raddle.program.parameter_region import ParameterRegion


class Key(NamedTuple):
    """The step and the micro-batch that an instruction belongs to, and how this micro-batch runs."""

    step: int = 0
    micro_batch: int = 0
    variant: int = 0  # index into Program.variants


class Message(NamedTuple):
    """Boxes of one value that a device sends to another, packed into one buffer."""

    source: int  # device
    target: int  # device
    boxes: tuple[Box, ...]
    part: int = -1  # the tile that computed this partial result; -1: the result is complete

    @property
    def elements(self) -> int:
        return sum(box.volume for box in self.boxes)


class Cell(NamedTuple):
    """A box of an operator's output that is merged from the partial results of several tiles."""

    box: Box
    parts: tuple[int, ...]  # the tiles whose results are merged
    devices: tuple[int, ...]  # each of them merges the box, and holds the result


@dataclass(frozen=True, slots=True)
class Run:
    """Computes the tiles of an operator on its devices, in one phase.

    F: forward. R: recompute the forward for the backward (activation checkpointing). B: backward, the
    gradients of all inputs. Where the plan splits the backward, B computes the gradients of activations,
    and W, which may come later, those of parameters.
    """

    op: str
    phase: str  # F, R, B or W
    key: Key
    devices: tuple[int, ...]
    deps: tuple[int, ...]
    # By parameter of the operator, how many updates it has had (weight_versions.py). (): the steps do not
    # overlap, so each parameter has had one update in each earlier step.
    versions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Merge:
    """Combines the partial results (parts) of an operator; backward, gives every part its gradient."""

    op: str
    phase: str  # F or B
    key: Key
    cells: tuple[Cell, ...]
    devices: tuple[int, ...]
    deps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Move:
    """Sends boxes of a value, or of its gradient, between devices."""

    value: str
    kind: MessageKind
    key: Key
    messages: tuple[Message, ...]
    collective: str  # the collective that the messages form (collective.py); "": none
    deps: tuple[int, ...]
    # If the move sends bundles: the parameter of each box of a message. (): all boxes are of `value`.
    bundled: tuple[str, ...] = ()

    @property
    def values(self) -> tuple[str, ...]:
        """The value of each box of a message or, if all boxes are of one value, that value alone."""
        return self.bundled or (self.value,)

    @property
    def devices(self) -> tuple[int, ...]:
        return tuple(sorted({d for m in self.messages for d in (m.source, m.target)}))


@dataclass(frozen=True, slots=True)
class Reduce:
    """Sums the gradients of a bucket of parameters, each region over its holders.

    An all-reduce gives every holder the sum; a reduce-scatter only the rows of its shard
    (parameter_region.py). If shards have replicas in other groups (HSDP), an all-reduce of the shards over
    their replicas follows each reduce-scatter.
    """

    parameters: tuple[str, ...]
    key: Key
    # By parameter, the regions that several devices hold.
    regions: tuple[tuple[ParameterRegion, ...], ...]
    devices: tuple[int, ...]
    deps: tuple[int, ...]
    collective: Collective = Collective.ALL_REDUCE


@dataclass(frozen=True, slots=True)
class Gather:
    """All-gathers the parameters of a block: every holder of a region sends its shard to all others.

    A device starts it when it has done all its earlier instructions.
    """

    parameters: tuple[str, ...]
    key: Key
    # By parameter, the regions that several devices hold.
    regions: tuple[tuple[ParameterRegion, ...], ...]
    devices: tuple[int, ...]
    deps: tuple[int, ...]

    @property
    def collective(self) -> Collective:
        return Collective.ALL_GATHER


@dataclass(frozen=True, slots=True)
class Update:
    """Applies the optimizer to regions of a parameter, or to a bundle of slices."""

    parameter: str  # of a bundle: the first one
    key: Key
    regions: tuple[ParameterRegion, ...]
    devices: tuple[int, ...]  # the updaters of the regions
    deps: tuple[int, ...]
    # If the update is of a bundle: the parameter of each region. (): all regions are of `parameter`.
    bundled: tuple[str, ...] = ()

    @property
    def parameters(self) -> tuple[str, ...]:
        """The parameter of each region or, if all regions are of one parameter, that parameter alone."""
        return self.bundled or (self.parameter,)


Instruction = Run | Merge | Move | Reduce | Gather | Update


@dataclass(frozen=True)
class Variant:
    """A way in which some micro-batches run: the graph of their size, with tiles on certain devices.

    Most programs have one variant. Micro-batches of another size, and those that another replica of a
    pipeline stage runs, have their own.
    """

    graph: Graph
    tiles: Mapping[str, Tiling]  # by operator
    merges: dict[str, tuple[Cell, ...]]  # by operator with partial results
    # Merged operators whose gradient starts on every device (replicated_loss.py).
    replicated_loss_ops: frozenset[str] = frozenset()

    @cached_property
    def ops(self) -> dict[str, Op]:
        return {op.name: op for op in self.graph.ops}

    @cached_property
    def loss_devices(self) -> tuple[int, ...]:
        """The devices that hold the loss.

        Its gradient starts on the first or, if the loss is replicated (replicated_loss.py), on all.
        """
        return self.devices_of(self.graph.loss or "")

    def devices_of(self, value: str) -> tuple[int, ...]:
        """Returns the devices that hold a computed scalar."""
        op = next(op for op in self.graph.ops if value in op.outputs)
        if op.name in self.merges:
            return self.merges[op.name][0].devices
        return tuple(dict.fromkeys(t.device for t in self.tiles[op.name].tiles))


@dataclass(frozen=True, repr=False)
class Program:
    """A lowered plan: `plan.steps` training steps."""

    graph: Graph  # of the largest micro-batch
    plan: Plan
    instructions: tuple[Instruction, ...]
    active: frozenset[str]  # values whose gradient is needed; empty if there is no backward
    variants: tuple[Variant, ...]  # the first has `graph`, with the tiles of the plan as they are
    regions: dict[str, tuple[ParameterRegion, ...]]  # by parameter, its boxes with their holders
    # By parameter, its regions cut further into slices, where each slice is synchronised on its own: pushed
    # to a server, updated and pulled, or all-reduced and updated on every holder. Otherwise empty.
    slices: dict[str, tuple[ParameterRegion, ...]] = field(default_factory=dict)
    bundles: tuple[Bundle, ...] = ()  # every slice is in one of them

    def __repr__(self) -> str:
        return (
            f"<Program of {self.graph.name}: {len(self.instructions)} instructions on "
            f"{self.plan.devices} devices, {self.plan.steps} steps>"
        )

    @property
    def sharded(self) -> bool:
        """Whether parameters with a gradient are sharded: each holder updates the rows of its shard."""
        return self.plan.parsed_sync.shards and bool(self.active)

    @property
    def gathers_before_use(self) -> bool:
        """Whether a device keeps only its shard of the parameters (ZeRO-3)."""
        return self.plan.parsed_sync.zero3 and bool(self.active)

    @property
    def returned_outputs(self) -> tuple[str, ...]:
        """The outputs of the module that a step returns: in training none, so that their memory is free."""
        return () if self.active else self.graph.outputs

    def updated_elements(self, region: ParameterRegion) -> int:
        """Elements of a region that each of its updaters updates; a padded shard counts as a whole one."""
        return region.elements_per_shard if self.sharded else region.box.volume

    def sums_replicas(self, collective: Reduce | Gather) -> bool:
        """Returns whether a collective all-reduces shards over their replicas in all groups (HSDP)."""
        return self.sharded and collective.collective is Collective.ALL_REDUCE

    @cached_property
    def updated_pieces(self) -> dict[str, tuple[ParameterRegion, ...]]:
        """For each parameter that is cut, the pieces that are updated one by one: slices or shards."""
        if not self.sharded:
            return self.slices
        return {
            name: tuple(
                ParameterRegion(shard, replicas)
                for region in regions
                for replicas in region.replicas
                if (shard := region.shard(replicas[0])) is not None
            )
            for name, regions in self.regions.items()
            if name in self.active
        }

    def variant(self, key: Key) -> Variant:
        return self.variants[key.variant]

    @cached_property
    def bundles_of(self) -> dict[str, list[Bundle]]:
        """For each parameter, the bundles that have slices of it."""
        bundles: dict[str, list[Bundle]] = {name: [] for name in self.slices}
        for bundle in self.bundles:
            for name in dict.fromkeys(bundle.parameters):
                bundles[name].append(bundle)
        return bundles

    @cached_property
    def priority(self) -> dict[str, int]:
        """The number of each parameter in the order of first use: a smaller number is more urgent."""
        used = (name for op in self.graph.ops for name in op.inputs if name in self.regions)
        return {name: number for number, name in enumerate(dict.fromkeys(used))}

    @cached_property
    def micro_batch_sizes(self) -> list[int]:
        """The number of samples of each micro-batch."""
        return micro_batch_sizes(self.plan, self.graph)

    def instructions_of(self, device: int) -> list[Instruction]:
        """Returns the instructions that a device takes part in, in order."""
        return [i for i in self.instructions if device in i.devices]

    def producer(self, value: str) -> Op:
        return self._producers[value]

    @cached_property
    def _producers(self) -> dict[str, Op]:
        return {o: op for op in self.graph.ops for o in op.outputs}

    def element_bytes(self, value: str) -> int:
        """Returns the bytes of one element of a value in memory."""
        return self.graph.values[value].dtype.itemsize


def reduced_element_bytes(plan: Plan, dtype: torch.dtype) -> int:
    """Returns the bytes of one element of a gradient while a collective sums it.

    dtype: of the parameter. The gradient of a sharded parameter has the dtype in which it was gathered.
    """
    sync, precision = plan.parsed_sync, plan.parsed_precision
    if sync.shards:
        return precision.reduce_dtype(precision.gather_dtype(dtype)).itemsize
    return 2 if sync.wire_dtype else dtype.itemsize  # compressed to bfloat16 or float16


def gathered_element_bytes(program: Program, parameter: str) -> int:
    """Returns the bytes of one element of a parameter while its shards are gathered."""
    dtype = program.graph.values[parameter].dtype
    return program.plan.parsed_precision.gather_dtype(dtype).itemsize


def held_element_bytes(program: Program, parameter: str) -> int:
    """Returns the bytes of one element of a parameter, and of its gradient, as operators use it."""
    if program.sharded:
        return gathered_element_bytes(program, parameter)
    return program.element_bytes(parameter)


def updated_dtype(graph: Graph, parameter: str) -> torch.dtype:
    """Returns the dtype of a parameter that the optimizer updates: the module's, as master weights have."""
    return (graph.captured or graph).values[parameter].dtype


def update_bytes(plan: Plan, graph: Graph, parameter: str) -> int:
    """Returns the bytes that an update reads and writes for each element of a parameter.

    If operators use the parameter in another dtype, the update writes it in that dtype too.
    """
    updated, held = updated_dtype(graph, parameter), graph.values[parameter].dtype
    if plan.parsed_sync.shards:
        held = plan.parsed_precision.gather_dtype(held)
    copy = held.itemsize if held != updated else 0
    return optimizer_info(plan.optimizer).passes * updated.itemsize + copy


def buffer_bytes(program: Program, collective: Reduce | Gather) -> dict[tuple[int, ...], int]:
    """Returns, for each group of devices that take part together, the bytes of the full buffer on a device.

    The full buffer of an all-reduce is the bucket. The full buffer of a reduce-scatter is its input, that
    of an all-gather its output; in these, all shards are padded to the same size. That of an
    all-reduce over replicas has the padded shards of one device.
    """
    nbytes_by_group: dict[tuple[int, ...], int] = {}
    for name, regions in zip(collective.parameters, collective.regions, strict=True):
        for region in regions:
            element_bytes = (
                gathered_element_bytes(program, name)
                if isinstance(collective, Gather)
                else reduced_element_bytes(program.plan, program.graph.values[name].dtype)
            )
            nbytes = region.ring_elements(collective.collective) * element_bytes
            for ring in region.rings(collective.collective):
                nbytes_by_group[ring] = nbytes_by_group.get(ring, 0) + nbytes
    return nbytes_by_group


def message_bytes(program: Program, move: Move, message: Message) -> int:
    """Returns the bytes of a message, as the transport sends them."""
    return (
        message.elements
        * program.element_bytes(move.value)
        * tensors_in_message(program, move, message)
    )


def tensors_in_message(program: Program, move: Move, message: Message) -> int:
    """Returns how many tensors a message has for each of its boxes."""
    if message.part < 0:
        return 1
    op, variant = program.producer(move.value), program.variant(move.key)
    return tensors_per_part(variant.ops[op.name], variant.tiles[op.name].tiles[message.part].box)


def tensors_per_part(op: Op, box: Box) -> int:
    """Returns how many tensors a tile's result has: two for moments and a partial log-sum-exp, else one.

    Moments are mean and variance; a partial log-sum-exp is a maximum and a sum (graph/ops/norm.py).
    """
    return {"moments": 2, "lse": 2 if op.space.is_partial(box) else 1}.get(op.space.combine, 1)
