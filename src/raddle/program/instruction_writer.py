"""Collects the instructions of a program, in order. An instruction's place in the list is its number."""

from __future__ import annotations

from collections.abc import Iterable

from raddle.program.collective import recognise_collective
from raddle.program.message_kind import MessageKind
from raddle.program.program import Instruction, Key, Merge, Message, Move, Run
from raddle.program.value_holders import in_sending_order


class InstructionWriter:
    """A growing list of instructions.

    devices: how many the plan has. track_latest: keep in `latest`, by device, the number of its last Run or
    Merge. Where gradients are sent after the whole backward, each waits for the `latest` of its senders.
    """

    def __init__(self, devices: int, *, track_latest: bool = False) -> None:
        self.devices, self._track_latest = devices, track_latest
        self.instructions: list[Instruction] = []
        self.latest: dict[int, list[int]] = {}

    def emit(self, instruction: Instruction) -> int:
        """Appends an instruction, and returns its number."""
        self.instructions.append(instruction)
        if self._track_latest and isinstance(instruction, Run | Merge):
            self.latest.update((d, [len(self.instructions) - 1]) for d in instruction.devices)
        return len(self.instructions) - 1

    def emit_move(
        self, value: str, kind: MessageKind, key: Key, messages: Iterable[Message],
        deps: Iterable[int], bundled: tuple[str, ...] = (),
    ) -> int:  # fmt: skip
        """Appends a move with its messages in sending order (value_holders.py); returns its number.

        bundled: by box of each message, its parameter, if these are several.
        """
        ordered = in_sending_order(messages, self.devices)
        return self.emit(
            Move(
                value, kind, key, ordered, recognise_collective(ordered), sorted_deps(deps), bundled
            )
        )


def sorted_deps(deps: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(deps)))
