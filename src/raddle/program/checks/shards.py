"""Checks sharded parameters (ZeRO): every use comes after a gather of the updated shards.

ZeRO-2 gathers a parameter once in a step, after its update, and every forward of the next step waits for
it. ZeRO-3 gathers it before each use: a run that reads it waits for a gather, which waits for the update of
the step before. Gathered parameters are released after the last run that waits for the gather and reads
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from raddle.program.checks.refuse import check_waits_for, refuse
from raddle.program.parameter_region import ParameterRegion
from raddle.program.program import Gather, Instruction, Program, Run


class GatherUse(NamedTuple):
    """The runs (instruction numbers) that use a gather."""

    waiting: list[int]  # runs that wait for the gather
    reading: dict[str, list[int]]  # by parameter: those among them that read it


def uses_of_gathers(program: Program) -> dict[int, GatherUse]:
    """Returns the runs that use each gather (instruction number); empty unless the plan is ZeRO-3."""
    uses: dict[int, GatherUse] = {}
    if not program.gathers_before_use:
        return uses
    reads = {op.name: set(op.inputs) for op in program.graph.ops}
    for number, i in enumerate(program.instructions):
        if isinstance(i, Gather):
            uses[number] = GatherUse([], {name: [] for name in i.parameters})
        elif isinstance(i, Run):
            for dep in i.deps:
                if dep in uses:
                    uses[dep].waiting.append(number)
                    for name in uses[dep].reading.keys() & reads[i.op]:
                        uses[dep].reading[name].append(number)
    return uses


def check_gathers(
    program: Program, name: str, regions: Iterable[ParameterRegion],
    events: Sequence[tuple[int, Instruction]], writers: Sequence[int], update: int,
) -> list[int]:  # fmt: skip
    """Checks the gathers of a parameter in a step; returns the instructions the next forward waits for.

    regions: of the parameter. events: the instructions about it. writers: the update of the step before,
    or the gather after it. update: the update of this step.
    """
    synced = tuple(region for region in regions if region.needs_sync)
    gathers = {n: i for n, i in events if isinstance(i, Gather)}
    for number, gather in gathers.items():
        gathered = dict(zip(gather.parameters, gather.regions, strict=True))[name]
        holders = {d for region in synced for d in region.devices}
        if gathered != synced or not holders <= set(gather.devices):
            refuse(program, number, f"it does not gather all regions of '{name}' on their holders.")
    if program.gathers_before_use:
        _check_uses(program, name, bool(synced), events, gathers, writers)
        return [update]
    if not synced:
        if gathers:
            refuse(program, min(gathers), f"no other device holds '{name}'.")
        return [update]
    if len(gathers) != 1:
        refuse(program, update, f"'{name}' is gathered {len(gathers)} times after it, not once.")
    (number,) = gathers
    check_waits_for(program, number, [update])
    return [number]


def _check_uses(
    program: Program, name: str, shared: bool, events: Sequence[tuple[int, Instruction]],
    gathers: dict[int, Gather], writers: Sequence[int],
) -> None:  # fmt: skip
    """Checks, for ZeRO-3, the runs that read the parameter: each has to wait for a gather of it.

    Each gather has to wait for the update of the step before (writers). shared: whether several devices
    hold a region of the parameter.
    """
    used: set[int] = set()
    for number in gathers:
        check_waits_for(program, number, writers)
    for number, i in events:
        if not isinstance(i, Run):
            continue
        awaited = gathers.keys() & set(i.deps)
        used |= awaited
        if shared and not awaited:
            refuse(
                program,
                number,
                f"it reads '{name}', which is sharded, and waits for no gather of it.",
            )
    for number in gathers.keys() - used:
        refuse(program, number, f"no run that reads '{name}' waits for it.")
