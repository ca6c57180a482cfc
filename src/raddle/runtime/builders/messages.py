"""Builds the sends, receives and waits of a device from the program's Move instructions.

A delivery says, for a kind of messages, which boxes the sender packs and where the receiver puts them
(delivery.py). The key of a Move is its step, micro-batch and variant (program/program.py): slots are looked
up by it, as each micro-batch has its own. A partial result is what one tile of an operator contributes to a
result that is merged later; `part` of a message is the number of that tile. Most partial results are one
tensor; those of mean and variance, for example, are two.
"""

from __future__ import annotations

from collections.abc import Sequence

from raddle.program.message_kind import Content
from raddle.program.program import Message, Move, Program, tensors_in_message
from raddle.runtime.acknowledgements import Acknowledgements
from raddle.runtime.actions import AwaitMessage, Receive, Send
from raddle.runtime.builders.slot_table import SlotTable
from raddle.runtime.delivery import MessagePart, delivery_of
from raddle.runtime.function_writer import TensorId
from raddle.runtime.region_assembly import overlapping_boxes, region_assembler


class MessageBuilder:
    """Builds the message actions of one device. Instructions are identified by indices in the program."""

    def __init__(self, program: Program, device: int, slot_table: SlotTable) -> None:
        self.program, self.device, self.slot_table = program, device, slot_table
        self._acknowledgements = Acknowledgements(program, device)
        # (instruction, peer) -> numbers of earlier sends. They must have arrived when the peer's message of
        # this instruction arrives (acknowledgements.py).
        self._acknowledged_sends: dict[tuple[int, int], list[int]] = {}
        self._not_awaited: dict[int, list[Receive]] = {}  # instruction -> its receives
        self._send_count = self._receive_count = 0

    def build_transfers(
        self, number: int, move: Move, tags: Sequence[int]
    ) -> Sequence[Send | Receive]:
        """Returns the sends and receives of this device for a Move.

        number: the index of the Move in the program; tags: one for each of its messages.
        """
        receives = [
            self._receive(move, message, tag)
            for message, tag in zip(move.messages, tags, strict=True)
            if message.target == self.device
        ]
        if receives:
            self._not_awaited.setdefault(number, []).extend(receives)
        sends: list[Send | Receive] = []
        for message, tag in zip(move.messages, tags, strict=True):
            if message.source == self.device:
                send = self._send(move, message, tag)
                sends.append(send)
                send.posted_before = receives[-1] if receives else None
                acknowledgement = self._acknowledgements.find(number, message.target)
                if acknowledgement is not None:
                    self._acknowledged_sends.setdefault(acknowledgement, []).append(send.number)
        transfers = [*sends, *receives]
        transfers[-1].ends_batch = True
        return transfers

    def build_awaits(self, number: int) -> list[AwaitMessage]:
        """Returns the waits for an instruction's messages to this device; empty if they exist already."""
        return [
            AwaitMessage(receive, self._acknowledged_sends.get((number, receive.peer), []))
            for receive in self._not_awaited.pop(number, [])
        ]

    def not_awaited(self) -> list[int]:
        """Returns instructions whose messages no action has waited for so far."""
        return list(self._not_awaited)

    def _tensor_ids(self, move: Move, message: Message) -> list[TensorId]:
        """Returns the ids of the tensors whose boxes a message has: a value, or a partial result's tensors.

        The id of the k-th tensor of a partial result is (operator, tile, k): see function_writer.py.
        """
        if move.kind.content == Content.NOTHING:
            return []
        if message.part < 0:  # not a partial result
            return [move.value]
        op = self.program.producer(move.value).name
        return [
            (op, message.part, k) for k in range(tensors_in_message(self.program, move, message))
        ]

    def _send(self, move: Move, message: Message, tag: int) -> Send:
        """Returns the send of one message: each box is assembled from the slots that overlap it."""
        delivery, parts = delivery_of(move.kind), []
        for box in message.boxes:
            for tensor_id in self._tensor_ids(move, message):
                box_slots = delivery.pieces_to_send(self.slot_table, move.key, tensor_id)
                # box_slots: (box, slot) of each piece that this device has; indices: those to assemble
                indices = overlapping_boxes([b for b, _ in box_slots], box)
                assemble = region_assembler([box_slots[i][0] for i in indices], box)
                parts.append(
                    MessagePart(box.shape, tuple(box_slots[i][1] for i in indices), assemble)
                )
        label = f"{move.kind} of {move.value} to {message.target}"
        dtype = self.program.graph.values[move.value].dtype
        self._send_count += 1
        return Send(
            message.target,
            tag,
            move.kind,
            label,
            parts,
            dtype,
            move.key,
            delivery,
            self._send_count - 1,
        )

    def _receive(self, move: Move, message: Message, tag: int) -> Receive:
        """Returns the receive of one message; `parts` says where each of its boxes is put."""
        delivery = delivery_of(move.kind)
        parts = [
            delivery.destination(self.slot_table, move.key, tensor_id, box)
            for box in message.boxes
            for tensor_id in self._tensor_ids(move, message)
        ]
        label = f"{move.kind} of {move.value} from {message.source}"
        dtype = self.program.graph.values[move.value].dtype
        elements = message.elements * tensors_in_message(self.program, move, message)
        self._receive_count += 1
        return Receive(
            message.source, tag, move.kind, label, parts, dtype, elements, move.value, move.key,
            delivery, self._receive_count - 1,
        )  # fmt: skip
