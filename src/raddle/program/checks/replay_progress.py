"""How far the replay of a micro-batch has come, and whether instructions wait for what they use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from raddle.program.checks.refuse import check_waits_for, refuse
from raddle.program.program import Move, Program


class ReplayProgress:
    """What is done of a micro-batch's instructions; `at` is the place of the one that is looked at."""

    def __init__(self, program: Program, numbers: Sequence[int]) -> None:
        self.program, self.numbers, self.position = program, numbers, 0
        self.done: dict[tuple[str, str], int] = {}  # operator and phase, or value and message

    def refuse(self, reason: str) -> NoReturn:
        refuse(self.program, self.numbers[self.position], reason)

    def mark_done(self, name: str, phase: str) -> None:
        if (name, phase) in self.done:
            self.refuse("it is there twice.")
        self.done[name, phase] = self.position

    def require_done(self, name: str, phase: str, reason: str) -> None:
        """What this instruction uses has to be there, and waited for where it crosses devices."""
        if (name, phase) not in self.done:
            self.refuse(reason)
        before = self.done[name, phase]
        if self._is_move(before) or self._is_move(self.position):
            check_waits_for(self.program, self.numbers[self.position], [self.numbers[before]])

    def _is_move(self, position: int) -> bool:
        """Whether links do it: what a device computes comes in order without being waited for."""
        return isinstance(self.program.instructions[self.numbers[position]], Move)

    def require_messages(self, name: str, what: str) -> None:
        """Where messages brought something, they have to be waited for."""
        parts = [w for n, w in self.done if n == name and (w == what or w.startswith(f"{what} "))]
        for part in parts:
            self.require_done(name, part, "")

    def require_forward(self, op: str, phase: str) -> None:
        """A backward comes after its forward; that it waits follows from the gradients'."""
        if (op, phase) not in self.done:
            self.refuse("it comes before its forward.")
