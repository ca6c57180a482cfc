"""When a rank can tell that what it sent has arrived, without asking: something came back that shows it.

A peer that sends us something after it has used our message has received it. So buffers of messages are
given back soon, no send is waited for that might not be done, and nobody polls.
"""

from __future__ import annotations

from bisect import bisect_right

from raddle.program.program import Move, Program


class Answers:
    """Of each message of a device to another, the first message that shows that it has arrived."""

    def __init__(self, program: Program, device: int, *, all_steps: bool) -> None:
        self.device = device
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
        at = bisect_right(coming, used)
        return (coming[at], target) if at < len(coming) else None
