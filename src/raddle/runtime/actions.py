"""What a rank does in a step: a program's instructions for one device, settled down to numbered slots.

A slot holds one piece: a box of a value, of a parameter, of a partial result. Everything that depends on
boxes is decided here, once, so that a step only moves tensors between slots and calls functions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from raddle.graph.box import Box
from raddle.program.message_kind import MessageKind
from raddle.program.program import Key, ParameterRegion
from raddle.runtime.builders.slot_table import SlotSource
from raddle.runtime.delivery import Delivery, MessagePart
from raddle.runtime.function_writer import GeneratedCode
from raddle.runtime.zero3 import GatheredParameter


@dataclass
class Call:
    """Runs a function of pieces forward; what its backward needs is kept under its number."""

    number: int
    label: str
    code: GeneratedCode
    key: Key
    differentiable: list[int] = field(
        default_factory=list
    )  # slots of arguments that get a gradient
    weights: list[int] = field(default_factory=list)  # slots of parameters
    nondifferentiable: list[int] = field(default_factory=list)
    results: list[int] = field(default_factory=list)
    dtypes: list[torch.dtype] = field(default_factory=list)  # of the results
    backward: bool = False
    recompute: bool = False
    split_backward: bool = False
    stage: int = 0  # of a pipeline


@dataclass
class Feed:
    """Takes a part of the batch, where it is first read."""

    source: SlotSource
    key: Key


@dataclass
class Forward:
    """Runs a call; `again` for a backward that found nothing kept.

    Where steps overlap, `versions` says which version of each weight it uses, and `spent` which of them
    nobody uses after it.
    """

    call: Call
    recomputation: bool = False
    versions: tuple[int, ...] = ()
    expired_versions: list[tuple[int, int]] = field(default_factory=list)  # slot, version
    dead_slots: list[int] = field(default_factory=list)  # slots that nobody reads any more
    release: list[int] = field(default_factory=list)  # divided parameters, until they come again


@dataclass
class Backward:
    """Hands gradients of a call's results back to what it read ("W": to parameters alone)."""

    call: Call
    phase: str = "B"
    release: list[int] = field(default_factory=list)


@dataclass
class Send:
    """Packs boxes of slots (or of their gradients) into a buffer and sends it."""

    peer: int
    tag: int
    kind: MessageKind
    label: str
    parts: list[MessagePart]
    dtype: torch.dtype
    key: Key
    delivery: Delivery
    number: int = 0  # among the sends of a rank
    dead_slots: list[int] = field(default_factory=list)


@dataclass
class Receive:
    """Posts a buffer early; `Arrive` waits for it and hands its boxes on."""

    peer: int
    tag: int
    kind: MessageKind
    label: str
    parts: list[MessagePart]
    dtype: torch.dtype
    elements: int
    value: str
    key: Key
    delivery: Delivery
    number: int = 0  # in the order in which a rank posts them

    @property
    def nbytes(self) -> int:
        return self.elements * self.dtype.itemsize


@dataclass
class AwaitMessage:
    """Waits for a message where it is first needed."""

    receive: Receive
    acknowledged_sends: list[int] = field(
        default_factory=list
    )  # sends that its sender must have received
    dead_slots: list[int] = field(default_factory=list)


class ParameterSlice(NamedTuple):
    """A slice of a parameter that is updated by itself, and where it is on this rank."""

    name: str
    region: ParameterRegion
    dtype: torch.dtype
    priority: int
    slot: int  # that holds it; -1: not on this rank
    rows: slice | None  # in the slot; None: it is a number
    shard_slot: int = -1  # where parameters are divided: the slot of its rows at home


class Bucket(NamedTuple):
    """Gradients that are all-reduced together: slots of parameters, one after the other in a buffer."""

    devices: tuple[int, ...]
    slots: tuple[int, ...]
    dtype: torch.dtype
    elements: int


@dataclass
class StartAllReduce:
    """Starts the all-reduce of a bucket."""

    bucket: int
    tag: int
    label: str
    key: Key


@dataclass
class SubmitGradients:
    """Hands in the gradients of parameters: slices of them go to their homes, or wait for their turn."""

    key: Key
    slots: tuple[int, ...]


@dataclass
class StartSliceAllReduce:
    """Starts the sum of a slice whose gradient was handed in: on all ranks at this place of the program."""

    key: Key
    number: int  # of the slice
    label: str


@dataclass
class UpdateBuffers:
    """Buffers take the pieces of their new values."""

    key: Key
    full_updates: list[tuple[int, int]] = field(
        default_factory=list
    )  # slots of a buffer and of its value
    partial_updates: list[tuple[int, list[tuple[Box, int]]]] = field(default_factory=list)
    dead_slots: list[int] = field(default_factory=list)


@dataclass
class RecordLoss:
    """The loss of a micro-batch; its gradient starts here."""

    slot: int
    starts_backward: (
        bool  # of several copies, one counts, unless all devices start their own gradients
    )
    reports: bool  # whether this device tells it
    key: Key
    dead_slots: list[int] = field(default_factory=list)


@dataclass
class UpdateParameters:
    """Updates parameters of this rank: all of them or, where steps overlap, those whose turn it is.

    `kept` are those among them whose old weights a later forward uses.
    """

    key: Key
    slots: tuple[int, ...] = ()
    stashed: tuple[int, ...] = ()


Action = (
    Feed
    | Forward
    | Backward
    | Send
    | Receive
    | AwaitMessage
    | StartAllReduce
    | SubmitGradients
    | StartSliceAllReduce
    | UpdateBuffers
    | RecordLoss
    | UpdateParameters
)


@dataclass
class RankActions:
    """A step of one rank."""

    device: int
    actions: list[Action]
    slot_count: int
    shapes: list[tuple[int, ...]]  # by slot
    sources: list[SlotSource]
    updated_slots: list[int]  # slots of parameters that are updated here
    buckets: list[Bucket]
    outputs: dict[str, list[tuple[Box, int]]]  # of the graph, on this device
    current_buffers: dict[str, list[Box]]  # buffers that this rank keeps up to date
    groups: list[tuple[int, ...]]  # that sum gradients, in the same order on every rank
    links: list[tuple[int, int]]  # source and target of messages, likewise
    slices: list[ParameterSlice]  # of all parameters, likewise
    gathered: list[GatheredParameter]  # parameters of which this rank keeps its own rows alone
    slice_order: list[
        int
    ]  # their numbers, as their sums leave, likewise; empty where they have homes

    def by_step(self) -> dict[int, list[Action]]:
        """The actions of each step, in their order."""
        steps: dict[int, list[Action]] = {}
        for action in self.actions:
            steps.setdefault(key_of(action).step, []).append(action)
        return steps

    def sources_with_role(self, role: str) -> Iterable[SlotSource]:
        return (s for s in self.sources if s.role == role)


def key_of(action: Action) -> Key:
    """Which step and micro-batch an action belongs to."""
    if isinstance(action, Forward | Backward):
        return action.call.key
    return action.receive.key if isinstance(action, AwaitMessage) else action.key
