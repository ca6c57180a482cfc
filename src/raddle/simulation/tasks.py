"""Turns a program into tasks on resources (devices and links), which the engine (engine.py) simulates.

    computing     one task for each device that takes part, which holds the device (compute_tasks.py)
    message       one task that holds the links of its route (message_tasks.py)
    collective    one task for each member, which holds links of the ring (collective_tasks.py)

A device computes in the program's order. All-reduces of slices (ranges of rows of a parameter) start in
that order too. With `overtaking` the most urgent slice goes first instead; the search for an order of
slices uses this (searches/slice_order.py). Host overhead is device time that communication takes
(costs/host_overhead.py). It is spent in the program's order too, except for messages with slices, which a
device sends and receives whenever it is free.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raddle.clusters import Cluster
from raddle.costs.profile import Profile
from raddle.program.program import Gather, Merge, Move, Program, Reduce, Run, Update
from raddle.simulation.collective_tasks import CollectiveTasks
from raddle.simulation.compute_tasks import ComputeTasks
from raddle.simulation.message_tasks import MessageTasks
from raddle.simulation.task_table import Tasks, TaskTable


def build_tasks(
    program: Program,
    cluster: Cluster,
    profile: Profile | None = None,
    *,
    overtaking: bool = False,
    look: Callable[[], None] = lambda: None,
) -> Tasks:
    """Returns all tasks of a program.

    overtaking: the most urgent slice is all-reduced first. profile: measured times of operators, if any.
    look: is called for every instruction, see `simulate`.
    """
    table, urgency = TaskTable(program.plan.devices), slice_urgencies(program)
    compute_tasks = ComputeTasks(table, program, cluster, profile)
    collective_tasks = CollectiveTasks(table, program, cluster, urgency, overtaking=overtaking)
    builders: dict[type, Callable[[int, Any], None]] = {  # by type of instruction
        Run: compute_tasks.add_run,
        Merge: compute_tasks.add_merge,
        Update: compute_tasks.add_update,
        Move: MessageTasks(table, program, cluster, urgency).add_move,
        Reduce: collective_tasks.add_collective,
        Gather: collective_tasks.add_collective,
    }
    for number, instruction in enumerate(program.instructions):
        look()
        builders[type(instruction)](number, instruction)
    return table.build(program.plan.devices + len(cluster.links))


def slice_urgencies(program: Program) -> dict[str, int]:
    """Returns by sliced parameter the urgency of its messages; the smallest number goes first.

    In a plan with priorities, as in the P3 paper, a slice that the next forward needs earlier is more
    urgent. In other plans all slices have urgency 1: the slice that is ready first goes first.
    program.priority: by parameter, its place in the order in which a forward first uses parameters.
    """
    urgent = program.plan.parsed_sync.by_priority
    return {
        name: 1 + place if urgent else 1
        for name, place in program.priority.items()
        if name in program.slices
    }
