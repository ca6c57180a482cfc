"""The schedule of a pipeline: which worker runs which stage of which micro-batch, in which order.

A schedule has one row of actions for each worker. A worker runs its row in order; an action also waits for
the actions that it depends on:

    F(s, m) after F(s-1, m)        B(s, m) after F(s, m) and B(s+1, m)        W(s, m) after B(s, m)

F: forward, B: backward, W: gradients of parameters. Times are not part of a schedule: `time_slots` computes
them for given durations, and `draw_schedule` draws the schedule with all durations 1:

    F0 F1 .. B0 .. B1       worker 0; F1: forward of micro-batch 1, ..: idle
    .. F0 B0 F1 B1 ..       worker 1
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from raddle.errors import InputError, quote

# s: stage, m: micro-batch, w: worker

Time: TypeAlias = int | Fraction

PHASES = ("F", "B", "W")
# An action as text: phase, micro-batch and, after a point, the stage.
TOKEN = re.compile(r"([FBW])([0-9]{1,9})(?:\.([0-9]{1,9}))?")


class Action(NamedTuple):
    """One phase of one micro-batch on one stage; as text F0.1: phase F, micro-batch 0, stage 1."""

    phase: str  # F: forward, B: backward, W: gradients of parameters, if the backward is split
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.phase}{self.micro_batch}.{self.stage}"


@dataclass(frozen=True)
class Schedule:
    """The rows of all workers. Without W actions, B computes all gradients."""

    rows: tuple[tuple[Action, ...], ...]  # by worker
    waits: tuple[tuple[Action, Action], ...] = ()  # the first starts after the end of the second

    @cached_property
    def stages(self) -> int:
        return 1 + max((action.stage for row in self.rows for action in row), default=-1)

    @cached_property
    def microbatches(self) -> int:
        return 1 + max((action.micro_batch for row in self.rows for action in row), default=-1)

    @cached_property
    def split(self) -> bool:
        """Whether the backward is split: the schedule has W actions."""
        return any(action.phase == "W" for row in self.rows for action in row)

    @property
    def last_phase(self) -> str:
        """The last phase of a stage of a micro-batch: after it, nothing has to stay in memory."""
        return "W" if self.split else "B"

    def worker(self, stage: int, micro_batch: int) -> int:
        """Returns the worker that runs a stage of a micro-batch, in all phases."""
        return self._workers[stage, micro_batch]

    @cached_property
    def _workers(self) -> dict[tuple[int, int], int]:
        return {(a.stage, a.micro_batch): w for w, row in enumerate(self.rows) for a in row}

    @cached_property
    def _one_stage_per_worker(self) -> bool:
        """Whether every worker w runs only stage w, so that F0 can be written for F0.w."""
        return all(action.stage == w for w, row in enumerate(self.rows) for action in row)


def all_actions_in_order(schedule: Schedule) -> list[Action]:
    """Returns all actions in an order that rows and dependencies allow.

    They are sorted by their start, if all durations are 1, and then by worker.
    """
    times = enumerate(time_slots(schedule))
    starts = [(start, w, action) for w, line in times for start, _, action in line]
    return [action for _, _, action in sorted(starts)]


def time_slots(
    schedule: Schedule, forward: Time = 1, backward: Time = 1, weights: Time = 1
) -> list[list[tuple[Time, Time, Action]]]:
    """Returns the time slots of each worker: (start, end, action), as early as rows and dependencies allow.

    forward, backward, weights: the durations of F, B and W, in any unit. Raises InputError if the schedule
    deadlocks.
    """
    check_schedule(schedule)
    duration = {"F": forward, "B": backward, "W": weights}
    dependencies_of = dependencies(schedule)
    ends: dict[Action, Time] = {}
    times: list[list[tuple[Time, Time, Action]]] = [[] for _ in schedule.rows]
    waiting: dict[Action, list[int]] = {}  # by action, the workers that wait for it
    ready = deque(range(len(schedule.rows)))  # workers whose next action may be able to start
    while ready:
        w = ready.popleft()
        row, slots_of_worker = schedule.rows[w], times[w]
        while len(slots_of_worker) < len(row):
            action = row[len(slots_of_worker)]
            missing = next((need for need in dependencies_of[action] if need not in ends), None)
            if missing is not None:
                waiting.setdefault(missing, []).append(w)
                break
            free_at = slots_of_worker[-1][1] if slots_of_worker else 0
            start = max([free_at, *(ends[need] for need in dependencies_of[action])])
            ends[action] = start + duration[action.phase]
            slots_of_worker.append((start, ends[action], action))
            ready.extend(waiting.pop(action, ()))
    if waiting:
        raise InputError(
            _deadlock_message(schedule, {w: need for need, ws in waiting.items() for w in ws}, ends)
        )
    return times


def draw_schedule(schedule: Schedule) -> list[str]:
    """Draws the schedule: a line for each worker, every action one unit of time, dots where it is idle."""
    times = time_slots(schedule)
    end = max(line[-1][1] for line in times if line)
    width = max(len(_token(schedule, action)) for row in schedule.rows for action in row)
    picture = []
    for line in times:
        cells = ["." * width] * int(end)
        for start, _, action in line:
            cells[int(start)] = _token(schedule, action).ljust(width)
        picture.append(" ".join(cells).rstrip())
    return picture


def bubble(
    schedule: Schedule, forward: Time = 1, backward: Time = 1, weights: Time = 1
) -> Fraction:
    """Returns the fraction of the time, from the first start to the last end, in which workers are idle."""
    times = time_slots(schedule, forward, backward, weights)
    makespan = max(line[-1][1] for line in times if line)
    busy = sum(end - start for line in times for start, end, _ in line)
    return 1 - Fraction(busy) / (len(times) * makespan)


def peak_alive(schedule: Schedule) -> list[int]:
    """Returns the most micro-batches alive at a time on each worker, counted on each of its stages.

    Alive: F has run, and the last phase (W if the backward is split, else B) has not.
    """
    peaks = []
    for row in schedule.rows:
        alive = peak = 0
        for action in row:
            alive += (action.phase == "F") - (action.phase == schedule.last_phase)
            peak = max(peak, alive)
        peaks.append(peak)
    return peaks


def schedule_to_text(schedule: Schedule) -> str:
    """Writes a schedule: a line for each worker, then a line for each wait."""
    lines = [" ".join(_token(schedule, action) for action in row) or "." for row in schedule.rows]
    return "\n".join([*lines, *wait_lines(schedule)])


def wait_lines(schedule: Schedule) -> list[str]:
    """Returns the waits of a schedule as text, such as F1.0 after B0.0."""
    return [f"{first} after {second}" for first, second in schedule.waits]


def schedule_from_text(text: str) -> Schedule:
    """Reads what `schedule_to_text`, `draw_schedule` or `raddle schedule` wrote.

    A line is a row such as `F0 .. B0` (`F0.2` for stage 2), or a wait such as `F1.0 after B0.0`. A row may
    begin with the number of its worker, and # begins a comment.
    """
    lines: list[tuple[Action, ...]] = []
    waits: list[tuple[Action, Action]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if words and words[0].isdecimal():
            words = words[1:]
        if "after" in words:
            waits.append(_read_wait(words, number))
        elif words:
            tokens = [word for word in words if word.strip(".")]
            lines.append(tuple(_read_action(word, len(lines), number) for word in tokens))
    if not any(lines):
        raise InputError(
            "the schedule has no actions: write one line per worker, such as F0 F1 B0 B1."
        )
    return Schedule(tuple(lines), tuple(waits))


def check_schedule(schedule: Schedule) -> None:
    """Raises InputError unless every action is there once, and all phases of a stage are in one row.

    In different micro-batches, a stage may be in different rows.
    """
    counts = Counter(action for row in schedule.rows for action in row)
    if not counts:
        raise InputError(
            "the schedule has no actions: give every worker a row, such as F0 F1 B0 B1."
        )
    for w, row in enumerate(schedule.rows):
        for action in row:
            _check_action(schedule, action, w, counts[action])
    if len(counts) < schedule.stages * schedule.microbatches * len(_phases(schedule)):
        missing = next(action for action in _all_actions(schedule) if action not in counts)
        raise InputError(
            f"{missing} is missing: the schedule has {schedule.stages} stages and "
            f"{schedule.microbatches} micro-batches, so add {missing} to a row."
        )
    for action in (action for pair in schedule.waits for action in pair):
        if action not in counts:
            raise InputError(f"a wait names {action}, which no row has: remove the wait.")


def _check_action(schedule: Schedule, action: Action, w: int, count: int) -> None:
    """Raises InputError if an action of worker w is wrong. count: how often the schedule has it."""
    name = str(action)
    if action.phase not in PHASES or action.stage < 0 or action.micro_batch < 0:
        raise InputError(
            f"worker {w} has {name}, which is no action: use F, B or W and numbers from 0."
        )
    other_worker = schedule.worker(action.stage, action.micro_batch)
    if other_worker != w:
        raise InputError(
            f"stage {action.stage} of micro-batch {action.micro_batch} is in the rows of workers {w} "
            f"and {other_worker}: keep all its phases in one row."
        )
    if count > 1:
        raise InputError(f"worker {w} has {name} {count} times: keep one of them.")


def _phases(schedule: Schedule) -> tuple[str, ...]:
    return PHASES if schedule.split else PHASES[:2]


def _all_actions(schedule: Schedule) -> Iterator[Action]:
    for m in range(schedule.microbatches):
        for s in range(schedule.stages):
            for phase in _phases(schedule):
                yield Action(phase, s, m)


def dependencies(schedule: Schedule) -> dict[Action, list[Action]]:
    """Returns, for each action, those that it depends on or waits for, without the order of its row."""
    needs: dict[Action, list[Action]] = {action: [] for row in schedule.rows for action in row}
    for (phase, s, m), need in needs.items():
        if phase == "F" and s > 0:
            need.append(Action("F", s - 1, m))
        if phase == "B":
            need.append(Action("F", s, m))
            if s + 1 < schedule.stages:
                need.append(Action("B", s + 1, m))
        if phase == "W":
            need.append(Action("B", s, m))
    for first, second in schedule.waits:
        needs[first].append(second)
    return needs


def predecessors(schedule: Schedule) -> dict[Action, list[Action]]:
    """Returns, for each action, those that it depends on or waits for, and the one before it in its row."""
    predecessors = dependencies(schedule)
    for row in schedule.rows:
        for action, following in pairwise(row):
            predecessors[following].append(action)
    return predecessors


def _deadlock_message(
    schedule: Schedule, stuck: dict[int, Action], ends: dict[Action, Time]
) -> str:
    """Describes a cycle of workers that wait for each other.

    stuck: by worker, the action of another one that it waits for. ends: the end of each action that could
    run.
    """
    path: list[int] = []  # each worker waits for the next one
    worker = min(stuck)
    while worker not in path:
        path.append(worker)
        worker = schedule.worker(stuck[worker].stage, stuck[worker].micro_batch)
    sentences: list[str] = []
    for w in path[path.index(worker) :]:
        blocked = next(action for action in schedule.rows[w] if action not in ends)
        need = _token(schedule, stuck[w])
        needed_worker = schedule.worker(stuck[w].stage, stuck[w].micro_batch)
        what = (
            f"{need} of worker {needed_worker}"
            if needed_worker != w
            else f"its own {need}, which comes later"
        )
        who = "which" if sentences else f"worker {w}"
        sentences.append(f"{who} cannot start {_token(schedule, blocked)} before {what}")
    return ", ".join(sentences) + ": change the order of a row."


def _token(schedule: Schedule, action: Action) -> str:
    """Returns the text of an action: F0.1, or F0 if each worker has one stage."""
    return f"{action.phase}{action.micro_batch}" if schedule._one_stage_per_worker else str(action)


def _read_action(word: str, w: int | None, number: int) -> Action:
    """Reads F0.1, or F0 in the row of worker w (None: in a wait). number: of the line, for errors."""
    match = TOKEN.fullmatch(word)
    if match is None or (w is None and match[3] is None):
        hint = "F0.1" if w is None else "F0, B0 or W0, or F0.1"
        raise InputError(
            f"line {number}: {quote(word)} is no action: write {hint} (micro-batch 0 of stage 1)."
        )
    stage = match[3] if match[3] is not None else w
    assert stage is not None
    return Action(match[1], int(stage), int(match[2]))


def _read_wait(words: list[str], number: int) -> tuple[Action, Action]:
    if len(words) != 3 or words[1] != "after":
        line = " ".join(words)
        raise InputError(
            f"line {number}: cannot read {quote(line)}: write a wait as F1.0 after B0.0."
        )
    return _read_action(words[0], None, number), _read_action(words[2], None, number)
