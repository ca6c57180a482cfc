"""Collects the instructions of a program, in order. An instruction's place in the list is its number."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from raddle.program.collective import recognise_collective
from raddle.program.message_kind import MessageKind
from raddle.program.program import Instruction, Key, Merge, Message, Move, Run
from raddle.program.value_holders import in_sending_order


class InstructionWriter:
    """A growing list of instructions.

    devices: how many the plan has. track_latest: whether `latest` has, for each device, the number of its
    last Run or Merge. It is needed where gradients are sent after the whole backward: each waits for the
    `latest` instruction of its senders. look: is called for every instruction, see `lower`.
    """

    def __init__(
        self, devices: int, *, track_latest: bool = False, look: Callable[[], None] = lambda: None
    ) -> None:
        self.devices, self._track_latest, self._look = devices, track_latest, look
        self.instructions: list[Instruction] = []
        self.latest: dict[int, list[int]] = {}  # by device, a list with one number

    def emit(self, instruction: Instruction) -> int:
        """Appends an instruction, and returns its number."""
        self._look()
        self.instructions.append(instruction)
        if self._track_latest and isinstance(instruction, Run | Merge):
            self.latest.update((d, [len(self.instructions) - 1]) for d in instruction.devices)
        return len(self.instructions) - 1

    def emit_move(
        self, value: str, kind: MessageKind, key: Key, messages: Iterable[Message],
        deps: Iterable[int], bundled: tuple[str, ...] = (),
    ) -> int:  # fmt: skip
        """Appends a move with its messages in sending order (value_holders.py); returns its number.

        deps: the numbers of the instructions that the move waits for. bundled: the parameter of each box of
        a message, if it has boxes of several parameters.
        """
        ordered = in_sending_order(messages, self.devices)
        return self.emit(
            Move(
                value, kind, key, ordered, recognise_collective(ordered), sorted_deps(deps), bundled
            )
        )


def sorted_deps(deps: Iterable[int]) -> tuple[int, ...]:
    """Returns the numbers of instructions to wait for, each once, in ascending order."""
    return tuple(sorted(set(deps)))
