"""From a program to tasks on resources, as arrays.

An instruction is one task for each device that takes part (computing.py); a message is a task that holds
the links of its route (sending.py); an all-reduce starts when its last participant is ready, and then each
participant holds its part of the ring (summing.py). A device computes in the program's order, and sums of
slices leave it in that order too, so that none overtakes another; `overtaking` lets the most urgent go
first instead, which gives an order that is worth having (searches/slice_order.py). Where communication takes a
device's time (costs/host_overhead.py), all of it stands in the program's order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raddle.clusters import Cluster
from raddle.costs.profile import Profile
from raddle.program.program import Merge, Move, Program, Reduce, Run, Update
from raddle.simulation.all_reduce_tasks import AllReduceTasks
from raddle.simulation.compute_tasks import ComputeTasks
from raddle.simulation.message_tasks import MessageTasks
from raddle.simulation.task_table import Tasks, TaskTable


def build_tasks(
    program: Program,
    cluster: Cluster,
    profile: Profile | None = None,
    *,
    overtaking: bool = False,
) -> Tasks:
    table, urgency = TaskTable(program.plan.devices), slice_urgencies(program)
    compute_tasks = ComputeTasks(table, program, cluster, profile)
    builders: dict[type, Callable[[int, Any], None]] = {  # one a type of instruction
        Run: compute_tasks.add_run,
        Merge: compute_tasks.add_merge,
        Update: compute_tasks.add_update,
        Move: MessageTasks(table, program, cluster, urgency).add_move,
        Reduce: AllReduceTasks(table, program, cluster, urgency, overtaking=overtaking).add_reduce,
    }
    for number, instruction in enumerate(program.instructions):
        builders[type(instruction)](number, instruction)
    return table.build(program.plan.devices + len(cluster.links))


def slice_urgencies(program: Program) -> dict[str, int]:
    """By sliced parameter. Slices wait for a link without holding up others: the first first, or, where the
    way to synchronise says so, the most urgent."""
    urgent = program.plan.parsed_sync.by_priority
    return {
        name: 1 + at if urgent else 1
        for name, at in program.priority.items()
        if name in program.slices
    }
