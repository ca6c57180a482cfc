"""Collects the instructions of a program, in order. An instruction's place in the list is its number."""

from __future__ import annotations

from collections.abc import Iterable

from raddle.program.collective import recognise_collective
from raddle.program.message_kind import MessageKind
from raddle.program.program import Instruction, Key, Message, Move
from raddle.program.value_holders import in_sending_order


class InstructionWriter:
    """A growing list of instructions. devices: how many the plan has."""

    def __init__(self, devices: int) -> None:
        self.devices = devices
        self.instructions: list[Instruction] = []

    def emit(self, instruction: Instruction) -> int:
        """Appends an instruction, and returns its number."""
        self.instructions.append(instruction)
        return len(self.instructions) - 1

    def emit_move(
        self, value: str, kind: MessageKind, key: Key, messages: Iterable[Message],
        deps: Iterable[int],
    ) -> int:  # fmt: skip
        """Appends a move with its messages in sending order (value_holders.py); returns its number."""
        ordered = in_sending_order(messages, self.devices)
        return self.emit(
            Move(value, kind, key, ordered, recognise_collective(ordered), sorted_deps(deps))
        )


def sorted_deps(deps: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(deps)))
