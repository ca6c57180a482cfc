"""Messages of a device: what it packs and sends, what it posts, and where it waits for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from raddle.program.message_kind import Content
from raddle.program.program import Message, Move, Program, tensors_in_message
from raddle.runtime.acknowledgements import Acknowledgements
from raddle.runtime.actions import AwaitMessage, Receive, Send
from raddle.runtime.builders.persistent import is_divided
from raddle.runtime.builders.slot_table import Pieces
from raddle.runtime.delivery import Part, delivery_of
from raddle.runtime.function_writer import Of
from raddle.runtime.region_assembly import gather, overlapping


class Messages:
    """Makes the sends, receives and waits of one device."""

    def __init__(self, program: Program, device: int, pieces: Pieces) -> None:
        self.program, self.device, self.pieces = program, device, pieces
        self._divided = is_divided(program)
        self._answers = Acknowledgements(program, device)
        self._answered: dict[tuple[int, int], list[int]] = {}  # sends, by instruction and peer
        self._waiting: dict[int, list[Receive]] = {}  # by instruction
        self._sends = self._receives = 0  # so far

    def move(self, number: int, move: Move, tags: Sequence[int]) -> Iterable[Send | Receive]:
        """What an instruction of this number gives this device to send and to expect."""
        for message, tag in zip(move.messages, tags, strict=True):
            if message.source == self.device:
                send = self._send(move, message, tag)
                answer = self._answers.find(number, message.target)
                if answer is not None:
                    self._answered.setdefault(answer, []).append(send.number)
                yield send
        for message, tag in zip(move.messages, tags, strict=True):
            if message.target == self.device:
                receive = self._receive(move, message, tag)
                self._waiting.setdefault(number, []).append(receive)
                yield receive

    def arrive(self, number: int) -> list[AwaitMessage]:
        """Waits for what an instruction brings, if nobody has before."""
        return [
            AwaitMessage(receive, self._answered.get((number, receive.peer), []))
            for receive in self._waiting.pop(number, [])
        ]

    def unawaited(self) -> list[int]:
        """Instructions whose messages nobody has waited for."""
        return list(self._waiting)

    def _things(self, move: Move, message: Message) -> list[Of]:
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
        delivery, parts = delivery_of(move.kind, divided=self._divided), []
        for box in message.boxes:
            for of in self._things(move, message):
                held = delivery.packed(self.pieces, move.key, of)
                found = overlapping([b for b, _ in held], box)
                make = gather([held[i][0] for i in found], box)
                parts.append(Part(box.shape, tuple(held[i][1] for i in found), make))
        label = f"{move.kind} of {move.value} to {message.target}"
        dtype = self.program.graph.values[move.value].dtype
        self._sends += 1
        return Send(
            message.target, tag, move.kind, label, parts, dtype, move.key, delivery, self._sends - 1
        )

    def _receive(self, move: Move, message: Message, tag: int) -> Receive:
        delivery = delivery_of(move.kind, divided=self._divided)
        parts = [
            delivery.landing(self.pieces, move.key, of, box)
            for box in message.boxes
            for of in self._things(move, message)
        ]
        label = f"{move.kind} of {move.value} from {message.source}"
        dtype = self.program.graph.values[move.value].dtype
        elements = message.elements * tensors_in_message(self.program, move, message)
        self._receives += 1
        return Receive(
            message.source, tag, move.kind, label, parts, dtype, elements, move.value, move.key,
            delivery, self._receives - 1,
        )  # fmt: skip
