"""When a rank can tell that what it sent has arrived, without asking: something came back that shows it.

A peer that sends us something after it has used our message has received it. So buffers of messages are
given back soon, no send is waited for that might not be done, and nobody polls.
"""

from __future__ import annotations

from bisect import bisect_right

from raddle.plans.pipelining import is_asynchronous, is_greedy
from raddle.program.program import Move, Program


class Answers:
    """Of each message of a device to another, the first message that shows that it has arrived."""

    def __init__(self, program: Program, device: int) -> None:
        self.step_of = [i.key.step for i in program.instructions]
        all_steps = is_asynchronous(program.plan)
        self.any_order = is_greedy(program.plan)  # of steps among each other
        self.used: dict[
            tuple[int, int], int
        ] = {}  # by move and target, the first that waits for it
        self.coming: dict[int, list[int]] = {}  # by source, the moves that bring us something
        moves = set()
        for number, i in enumerate(program.instructions):
            if i.key.step and not all_steps:
                break
            for dep in i.deps:
                if dep in moves:
                    for d in i.devices:
                        self.used.setdefault((dep, d), number)
            if isinstance(i, Move):
                moves.add(number)
                for m in i.messages:
                    if m.target == device and number not in self.coming.get(m.source, [])[-1:]:
                        self.coming.setdefault(m.source, []).append(number)

    def first(self, move: int, target: int) -> tuple[int, int] | None:
        """The move and the peer that answer a message, if any do in this step."""
        used = self.used.get((move, target))
        coming = self.coming.get(target, [])
        if used is None:
            return None
        for answer in coming[bisect_right(coming, used) :]:
            if not self.any_order or self.step_of[answer] == self.step_of[move]:
                return answer, target
        return None
