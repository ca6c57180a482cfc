"""Checks that a program enforces the waits of its schedule, such as `F1.0 after B0.1`.

Every instruction of the waiting action has to come after the end of the awaited action, on all devices of
both. The check does not look for signals: it follows what each device can know. A device knows what it has
computed itself, and what the sender of a message knew, if it has waited for the message.

F1.0 is an action: phase F, micro-batch 1, stage 0. A signal is a message without data, which lowering adds
for such a wait (signals.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from raddle.errors import InputError
from raddle.plans.pipelining import is_asynchronous, schedule_of, stage_of
from raddle.plans.schedule import Action, Schedule, all_actions_in_order
from raddle.program.describe import describe
from raddle.program.program import Merge, Move, Program, Run
from raddle.program.signals import ActionEnds

# By device, the devices on which it knows that the awaited action has ended.
EndedOn = Mapping[int, frozenset[int]]
NONE_ENDED: frozenset[int] = frozenset()


def check_waits(program: Program) -> None:
    """Raises InputError if an action can start before an action that it waits for has ended."""
    if not program.plan.stages:
        return
    schedule = schedule_of(program.plan)
    for actions in _runs_by_action(program, schedule) if schedule.waits else ():
        ends = ActionEnds(schedule)  # by action, the instructions that end it (signals.py)
        for action in all_actions_in_order(schedule):
            ends.add(action, actions.get(action, ()))
        for waiting_action, awaited_action in dict.fromkeys(schedule.waits):
            _check_wait(
                program,
                waiting_action,
                awaited_action,
                actions.get(waiting_action, ()),
                ends.instructions[awaited_action],
            )


def _runs_by_action(program: Program, schedule: Schedule) -> Iterator[dict[Action, list[int]]]:
    """Yields, for each step, the numbers of runs and merges by action.

    If steps overlap, it yields once for all steps, and micro-batches are numbered through all steps.
    """
    stages, overlap = stage_of(program.plan), is_asynchronous(program.plan)
    runs_by_step: dict[int, dict[Action, list[int]]] = {}
    for number, i in enumerate(program.instructions):
        if isinstance(i, Run | Merge):
            step, micro_batch = i.key.step, i.key.micro_batch
            if overlap:
                step, micro_batch = 0, step * program.plan.microbatches + micro_batch
            action = Action(phase_in(schedule, i.phase), stages[i.op], micro_batch)
            runs_by_step.setdefault(step, {}).setdefault(action, []).append(number)
    yield from runs_by_step.values()


def phase_in(schedule: Schedule, phase: str) -> str:
    """Returns the phase of the action of a run: R belongs to B; so does W, unless the schedule has W."""
    return phase if phase == "F" or (phase == "W" and schedule.split) else "B"


def _check_wait(
    program: Program,
    waiting_action: Action,
    awaited_action: Action,
    waiting: Collection[int],
    ends: Collection[int],
) -> None:
    """Checks one wait. waiting: instructions of the waiting action; ends: those that end the awaited."""
    if not waiting or not ends:
        return
    waiting = set(waiting)
    # By device of the awaited action, the last of its instructions there.
    last = {d: n for n in sorted(ends) for d in program.instructions[n].devices}
    all_devices = frozenset(last)
    ended: dict[int, frozenset[int]] = {}  # what each device knows at this point of the program
    computed: dict[int, EndedOn] = {}  # by run or merge, what its devices know when it has ended
    received: dict[int, EndedOn] = {}  # by move, what its receivers know after waiting for it
    for number in range(min(*ends, *waiting), max(waiting) + 1):
        i = program.instructions[number]
        if isinstance(i, Move):
            received[number] = _ends_sent(i, computed)
        elif isinstance(i, Run | Merge):
            for d in i.devices:
                received_ends = (
                    received[dep].get(d, NONE_ENDED) for dep in i.deps if dep in received
                )
                ended[d] = ended.get(d, NONE_ENDED).union(*received_ends)
                if number in waiting and ended[d] != all_devices:
                    _refuse_wait(
                        program,
                        waiting_action,
                        awaited_action,
                        number,
                        d,
                        min(all_devices - ended[d]),
                    )
                if last.get(d) == number:
                    ended[d] |= {d}
            computed[number] = {d: ended[d] for d in i.devices}


def _ends_sent(move: Move, computed: Mapping[int, EndedOn]) -> EndedOn:
    """Returns, for each receiver of a move, the ends that its senders knew when the move could start."""
    ends_by_target: dict[int, frozenset[int]] = {}
    for m in move.messages:
        source_ends = (
            computed[dep].get(m.source, NONE_ENDED) for dep in move.deps if dep in computed
        )
        ends_by_target[m.target] = ends_by_target.get(m.target, NONE_ENDED).union(*source_ends)
    return ends_by_target


def _refuse_wait(
    program: Program,
    waiting_action: Action,
    awaited_action: Action,
    number: int,
    device: int,
    awaited_device: int,
) -> None:
    """Raises InputError: instruction `number` on `device` may start before the awaited action has ended.

    awaited_device: a device on which that action may not have ended.
    """
    i = program.instructions[number]
    raise InputError(
        f"{describe(number, i)} on device {device} does not wait for device {awaited_device}, which takes "
        f"part in {awaited_action}, though the schedule has {waiting_action} after {awaited_action}."
    )
