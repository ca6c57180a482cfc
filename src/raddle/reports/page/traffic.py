"""Describes the traffic and the work of a step for the HTML page: by pair of devices, and by operator.

Lists of numbers are stored outside of the page's JSON: `columns.add` stores a list and returns a
description, which stands in the JSON in place of the list (columns.py).
"""

# i: an instruction of the program (i.key: its step and micro-batch); m: a message; s: a region of a
# parameter and the devices that hold it; v: the number of a value

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from raddle.costs.collective_groups import hops
from raddle.costs.collectives import collective_bytes, collective_bytes_by_device
from raddle.program.message_kind import Content
from raddle.program.program import (
    Gather,
    Merge,
    Move,
    Program,
    Reduce,
    Run,
    buffer_bytes,
    message_bytes,
)
from raddle.reports.page.columns import Columns
from raddle.reports.page.slices import operator_numbers
from raddle.simulation.timeline import Timeline


def describe_traffic(timeline: Timeline, columns: Columns) -> dict[str, Any]:
    """Return the bytes that each pair of devices exchanges in the last step.

    A collective counts as a ring: each device sends to the next. "values": bytes of each value, forward
    and backward, by its number in `describe_network`.
    """
    program, last = timeline.program, timeline.program.plan.steps - 1
    pairs: Counter[tuple[int, int]] = Counter()
    # The values that operators produce, in the order of `describe_network`, and their numbers.
    value_names = [value for op in program.graph.ops for value in op.outputs]
    number = {name: v for v, name in enumerate(value_names)}
    forward, backward = np.zeros(len(number), np.int64), np.zeros(len(number), np.int64)
    for i in program.instructions:
        if i.key.step != last:
            continue
        if isinstance(i, Move):
            for m in i.messages:
                nbytes = message_bytes(program, i, m)
                pairs[m.source, m.target] += nbytes
                # A message with NOTHING is a signal.
                if i.value in number and i.kind.content != Content.NOTHING:
                    is_gradient = i.kind.content == Content.GRADIENT
                    (backward if is_gradient else forward)[number[i.value]] += nbytes
        elif isinstance(i, Reduce | Gather):
            for (source, target), nbytes in _ring_pairs(program, i).items():
                pairs[source, target] += nbytes
    ordered = sorted(pairs)
    return {
        "source": columns.add([s for s, _ in ordered]),
        "target": columns.add([t for _, t in ordered]),
        "bytes": columns.add([pairs[pair] for pair in ordered]),
        "values": {"forward": columns.add(forward), "backward": columns.add(backward)},
    }


def _ring_pairs(program: Program, i: Reduce | Gather) -> Counter[tuple[int, int]]:
    """Return the bytes of a collective by (source, target): neighbours in the ring."""
    pairs: Counter[tuple[int, int]] = Counter()
    for ring, nbytes in buffer_bytes(program, i).items():
        sent = collective_bytes_by_device(i.collective, len(ring), nbytes)
        pairs.update(dict(zip(hops(ring), sent, strict=True)))
    return pairs


def describe_work(timeline: Timeline, columns: Columns) -> dict[str, Any]:
    """Return the times and bytes of each operator, as columns by operator.

    "forward_ns" and "backward_ns": on its busiest device, in the last step. "synced_bytes": sent in the
    last step to synchronise its parameters. "path_ns": on the critical path, averaged over all steps.
    """
    program, tasks = timeline.program, timeline.tasks
    # ops: by name of an operator, a value or a parameter, the number of the operator that it belongs to; a
    # parameter belongs to its first reader.
    ops, steps, count = operator_numbers(program.graph), program.plan.steps, len(program.graph.ops)
    # By operator and device: ns forward ("F") and backward ("B").
    busy_ns = {phase: np.zeros((count, program.plan.devices), np.int64) for phase in "FB"}
    synced_bytes, path_ns = np.zeros(count, np.int64), np.zeros(count, np.int64)
    op_of = np.full(len(program.instructions), -1)  # by instruction: its operator, or -1
    # By instruction: 0 forward, 1 backward or recomputed forward, -1 neither, or not in the last step.
    phase_of = np.full(len(program.instructions), -1)
    for number, i in enumerate(program.instructions):
        if isinstance(i, Run | Merge):
            op_of[number] = ops[i.op]
            phase_of[number] = int(i.phase != "F") if i.key.step == steps - 1 else -1
        elif isinstance(i, Reduce | Gather) and i.key.step == steps - 1:
            for name, regions in zip(i.parameters, i.regions, strict=True):
                alone = replace(i, parameters=(name,), regions=(regions,))
                synced_bytes[ops[name]] += sum(
                    collective_bytes(i.collective, len(devices), nbytes)
                    for devices, nbytes in buffer_bytes(program, alone).items()
                )
        elif isinstance(i, Move) and i.kind.is_of_parameter and i.key.step == steps - 1:
            synced_bytes[ops[i.value]] += sum(message_bytes(program, i, m) for m in i.messages)
    for number, phase in enumerate("FB"):
        # Arrays over the tasks: the number of the task's instruction, its device, its duration in ns.
        chosen = np.flatnonzero(phase_of[tasks.instruction] == number)
        cells = (op_of[tasks.instruction[chosen]], tasks.device[chosen])
        np.add.at(busy_ns[phase], cells, tasks.duration[chosen])
    on_path = timeline.critical_path()  # numbers of tasks
    on_path_ns = timeline.critical_nanoseconds(on_path)
    # Tasks of all-reduces, messages and updates belong to no operator (-1).
    owner = op_of[tasks.instruction[on_path]]
    np.add.at(path_ns, owner[owner >= 0], on_path_ns[owner >= 0])
    return {
        "forward_ns": columns.add(busy_ns["F"].max(axis=1)),
        "backward_ns": columns.add(busy_ns["B"].max(axis=1)),
        "synced_bytes": columns.add(synced_bytes),
        "path_ns": columns.add(path_ns // steps),
    }
