"""Says, for each kind of messages, which pieces the sender packs and where the receiver puts them.

All of the runtime that depends on the kind of a message is in this file. A delivery is chosen by the
content of the kind (value, gradient or nothing) and by its subject (what the message is about: a result, a
partial result, a parameter or an action of the schedule; `program/message_kind.py`). So a new kind with a
known content and subject needs no change here. A piece is a box of a tensor; a slot table
(builders/slot_table.py) knows the slots of the pieces that a device holds, separately for each key (step,
micro-batch and variant).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from raddle.errors import unreachable
from raddle.graph.box import Box
from raddle.program.message_kind import Content, MessageKind, Subject
from raddle.program.program import Key
from raddle.runtime.builders.slot_table import BoxSlots, SlotTable
from raddle.runtime.execution.store import Store
from raddle.runtime.function_writer import TensorId
from raddle.runtime.region_assembly import overlapping_boxes


class MessagePart(NamedTuple):
    """One box inside a message, at the sender or at the receiver."""

    shape: tuple[int, ...]  # of the box
    slots: tuple[int, ...]  # sender: the box is assembled from them; receiver: it is put into them
    assemble: Callable[..., Tensor] | None = None  # sender; None: the box is the one slot's tensor
    # Receiver, for each slot: (index into the slot's tensor, index into the box) of their common part.
    index_pairs: tuple[tuple[tuple[slice, ...], tuple[slice, ...]], ...] = ()


class Delivery:
    """Says how one kind of messages is packed and delivered. The base class is for signals: no data."""

    # What it means if they are True:
    fills_slots = False  # a received box fills a slot, which is emptied after its last use
    completes_values = False  # brings complete values, which may update buffers
    sends_gradients = False  # sends gradients of slots; the sender clears them after sending
    only_with_update = False  # not sent in steps without an update (gradient accumulation)
    needs_copy = False  # the tensor is changed in place later, so a copy is sent

    def pieces_to_send(self, slot_table: SlotTable, key: Key, tensor_id: TensorId) -> BoxSlots:
        """Returns the sender's boxes, with slots, from which the message is assembled."""
        return slot_table.box_slots(key, tensor_id)

    def destination(
        self, slot_table: SlotTable, key: Key, tensor_id: TensorId, box: Box
    ) -> MessagePart:
        """Returns where the receiver puts a box of the message. It may add a slot to the table."""
        return MessagePart(box.shape, ())

    def deliver(self, store: Store, part: MessagePart, tensor: Tensor) -> None:
        """Puts a received box where `destination` said."""


class ValueDelivery(Delivery):
    """Activations: each received box fills a slot of its own."""

    fills_slots = completes_values = True

    def destination(
        self, slot_table: SlotTable, key: Key, tensor_id: TensorId, box: Box
    ) -> MessagePart:
        return MessagePart(box.shape, (slot_table.add_received(key, tensor_id, box),))

    def deliver(self, store: Store, part: MessagePart, tensor: Tensor) -> None:
        store.slots[part.slots[0]] = tensor


class PartialResultDelivery(ValueDelivery):
    """Partial results: as activations, but the values are complete only after a merge."""

    completes_values = False


class GradientDelivery(Delivery):
    """Gradients of values: sent back to the device that computed the value, and added up there."""

    sends_gradients = True

    def pieces_to_send(self, slot_table: SlotTable, key: Key, tensor_id: TensorId) -> BoxSlots:
        return slot_table.received[key, tensor_id]

    def destination(
        self, slot_table: SlotTable, key: Key, tensor_id: TensorId, box: Box
    ) -> MessagePart:
        return _overlap_part(slot_table.computed[key, tensor_id], box)

    def deliver(self, store: Store, part: MessagePart, tensor: Tensor) -> None:
        for slot, (slot_index, box_index) in zip(part.slots, part.index_pairs, strict=True):
            store.add_gradient_box(slot, slot_index, tensor[box_index])


class ParameterDelivery(Delivery):
    """Updated parameters from a server: written into the receiver's copy (pull)."""

    only_with_update = needs_copy = True

    def destination(
        self, slot_table: SlotTable, key: Key, tensor_id: TensorId, box: Box
    ) -> MessagePart:
        assert isinstance(tensor_id, str)
        return _overlap_part(slot_table.persistent[tensor_id], box)

    def deliver(self, store: Store, part: MessagePart, tensor: Tensor) -> None:
        with torch.no_grad():
            for slot, (slot_index, box_index) in zip(part.slots, part.index_pairs, strict=True):
                store.slots[slot][slot_index] = tensor[box_index]


class ParameterGradientDelivery(ParameterDelivery):
    """Gradients of parameters to a server: added to the gradient of the server's copy (push)."""

    sends_gradients, needs_copy = True, False

    def deliver(self, store: Store, part: MessagePart, tensor: Tensor) -> None:
        for slot, (slot_index, box_index) in zip(part.slots, part.index_pairs, strict=True):
            store.add_gradient_box(slot, slot_index, tensor[box_index])
            store.with_gradient.add(slot)


def delivery_of(kind: MessageKind) -> Delivery:
    """Returns the delivery of a kind of messages."""
    if kind.content is Content.NOTHING:
        return Delivery()
    is_value = kind.content is Content.VALUE
    match kind.subject:
        case Subject.RESULT:
            return ValueDelivery() if is_value else GradientDelivery()
        case Subject.PART:  # a partial result
            return PartialResultDelivery() if is_value else GradientDelivery()
        case Subject.PARAMETER if is_value:
            return ParameterDelivery()
        case Subject.PARAMETER:
            return ParameterGradientDelivery()
        case Subject.ACTION:  # a signal: an action of the schedule has ended
            return Delivery()
        case _:
            return unreachable(kind.subject)


def _overlap_part(box_slots: BoxSlots, box: Box) -> MessagePart:
    """Returns the message part that puts a box into all slots whose boxes overlap it."""
    overlapping_pieces = [box_slots[i] for i in overlapping_boxes([b for b, _ in box_slots], box)]
    overlaps = [(piece_box & box, piece_box, slot) for piece_box, slot in overlapping_pieces]
    index_pairs = tuple(
        (overlap.slices_within(box_of_piece), overlap.slices_within(box))
        for overlap, box_of_piece, _ in overlaps
    )
    return MessagePart(box.shape, tuple(slot for *_, slot in overlaps), index_pairs=index_pairs)
