"""When a rank can tell that what it sent has arrived, without asking: something came back that shows it.

A peer that sends us something after it has used our message has received it. So buffers of messages are
given back soon, no send is waited for that might not be done, and nobody polls.
"""

from __future__ import annotations

from bisect import bisect_right

from raddle.plans.pipelining import is_asynchronous, is_greedy
from raddle.program.program import Move, Program


class Acknowledgements:
    """Of each message of a device to another, the first message that shows that it has arrived."""

    def __init__(self, program: Program, device: int) -> None:
        self.step_of = [i.key.step for i in program.instructions]
        all_steps = is_asynchronous(program.plan)
        self.steps_unordered = is_greedy(program.plan)  # of steps among each other
        self.first_use: dict[
            tuple[int, int], int
        ] = {}  # by move and target, the first that waits for it
        self.incoming: dict[int, list[int]] = {}  # by source, the moves that bring us something
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
        """The move and the peer that answer a message, if any do in this step."""
        first_use = self.first_use.get((move, target))
        incoming = self.incoming.get(target, [])
        if first_use is None:
            return None
        for reply in incoming[bisect_right(incoming, first_use) :]:
            if not self.steps_unordered or self.step_of[reply] == self.step_of[move]:
                return reply, target
        return None
