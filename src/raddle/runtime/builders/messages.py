"""Messages of a device: what it packs and sends, what it posts, and where it waits for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from raddle.program.message_kind import Content
from raddle.program.program import Message, Move, Program, tensors_in_message
from raddle.runtime.acknowledgements import Acknowledgements
from raddle.runtime.actions import AwaitMessage, Receive, Send
from raddle.runtime.builders.persistent import is_zero3
from raddle.runtime.builders.slot_table import SlotTable
from raddle.runtime.delivery import MessagePart, delivery_of
from raddle.runtime.function_writer import TensorId
from raddle.runtime.region_assembly import overlapping_boxes, region_assembler


class MessageBuilder:
    """Makes the sends, receives and waits of one device."""

    def __init__(self, program: Program, device: int, slot_table: SlotTable) -> None:
        self.program, self.device, self.slot_table = program, device, slot_table
        self._zero3 = is_zero3(program)
        self._acknowledgements = Acknowledgements(program, device)
        self._acknowledged_sends: dict[
            tuple[int, int], list[int]
        ] = {}  # sends, by instruction and peer
        self._not_awaited: dict[int, list[Receive]] = {}  # by instruction
        self._send_count = self._receive_count = 0  # so far

    def build_transfers(
        self, number: int, move: Move, tags: Sequence[int]
    ) -> Iterable[Send | Receive]:
        """What an instruction of this number gives this device to send and to expect."""
        for message, tag in zip(move.messages, tags, strict=True):
            if message.source == self.device:
                send = self._send(move, message, tag)
                acknowledgement = self._acknowledgements.find(number, message.target)
                if acknowledgement is not None:
                    self._acknowledged_sends.setdefault(acknowledgement, []).append(send.number)
                yield send
        for message, tag in zip(move.messages, tags, strict=True):
            if message.target == self.device:
                receive = self._receive(move, message, tag)
                self._not_awaited.setdefault(number, []).append(receive)
                yield receive

    def build_awaits(self, number: int) -> list[AwaitMessage]:
        """Waits for what an instruction brings, if nobody has before."""
        return [
            AwaitMessage(receive, self._acknowledged_sends.get((number, receive.peer), []))
            for receive in self._not_awaited.pop(number, [])
        ]

    def not_awaited(self) -> list[int]:
        """Instructions whose messages nobody has waited for."""
        return list(self._not_awaited)

    def _tensor_ids(self, move: Move, message: Message) -> list[TensorId]:
        """What a message carries of each box: a value, or the tensors of a part."""
        if move.kind.content == Content.NOTHING:
            return []
        if message.part < 0:
            return [move.value]
        op = self.program.producer(move.value).name
        return [
            (op, message.part, k) for k in range(tensors_in_message(self.program, move, message))
        ]

    def _send(self, move: Move, message: Message, tag: int) -> Send:
        delivery, parts = delivery_of(move.kind, zero3=self._zero3), []
        for box in message.boxes:
            for tensor_id in self._tensor_ids(move, message):
                box_slots = delivery.pieces_to_send(self.slot_table, move.key, tensor_id)
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
        delivery = delivery_of(move.kind, zero3=self._zero3)
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
