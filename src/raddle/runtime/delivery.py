"""What a rank does with messages of each kind: what it packs, and where it puts what has come.

All of the runtime that depends on the kind of a message is in this file. It depends on what the message
carries and is about (`program/message_kind.py`), so a new kind that is about nothing new needs no change here.
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
    """A box inside a message: which slots it is made of, and how; or which it is added to, and where."""

    shape: tuple[int, ...]
    slots: tuple[int, ...]
    assemble: Callable[..., Tensor] | None = None
    index_pairs: tuple[
        tuple[tuple[slice, ...], tuple[slice, ...]], ...
    ] = ()  # in the slot, in the box


class Delivery:
    """Of a kind of messages, between which slots it goes. Signals carry nothing, and are this."""

    fills_slots = False  # slots of its own, which are emptied when nobody reads them any more
    completes_values = False  # values that a buffer may have been waiting for
    gathers_parameters = False  # parameters that are released after their use
    sends_gradients = False  # of slots, which the sender forgets
    only_with_update = False  # a step without an update does not send it
    needs_copy = False  # in place later, so that a copy is sent

    def pieces_to_send(self, slot_table: SlotTable, key: Key, tensor_id: TensorId) -> BoxSlots:
        """The pieces that the sender makes it of."""
        return slot_table.box_slots(key, tensor_id)

    def destination(
        self, slot_table: SlotTable, key: Key, tensor_id: TensorId, box: Box
    ) -> MessagePart:
        """Where the receiver puts a box."""
        return MessagePart(box.shape, ())

    def deliver(self, store: Store, part: MessagePart, tensor: Tensor) -> None:
        """A box has come: the receiver puts it there."""


class ValueDelivery(Delivery):
    """Fill slots of their own."""

    fills_slots = completes_values = True

    def destination(
        self, slot_table: SlotTable, key: Key, tensor_id: TensorId, box: Box
    ) -> MessagePart:
        return MessagePart(box.shape, (slot_table.add_received(key, tensor_id, box),))

    def deliver(self, store: Store, part: MessagePart, tensor: Tensor) -> None:
        store.slots[part.slots[0]] = tensor


class PartialResultDelivery(ValueDelivery):
    """Are values too, but not complete."""

    completes_values = False


class GradientDelivery(Delivery):
    """Go back from where a value was received to where it was made, and are added there."""

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
    """Are written into the receiver's copy of a parameter."""

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
    """Are added to the gradient of the server's copy."""

    sends_gradients, needs_copy = True, False

    def deliver(self, store: Store, part: MessagePart, tensor: Tensor) -> None:
        for slot, (slot_index, box_index) in zip(part.slots, part.index_pairs, strict=True):
            store.add_gradient_box(slot, slot_index, tensor[box_index])
            store.with_gradient.add(slot)


class ShardDelivery(ParameterDelivery):
    """Of a divided parameter: what its home keeps is gathered where the parameter is used."""

    gathers_parameters = True
    only_with_update = needs_copy = False  # it is pulled in every step

    def pieces_to_send(self, slot_table: SlotTable, key: Key, tensor_id: TensorId) -> BoxSlots:
        assert isinstance(tensor_id, str)
        return slot_table.shards[tensor_id]

    def deliver(self, store: Store, part: MessagePart, tensor: Tensor) -> None:
        for slot, (slot_index, box_index) in zip(part.slots, part.index_pairs, strict=True):
            store.gathered.allocate(slot)[slot_index] = tensor[box_index]


def delivery_of(kind: MessageKind, *, zero3: bool = False) -> Delivery:
    """`divided`: whether parameters are at their homes alone while nobody uses them."""
    if kind.content is Content.NOTHING:
        return Delivery()
    is_value = kind.content is Content.VALUE
    match kind.subject:
        case Subject.RESULT:
            return ValueDelivery() if is_value else GradientDelivery()
        case Subject.PART:
            return PartialResultDelivery() if is_value else GradientDelivery()
        case Subject.PARAMETER if is_value:
            return ShardDelivery() if zero3 else ParameterDelivery()
        case Subject.PARAMETER:
            return ParameterGradientDelivery()
        case Subject.ACTION:
            return Delivery()
        case _:
            return unreachable(kind.subject)


def _overlap_part(box_slots: BoxSlots, box: Box) -> MessagePart:
    """A box as parts of the pieces that it overlaps."""
    overlapping_pieces = [box_slots[i] for i in overlapping_boxes([b for b, _ in box_slots], box)]
    overlaps = [(piece_box & box, piece_box, slot) for piece_box, slot in overlapping_pieces]
    places = tuple(
        (overlap.slices_within(box_of_piece), overlap.slices_within(box))
        for overlap, box_of_piece, _ in overlaps
    )
    return MessagePart(box.shape, tuple(slot for *_, slot in overlaps), index_pairs=places)
