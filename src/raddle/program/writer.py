"""Where the instructions of a program are written, one after the other."""

from __future__ import annotations

from collections.abc import Iterable

from raddle.program.collective import recognise
from raddle.program.holding import in_turn
from raddle.program.messages import MessageKind
from raddle.program.program import Instruction, Key, Merge, Message, Move, Run


class Writer:
    """Instructions in their order; `latest`, if asked for, is what each device computed last."""

    def __init__(self, devices: int, *, latest: bool = False) -> None:
        self.devices, self._latest = devices, latest
        self.out: list[Instruction] = []
        self.latest: dict[int, list[int]] = {}

    def emit(self, instruction: Instruction) -> int:
        """The number of the instruction."""
        self.out.append(instruction)
        if self._latest and isinstance(instruction, Run | Merge):
            self.latest.update((d, [len(self.out) - 1]) for d in instruction.devices)
        return len(self.out) - 1

    def move(
        self, value: str, what: MessageKind, key: Key, messages: Iterable[Message],
        deps: Iterable[int],
    ) -> int:  # fmt: skip
        ordered = in_turn(messages, self.devices)
        return self.emit(Move(value, what, key, ordered, recognise(ordered), in_order(deps)))


def in_order(deps: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(deps)))
