"""The actions of one rank: what `build_actions` makes of a program and what the executor carries out.

Actions work on numbered slots. A slot holds one tensor: a box (a rectangular part) of a value, of a
parameter or of a partial result. All questions about boxes are answered when the actions are built, so a
step only moves tensors between slots and calls functions.

A `key` names the step, the micro-batch and its variant (the way in which it is tiled). A `tag` is the same
number on all ranks that take part in a transfer. A `label` is a text for traces and error messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from raddle.graph.box import Box
from raddle.program.message_kind import MessageKind
from raddle.program.parameter_region import ParameterRegion
from raddle.program.program import Key
from raddle.runtime.builders.slot_table import SlotSource
from raddle.runtime.delivery import Delivery, MessagePart
from raddle.runtime.function_writer import GeneratedCode
from raddle.runtime.zero3 import GatheredParameter


@dataclass
class Call:
    """A generated function with its slots: a segment or a merge in one micro-batch.

    A segment is a sequence of operators of this rank without communication inside. A merge combines partial
    results.
    """

    number: int  # identifies the call on this rank
    label: str  # for traces and error messages
    # The function, and the boxes that it takes and returns (function_writer.py)
    code: GeneratedCode
    key: Key  # step, micro-batch, and variant (how that micro-batch is tiled)
    # The arguments, by kind: slots of activations that get a gradient, of parameters, and of all others.
    differentiable: list[int] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)
    nondifferentiable: list[int] = field(default_factory=list)
    results: list[int] = field(default_factory=list)  # slots of the results
    dtypes: list[torch.dtype] = field(default_factory=list)  # one for each result
    backward: bool = False  # whether the call has a backward
    recompute: bool = False  # whether its forward runs again before its backward (checkpointing)
    split_backward: bool = False  # whether phase "W" computes the gradients of weights later
    stage: int = 0  # pipeline stage
    # What the random numbers of the call depend on, besides the seed of the micro-batch; "": it draws none.
    random_stream: str = ""
    # The last arguments: the code's integers, as tensors (function_writer.py). They never change.
    numbers: tuple[torch.Tensor, ...] = ()
    active_results: list[int] = field(default_factory=list)  # indices of results with a gradient
    operators: tuple[str, ...] = ()  # of a segment: their names


@dataclass
class Feed:
    """Puts a part of the batch, or a random seed, into its slot before the first call that reads it."""

    source: SlotSource  # which box of which input, or which seed, and its slot
    key: Key  # step, micro-batch and variant


@dataclass
class Forward:
    """Runs a call forward.

    `dead_slots`, here and in other actions: slots that no later action reads; they are emptied after it.
    """

    call: Call
    recomputation: bool = False  # the second forward of a recomputed call, before its backward
    # Only where steps overlap: the version of each weight that the call uses (number of updates so far),
    # and the (slot, version) pairs that no later forward uses.
    versions: tuple[int, ...] = ()
    expired_versions: list[tuple[int, int]] = field(default_factory=list)
    dead_slots: list[int] = field(default_factory=list)
    release: list[int] = field(default_factory=list)  # slots of gathered ZeRO-3 parameters to free


@dataclass
class Backward:
    """Takes the gradients of a call's results, and computes those of its arguments."""

    call: Call
    phase: str = "B"  # "B": all, or activations only if the backward is split; "W": weights only
    release: list[int] = field(default_factory=list)  # as in Forward


@dataclass
class Send:
    """Packs boxes of slots, or of the slots' gradients, into one buffer and sends it."""

    peer: int  # rank
    tag: int  # the receive of this message has the same tag
    kind: MessageKind  # what the message carries: value, gradient or nothing; and of what
    label: str  # for traces and error messages
    parts: list[MessagePart]  # one for each box
    dtype: torch.dtype
    key: Key
    delivery: Delivery  # how messages of this kind are packed and delivered
    number: int = 0  # counts the sends of this rank
    # The last receive of the same Move. With early receives (gloo) it is posted before this send.
    posted_before: Receive | None = None
    # Whether this is the last message of its Move on this rank. NCCL starts them all together.
    ends_batch: bool = False
    dead_slots: list[int] = field(default_factory=list)


@dataclass
class Receive:
    """Posts a receive. The receive may be posted earlier, but not later; `AwaitMessage` completes it."""

    peer: int  # rank
    tag: int
    kind: MessageKind
    label: str
    parts: list[MessagePart]
    dtype: torch.dtype
    elements: int  # of all boxes together
    value: str  # name of the value or parameter
    key: Key
    delivery: Delivery
    number: int = 0  # counts the receives of this rank, in the order of posting
    ends_batch: bool = False  # as in Send

    @property
    def nbytes(self) -> int:
        return self.elements * self.dtype.itemsize


@dataclass
class AwaitMessage:
    """Waits for a message before the first action that needs it, and puts its boxes into slots."""

    receive: Receive
    # Numbers of this rank's sends that have arrived when this message is there: see acknowledgements.py.
    acknowledged_sends: list[int] = field(default_factory=list)
    dead_slots: list[int] = field(default_factory=list)


class ParameterSlice(NamedTuple):
    """Rows of a parameter that are synchronised and updated separately, and where they are on this rank."""

    name: str  # of the parameter
    region: ParameterRegion  # the box of the rows, the devices that hold it, and its server
    dtype: torch.dtype
    priority: int  # smaller is sent earlier
    slot: int  # the slot whose tensor contains the rows; -1: not on this rank
    rows: slice | None  # the rows within that tensor; None: the parameter has no dimensions


class Bucket(NamedTuple):
    """Gradients that are all-reduced together in one flat buffer."""

    devices: tuple[int, ...]  # that take part
    slots: tuple[int, ...]  # of the parameters, in the order of the buffer
    dtype: torch.dtype
    elements: int  # of the buffer


class ShardedRegion(NamedTuple):
    """A region of a sharded parameter on this rank, and its place in the buffer of a block."""

    slot: int  # of the whole region
    shard_slot: int  # of the rows that this rank updates; -1: it has none
    shape: tuple[int, ...]  # of the whole region
    shard_elements: int  # of each shard, with padding
    offset: int  # elements before the region's shard in each device's part of the buffer


class ShardedBlock(NamedTuple):
    """Regions of parameters that are reduce-scattered or all-gathered together in one flat buffer.

    The buffer has a part for each device, in the order of `devices`: the device's shards of all regions.
    With the regions w and b on two devices:

        | shard 0 of w | shard 0 of b | shard 1 of w | shard 1 of b |
    """

    devices: tuple[int, ...]  # that take part
    regions: tuple[ShardedRegion, ...]
    gather_dtype: torch.dtype  # of the buffer in which parameters are gathered
    reduce_dtype: torch.dtype  # of the buffer in which gradients are summed
    shard_elements: int  # of one device's part of the buffer
    # HSDP: this rank and those with the same shards in other groups; else ()
    replicas: tuple[int, ...]


class ShardView(NamedTuple):
    """ZeRO-2: the rows of a parameter that this rank updates, a view of the tensor in another slot."""

    shard: SlotSource  # the box of the rows, and the slot that gets the view
    parameter_slot: int  # of the tensor with the whole region
    rows: tuple[slice, ...]  # where the rows are in this tensor


@dataclass
class StartAllReduce:
    """Starts the all-reduce of a bucket."""

    bucket: int  # index into RankActions.buckets
    tag: int  # the same on all ranks that take part
    label: str
    key: Key


@dataclass
class StartReduceScatter:
    """Starts to sum the gradients of a block; each member receives the sum for its shards."""

    block: int  # index into RankActions.blocks
    tag: int
    label: str
    key: Key


@dataclass
class StartReplicaSum:
    """Starts to all-reduce this rank's sums of a block over the replicas of its shards (HSDP).

    It waits for the reduce-scatter of the block.
    """

    block: int  # index into RankActions.blocks
    tag: int
    label: str
    key: Key


@dataclass
class StartGather:
    """Starts to gather the parameters of a block. The first call that uses one of them waits for it."""

    block: int  # index into RankActions.blocks
    tag: int
    label: str
    key: Key
    slots: tuple[int, ...]  # of the parameters that this rank uses; only these are written


@dataclass
class SubmitGradients:
    """Passes complete gradients of parameters to the parameter synchronisation.

    With parameter servers, each slice or bundle of slices is sent to its server at once. With collective
    updates (each device that holds a slice updates it after an all-reduce), the gradients wait for the
    StartSliceAllReduce of each slice.
    """

    key: Key
    slots: tuple[int, ...]  # of the parameters


@dataclass
class StartSliceAllReduce:
    """Starts the all-reduce of one submitted slice or bundle. All ranks do this in the same order.

    A bundle that only one device holds is updated without communication.
    """

    key: Key
    number: int  # index into RankActions.bundles
    label: str


@dataclass
class UpdateBuffers:
    """Gives module buffers (for example running statistics) their new values."""

    key: Key
    full_updates: list[tuple[int, int]] = field(default_factory=list)  # (buffer slot, value slot)
    # (buffer slot, [(box within the buffer, value slot), ...])
    partial_updates: list[tuple[int, list[tuple[Box, int]]]] = field(default_factory=list)
    dead_slots: list[int] = field(default_factory=list)


@dataclass
class RecordLoss:
    """Records the loss of a micro-batch and, where the backward starts on this rank, sets its gradient."""

    slot: int
    # If several devices have the loss, the backward starts on the first of them. If all devices compute the
    # loss, so that none sends its gradient (program/replicated_loss.py), it starts on all.
    starts_backward: bool
    reports: bool  # whether this device's copy of the loss is the reported one
    key: Key
    dead_slots: list[int] = field(default_factory=list)


@dataclass
class RecordMetric:
    """Records a metric of a micro-batch."""

    name: str
    slot: int
    reports: bool  # whether this device's copy of the metric is the reported one
    key: Key
    dead_slots: list[int] = field(default_factory=list)


@dataclass
class UpdateParameters:
    """Updates all parameters of this rank; where steps overlap, only those in `slots`."""

    key: Key
    slots: tuple[int, ...] = ()
    stashed: tuple[int, ...] = ()  # slots among them whose old weights a later forward still uses


Action = (
    Feed
    | Forward
    | Backward
    | Send
    | Receive
    | AwaitMessage
    | StartAllReduce
    | StartReduceScatter
    | StartReplicaSum
    | StartGather
    | SubmitGradients
    | StartSliceAllReduce
    | UpdateBuffers
    | RecordLoss
    | RecordMetric
    | UpdateParameters
)


@dataclass
class RankActions:
    """All actions of one rank in a step or, where steps overlap, in all steps; and the slots they use."""

    device: int  # index into cluster.devices, and rank
    actions: list[Action]
    slot_count: int
    shapes: list[tuple[int, ...]]  # shape of each slot
    # Slots that are filled from outside: parameters, buffers, inputs, ...
    sources: list[SlotSource]
    updated_slots: list[int]  # slots of parameters that this rank updates
    buckets: list[Bucket]
    # Output of the module -> its boxes on this device, with their slots; in training there are none
    outputs: dict[str, list[tuple[Box, int]]]
    current_buffers: dict[str, list[Box]]  # buffer -> its boxes that this rank saves in checkpoints
    # Every rank lists the same slices and bundles in the same order; only the slots of a slice differ.
    slices: list[ParameterSlice]
    # Each bundle is the indices (in `slices`) of the slices that are synchronised together.
    bundles: list[tuple[int, ...]]
    blocks: list[ShardedBlock]  # of sharded parameters
    shard_views: list[ShardView]
    gathered: list[GatheredParameter]  # ZeRO-3 parameters that this rank gathers before use
    # Indices of bundles in the order of their all-reduces; empty with parameter servers
    bundle_order: list[int]
    parameter_dtypes: dict[int, torch.dtype]  # in which parameters are held, by slot

    def by_step(self) -> dict[int, list[Action]]:
        """Returns the actions of each step; their order is kept."""
        steps: dict[int, list[Action]] = {}
        for action in self.actions:
            steps.setdefault(key_of(action).step, []).append(action)
        return steps

    def sources_with_role(self, role: str) -> Iterable[SlotSource]:
        return (s for s in self.sources if s.role == role)


def key_of(action: Action) -> Key:
    """Returns the step, micro-batch and variant that an action belongs to."""
    if isinstance(action, Forward | Backward):
        return action.call.key
    return action.receive.key if isinstance(action, AwaitMessage) else action.key
