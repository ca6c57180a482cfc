"""Checks that gradients are sent after the whole backward, where the sync kind says so (option `after`).

Otherwise ranks would send gradients during the backward, or the simulation, which only follows `deps`,
would start to send them earlier than the ranks do.
"""

from __future__ import annotations

from raddle.program.checks.refuse import refuse
from raddle.program.program import Instruction, Merge, Move, Program, Reduce, Run


def check_after_backward(program: Program) -> None:
    """Checks that pushes and all-reduces wait for the last Run or Merge of their senders in their step."""
    if not program.plan.parsed_sync.after_backward:
        return
    last: dict[tuple[int, int], int] = {}  # by step and device, its last Run or Merge
    for number, i in enumerate(program.instructions):
        if isinstance(i, Run | Merge):
            last.update(((i.key.step, d), number) for d in i.devices)
    for number, i in enumerate(program.instructions):
        if isinstance(i, Reduce) and program.sums_replicas(i):
            continue  # it waits for a reduce-scatter
        for d in _senders_of_gradients(i):
            end = last.get((i.key.step, d))
            if end is not None and end not in i.deps:
                refuse(
                    program,
                    number,
                    f"it does not wait for the whole backward of device {d}, as sync "
                    f"'{program.plan.sync}' asks.",
                )


def _senders_of_gradients(i: Instruction) -> set[int]:
    """Returns the devices whose gradients an instruction sends or sums; empty for any other instruction."""
    if isinstance(i, Reduce):
        return set(i.devices)
    if isinstance(i, Move) and i.kind.is_push:
        return {m.source for m in i.messages}
    return set()
