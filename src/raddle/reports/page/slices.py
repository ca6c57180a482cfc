"""Describes a simulated timeline for the HTML page: which device or link is busy when, in one step.

A slice is one task's interval, as in Perfetto; a lane is the row of a device or link. The window shown is
the last step's period: it begins when the last update of the step before ends. A slice that began earlier
is not cut: its start is negative.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raddle.graph.graph import Graph
from raddle.program.describe import PHASES
from raddle.program.program import Gather, Instruction, Merge, Move, Reduce, Run
from raddle.reports.names import names_text
from raddle.reports.page.columns import Columns
from raddle.simulation.timeline import Timeline

MAX_SLICES = 100_000  # of one timeline; if it has more, only its first devices are shown

Title = tuple[str, str, str, int, int]  # kind, name, phase, operator number or -1, micro-batch


def describe_timeline(timeline: Timeline, columns: Columns) -> dict[str, Any]:
    """Return lanes (devices, then links), titles, and columns with one number per slice (columns.py).

    Times are in ns since the window began. A message may occupy two links: lanes `lane` and `lane2`.
    """
    tasks, devices = timeline.tasks, timeline.program.plan.devices
    begin, end = ([0, *timeline.step_ends])[-2:]  # ns: the ends of the last two steps
    # chosen: by task, whether it occupies a device or link (a resource) in the window. A message in flight
    # occupies no link: its slice ends when it releases its links.
    released = timeline.start + tasks.duration
    chosen = (tasks.first_resource >= 0) & (released > begin) & (timeline.start < end)
    drawn = _drawable_devices(tasks.device[chosen], devices)  # number of devices to show
    chosen &= tasks.device < drawn
    shown_tasks = np.flatnonzero(chosen)
    first, second = tasks.first_resource[shown_tasks], tasks.second_resource[shown_tasks]
    used_resources = np.unique(np.concatenate([first, second[second >= 0], np.arange(drawn)]))
    # By resource: the number of its lane. The last item (index -1) is for "no second link".
    lane = np.full(tasks.resources + 1, -1)
    lane[used_resources] = np.arange(len(used_resources))
    title_of, titles = _titles(timeline, tasks.instruction[shown_tasks])
    critical = np.isin(shown_tasks, timeline.critical_path())
    return {
        "period_ns": end - begin,
        "lanes": [_lane(timeline, int(r)) for r in used_resources],
        "titles": titles,
        "devices": drawn,
        "count": len(shown_tasks),
        "start": columns.add(timeline.start[shown_tasks] - begin, delta=True),
        "duration": columns.add(tasks.duration[shown_tasks]),
        "lane": columns.add(lane[first]),
        "lane2": columns.add(lane[second]),
        "title": columns.add(title_of, delta=True),
        # The device that sends and the one that receives; of a computation, both are its device.
        "source": columns.add(tasks.source[shown_tasks]),
        "target": columns.add(tasks.device[shown_tasks]),
        "bytes": columns.add(tasks.nbytes[shown_tasks]),
        # Numbers of the slices that are on the critical path.
        "critical": columns.add(np.flatnonzero(critical), delta=True),
    }


def _drawable_devices(slice_devices: np.ndarray, devices: int) -> int:
    """Return how many devices, from the first, have at most MAX_SLICES slices together; at least 1."""
    total = np.cumsum(np.bincount(slice_devices, minlength=devices))
    return max(1, int(np.searchsorted(total, MAX_SLICES, side="right")))


def _lane(timeline: Timeline, resource: int) -> dict[str, Any]:
    """Describe the lane of a resource; resources are numbered: first the devices, then the links."""
    devices = timeline.program.plan.devices
    if resource < devices:
        return {
            "name": f"device {resource}",
            "device": resource,
            "kind": timeline.cluster.devices[resource].kind,
        }
    return {"name": timeline.cluster.links[resource - devices], "device": -1, "kind": "link"}


def _titles(timeline: Timeline, instructions: np.ndarray) -> tuple[np.ndarray, list[list[Any]]]:
    """Return the title number of each slice, and the titles; instructions: their numbers, by slice."""
    titles: dict[Title, int] = {}
    # By instruction: the number of its title.
    number = np.zeros(len(timeline.program.instructions), np.int64)
    ops = operator_numbers(timeline.program.graph)
    for i in np.unique(instructions):
        title = _title(timeline.program.instructions[i], ops)
        number[i] = titles.setdefault(title, len(titles))
    return number[instructions], [list(title) for title in titles]


def operator_numbers(graph: Graph) -> dict[str, int]:
    """Return the operator number for each name of an operator, value or parameter.

    A value belongs to its producer, a parameter to its first reader.
    """
    operators: dict[str, int] = {}
    for i, op in enumerate(graph.ops):
        for name in op.inputs:
            operators.setdefault(name, i)
    for i, op in enumerate(graph.ops):
        operators.update(dict.fromkeys(op.outputs, i))
    operators.update({op.name: i for i, op in enumerate(graph.ops)})
    return operators


def _title(i: Instruction, ops: dict[str, int]) -> Title:
    """Return the title of the slices of instruction i; ops: operator numbers by name.

    i.key: the step and the micro-batch of the instruction. PHASES: "F" -> "forward", ...
    """
    if isinstance(i, Run | Merge):
        kind = "run" if isinstance(i, Run) else "merge"
        return kind, i.op, PHASES[i.phase], ops[i.op], i.key.micro_batch
    if isinstance(i, Move):
        return "move", i.value, str(i.kind), ops.get(i.value, -1), i.key.micro_batch
    if isinstance(i, Reduce | Gather):
        return (
            "reduce",
            names_text(i.parameters),
            "sum of gradients" if isinstance(i, Reduce) else "gather of parameters",
            ops.get(i.parameters[0], -1),
            i.key.micro_batch,
        )
    return "update", i.parameter, "update", ops.get(i.parameter, -1), i.key.micro_batch
