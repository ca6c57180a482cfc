"""Writes a timeline as Chrome trace events, for Perfetto (ui.perfetto.dev) and chrome://tracing.

The trace has a process for each device, with a lane of its computations and a counter of its memory, and a
process "links" with a lane for each link. A lane is a row of the viewer (a thread of the trace format). An
arrow leads from the computation before a message to the computation that waits for it. A message that
holds two links appears in both lanes, for as long as it holds them; its latency after that is not drawn.

An event is a dict with the keys of the trace format: "ph" is its type ("X" an interval, "C" a counter),
"pid" the process, "tid" the lane, "ts" the start and "dur" the duration, both in microseconds.
"""

# i: an instruction, d: a device

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from raddle.program.chrome_trace import COMPUTE, Event, flow_events, lane_names, write_events
from raddle.program.describe import PHASES
from raddle.program.program import Gather, Instruction, Merge, Move, Reduce, Run
from raddle.simulation.memory.peaks import memory_curves
from raddle.simulation.timeline import Timeline


def write_trace(timeline: Timeline, path: str | pathlib.Path) -> None:
    """Writes the trace file; gzipped if the path ends in .gz."""
    write_events(trace_events(timeline), path)


def trace_events(timeline: Timeline) -> Iterator[Event]:
    """Yields all events of the trace."""
    kinds = [d.kind for d in timeline.cluster.devices[: timeline.program.plan.devices]]
    yield from lane_names(kinds, timeline.cluster.links)
    yield from _task_events(timeline)
    yield from _message_arrows(timeline)
    yield from _memory_events(timeline)


def _microseconds(nanoseconds: Any) -> float:
    """Returns nanoseconds in microseconds, the unit of the trace format."""
    return int(nanoseconds) / 1000


def _lane(timeline: Timeline, resource: int) -> Event:
    """Returns the process and the lane of a resource; resources are the devices, then the links."""
    devices = timeline.program.plan.devices
    if resource < devices:
        return {"pid": int(resource), "tid": COMPUTE}
    return {"pid": devices, "tid": int(resource) - devices}


def _task_events(timeline: Timeline) -> Iterator[Event]:
    """Yields an event for each task and each resource that it holds."""
    tasks = timeline.tasks
    titles = [_title(i) for i in timeline.program.instructions]
    for resources in (tasks.first_resource, tasks.second_resource):
        for task in np.flatnonzero(resources >= 0):
            title = titles[tasks.instruction[task]]
            yield {
                "ph": "X",
                **title,
                **_lane(timeline, resources[task]),
                "ts": _microseconds(timeline.start[task]),
                "dur": _microseconds(tasks.duration[task]),
                "args": {**title["args"], "bytes": int(tasks.nbytes[task])},
            }


def _title(i: Instruction) -> Event:
    """Returns the name, the category and the arguments of an instruction's events."""
    if isinstance(i, Run | Merge):
        name, phase = i.op, PHASES[i.phase]
        what = "run" if isinstance(i, Run) else "merge"
    elif isinstance(i, Move):
        name, what, phase = i.value, "move", str(i.kind)
    elif isinstance(i, Reduce):
        name, what, phase = ", ".join(i.parameters), "reduce", "reduce"
    elif isinstance(i, Gather):
        name, what, phase = ", ".join(i.parameters), "gather", "gather"
    else:
        name, what = i.parameter, type(i).__name__.lower()
        phase = what
    args = {"phase": phase, "step": i.key.step, "micro-batch": i.key.micro_batch}
    return {"name": name, "cat": what, "args": args}


def _message_arrows(timeline: Timeline) -> Iterator[Event]:
    """Yields for each message an arrow from the computation before it to the one that waits for it."""
    tasks = timeline.tasks
    before, after = _compute_neighbours(timeline)
    for task in np.flatnonzero((tasks.source != tasks.device) & (tasks.first_resource >= 0)):
        i = timeline.program.instructions[tasks.instruction[task]]
        assert isinstance(i, Move)
        message_lane = _lane(timeline, tasks.first_resource[task])
        title = {"name": i.value, "cat": str(i.kind), "id": int(task)}
        # Viewers attach an arrow to the event at its time, so it starts 1 ns before the end of that event.
        start = timeline.start[task]
        end = start + tasks.duration[task]
        producer, user = before[task], after[task]
        # Both ends of the arrow, as (lane, nanoseconds). Without a computation at that end (-1), the arrow
        # starts or ends at the message itself.
        tail = (
            (message_lane, start)
            if producer < 0
            else (_lane(timeline, tasks.first_resource[producer]), timeline.end[producer] - 1)
        )
        head = (
            (message_lane, end - 1)
            if user < 0
            else (_lane(timeline, tasks.first_resource[user]), timeline.start[user])
        )
        tail_event, head_event = ({**lane, "ts": _microseconds(at)} for lane, at in (tail, head))
        yield from flow_events(tail_event, head_event, **title)


def _compute_neighbours(timeline: Timeline) -> tuple[np.ndarray, np.ndarray]:
    """Returns by task the last compute task that it waited for, and the first that waits for it, or -1."""
    tasks, count = timeline.tasks, len(timeline.start)
    # By dependency: the task that is waited for, and the task that waits. computes: by task.
    earlier = np.repeat(np.arange(count), np.diff(tasks.pointer))
    later = tasks.successor.astype(np.int64)
    computes = (tasks.first_resource >= 0) & (tasks.first_resource < timeline.program.plan.devices)
    before, after = np.full(count, -1), np.full(count, -1)
    chosen = np.flatnonzero(computes[earlier])
    chosen = chosen[np.argsort(timeline.end[earlier[chosen]], kind="stable")]
    before[later[chosen]] = earlier[chosen]  # the last assignment wins: the task that ends last
    # A message may be followed by an empty task that joins several messages. So the first round sets
    # `after` of the empty tasks, and the second that of all tasks, perhaps through an empty task.
    for through in (~computes & (tasks.first_resource < 0), np.ones(count, bool)):
        target = np.where(computes[later], later, after[later])
        chosen = np.flatnonzero((target >= 0) & through[earlier])
        chosen = chosen[np.argsort(-timeline.start[target[chosen]], kind="stable")]
        after[earlier[chosen]] = target[chosen]
    return before, after


def _memory_events(timeline: Timeline) -> Iterator[Event]:
    """Yields a counter event for each change of a device's memory."""
    for d, (times, nbytes) in enumerate(memory_curves(timeline)):
        for time, used in zip(times, nbytes, strict=True):
            yield {
                "ph": "C",
                "name": "memory",
                "pid": d,
                "ts": _microseconds(time),
                "args": {"bytes": int(used)},
            }
