"""Checks ZeRO-3: a device that uses rows of a parameter is their server, or waits for a pull of them.

The server of rows is the device whose shard they are. A pull is a move that brings them to other devices.
Pulled rows are released after the last run that waits for the pull and reads them. A slice is a
ParameterRegion: rows of a parameter, their holders and their server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from raddle.graph.box import Box, subtract
from raddle.plans.regions import operand_regions
from raddle.program.checks.refuse import refuse
from raddle.program.describe import describe
from raddle.program.program import Instruction, Move, ParameterRegion, Program, Run


class PullUse(NamedTuple):
    """The runs (instruction numbers) that use a pull."""

    waiting: list[int]  # runs that wait for the pull
    reading: list[int]  # those among them that read its parameter


def uses_of_pulls(program: Program) -> dict[int, PullUse]:
    """By pull (instruction number), the runs that use it; empty unless the plan is ZeRO-3."""
    uses: dict[int, PullUse] = {}
    if not program.plan.parsed_sync.zero3 or not program.slices:
        return uses
    reads = {op.name: set(op.inputs) for op in program.graph.ops}
    for number, i in enumerate(program.instructions):
        if isinstance(i, Move) and i.kind.is_pull:
            uses[number] = PullUse([], [])
        elif isinstance(i, Run):
            for dep in i.deps:
                pull = program.instructions[dep]
                if dep in uses and isinstance(pull, Move):
                    uses[dep].waiting.append(number)
                    if pull.value in reads[i.op]:
                        uses[dep].reading.append(number)
    return uses


def check_pulls(
    program: Program, name: str, events: Sequence[tuple[int, Instruction]],
    last_updates: Mapping[ParameterRegion, int], checked: set[object],
) -> set[int]:  # fmt: skip
    """Checks the uses of a parameter in a step; returns the numbers of its pulls.

    events: the instructions about it. last_updates: by slice, the update before this step. checked: what
    was checked in earlier calls, so that equal runs are checked once; it grows.
    """
    pulls = {n: i for n, i in events if isinstance(i, Move) and i.kind.is_pull}
    used: set[int] = set()
    boxes_by_server: dict[int, list[Box]] = {}
    for slice_ in program.slices[name]:
        boxes_by_server.setdefault(slice_.server, []).append(slice_.box)
    for number, pull in pulls.items():
        for m in pull.messages:
            for box in m.boxes:
                if subtract(box, boxes_by_server.get(m.source, [])):
                    refuse(program, number, f"device {m.source} is not the server of {box}.")
            for slice_, update in last_updates.items():
                not_awaited = slice_.server == m.source and update not in pull.deps
                if not_awaited and any(not (box & slice_.box).empty for box in m.boxes):
                    what = describe(update, program.instructions[update])
                    refuse(program, number, f"it does not wait for {what}.")
    for number, run in events:
        if isinstance(run, Run):
            run_pulls = [d for d in run.deps if d in pulls]
            used.update(run_pulls)
            run_signature = (run.op, run.key.variant, tuple(pulls[n].messages for n in run_pulls))
            if run_signature not in checked:
                _check_use(
                    program, name, number, run, boxes_by_server, [pulls[n] for n in run_pulls]
                )
                checked.add(run_signature)
    for number in pulls.keys() - used:
        refuse(program, number, "nobody waits for it.")
    return set(pulls)


def _check_use(
    program: Program, name: str, number: int, run: Run, boxes_by_server: Mapping[int, Sequence[Box]],
    pulls: Iterable[Move],
) -> None:  # fmt: skip
    """Every device of a run holds or has pulled what its tiles read."""
    boxes_held = {device: list(boxes) for device, boxes in boxes_by_server.items()}
    for m in (m for pull in pulls for m in pull.messages):
        boxes_held.setdefault(m.target, []).extend(m.boxes)
    variant = program.variant(run.key)
    op = variant.ops[run.op]
    for operand in (k for k, i in enumerate(op.inputs) if i == name):
        for device, region in operand_regions(op, operand, variant.tiles[run.op]):
            missing = [] if region is None else subtract(region, boxes_held.get(device, []))
            if missing:
                refuse(
                    program, number,
                    f"device {device} has no {missing[0]} of '{name}', which is sharded: it waits for no "
                    "pull of that.",
                )  # fmt: skip
