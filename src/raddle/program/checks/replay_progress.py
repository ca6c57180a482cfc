"""Keeps track of the replay of a micro-batch: what is done, and whether instructions wait for it.

replay.py goes through the instructions of a micro-batch; forward_replay.py and backward_replay.py note here
what each of them does, and ask what was done before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from raddle.program.checks.refuse import check_waits_for, refuse
from raddle.program.program import Move, Program


class ReplayProgress:
    """The progress of a replay through the instructions of a micro-batch.

    numbers: their numbers in the program. position: index into `numbers` of the present instruction.
    """

    def __init__(self, program: Program, numbers: Sequence[int]) -> None:
        self.program, self.numbers, self.position = program, numbers, 0
        # Positions of what is done, by operator and phase ("F", "merge B") or value and message kind
        # ("activation", "gradient"; a second gradient of the value is "gradient 1").
        # All of these are called phases below.
        self.done: dict[tuple[str, str], int] = {}

    def refuse(self, reason: str) -> NoReturn:
        """Raises InputError about the present instruction."""
        refuse(self.program, self.numbers[self.position], reason)

    def mark_done(self, name: str, phase: str) -> None:
        """Notes that the present instruction does `phase` of `name`; this may be done once."""
        if (name, phase) in self.done:
            self.refuse("it is there twice.")
        self.done[name, phase] = self.position

    def require_done(self, name: str, phase: str, reason: str) -> None:
        """Refuses the present instruction for `reason` unless `phase` of `name` was done before.

        If the instruction that did it, or the present one, is a move, the present one also has to name the
        other in its `deps`.
        """
        if (name, phase) not in self.done:
            self.refuse(reason)
        before = self.done[name, phase]
        if self._is_move(before) or self._is_move(self.position):
            check_waits_for(self.program, self.numbers[self.position], [self.numbers[before]])

    def _is_move(self, position: int) -> bool:
        """Returns whether an instruction is a move. Computations of a device run in order, moves do not."""
        return isinstance(self.program.instructions[self.numbers[position]], Move)

    def require_messages(self, name: str, what: str) -> None:
        """Checks that the present instruction waits for all moves of a value that are done.

        what: their message kind.
        """
        # The phases of these moves, such as "gradient" and "gradient 1".
        phases = [
            phase
            for done_name, phase in self.done
            if done_name == name and (phase == what or phase.startswith(f"{what} "))
        ]
        for phase in phases:
            self.require_done(name, phase, "")

    def require_forward(self, op: str, phase: str) -> None:
        """Checks that a backward comes after its forward. Its `deps` need not name the forward."""
        if (op, phase) not in self.done:
            self.refuse("it comes before its forward.")
