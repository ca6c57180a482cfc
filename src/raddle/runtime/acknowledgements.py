"""Finds, before the run, which received message proves that an earlier sent message has arrived.

Example: rank 0 sends A to rank 1. Rank 1 uses A and later sends B to rank 0. When B arrives, A must have
arrived, so rank 0 can free A's send buffer. No extra acknowledgement message and no polling are needed.

A Move is the instruction of a program that sends messages between devices (program/program.py). `deps` of
an instruction: the indices of the instructions that it waits for; `key.step`: the step that it belongs to.
Letters: i an instruction, m a message, d a device.
"""

from __future__ import annotations

from bisect import bisect_right

from raddle.plans.pipelining import is_asynchronous, is_greedy
from raddle.program.program import Move, Program


class Acknowledgements:
    """Finds the acknowledgements of the messages that one device sends.

    A message is identified by its Move's index in the program and by its target.
    """

    def __init__(self, program: Program, device: int) -> None:
        self.step_of = [i.key.step for i in program.instructions]  # by index of the instruction
        # Actions are built for the first step or, where steps overlap, for all steps.
        all_steps = is_asynchronous(program.plan)
        # A greedy schedule does not fix the order between steps, only the order within a step.
        self.steps_unordered = is_greedy(program.plan)
        # (index of a Move, target) -> index of the first instruction on the target that depends on it
        self.first_use: dict[tuple[int, int], int] = {}
        # Source -> indices of the Moves that bring this device a message from it, in order, each Move once
        self.incoming: dict[int, list[int]] = {}
        moves = set()
        for number, i in enumerate(program.instructions):
            if i.key.step and not all_steps:
                break
            for dep in i.deps:
                if dep in moves:
                    for d in i.devices:
                        self.first_use.setdefault((dep, d), number)
            if isinstance(i, Move):
                moves.add(number)
                for m in i.messages:
                    if m.target == device and number not in self.incoming.get(m.source, [])[-1:]:
                        self.incoming.setdefault(m.source, []).append(number)

    def find(self, move: int, target: int) -> tuple[int, int] | None:
        """Returns the message that acknowledges the message of `move` to `target`; None if there is none.

        It is identified by its Move and by its source, which is `target`.
        """
        first_use = self.first_use.get((move, target))
        incoming = self.incoming.get(target, [])
        if first_use is None:
            return None
        for reply in incoming[bisect_right(incoming, first_use) :]:
            if not self.steps_unordered or self.step_of[reply] == self.step_of[move]:
                return reply, target
        return None
