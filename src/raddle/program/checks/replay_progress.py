"""How far the replay of a micro-batch has come, and whether instructions wait for what they use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from raddle.program.checks.refuse import check_waits_for, refuse
from raddle.program.program import Move, Program


class Progress:
    """What is done of a micro-batch's instructions; `at` is the place of the one that is looked at."""

    def __init__(self, program: Program, numbers: Sequence[int]) -> None:
        self.program, self.numbers, self.at = program, numbers, 0
        self.done: dict[tuple[str, str], int] = {}  # operator and phase, or value and message

    def refuse(self, reason: str) -> NoReturn:
        refuse(self.program, self.numbers[self.at], reason)

    def finish(self, name: str, phase: str) -> None:
        if (name, phase) in self.done:
            self.refuse("it is there twice.")
        self.done[name, phase] = self.at

    def after(self, name: str, phase: str, reason: str) -> None:
        """What this instruction uses has to be there, and waited for where it crosses devices."""
        if (name, phase) not in self.done:
            self.refuse(reason)
        before = self.done[name, phase]
        if self._sends(before) or self._sends(self.at):
            check_waits_for(self.program, self.numbers[self.at], [self.numbers[before]])

    def _sends(self, at: int) -> bool:
        """Whether links do it: what a device computes comes in order without being waited for."""
        return isinstance(self.program.instructions[self.numbers[at]], Move)

    def arrived(self, name: str, what: str) -> None:
        """Where messages brought something, they have to be waited for."""
        parts = [w for n, w in self.done if n == name and (w == what or w.startswith(f"{what} "))]
        for part in parts:
            self.after(name, part, "")

    def after_forward(self, op: str, phase: str) -> None:
        """A backward comes after its forward; that it waits follows from the gradients'."""
        if (op, phase) not in self.done:
            self.refuse("it comes before its forward.")
