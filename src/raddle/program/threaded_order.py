"""Orders the instructions of a `threaded` plan: several steps at once, without stages.

It is a list scheduler: whenever a device is free, it takes the first block of instructions that is ready.
Speeds are nominal (SPEED and BANDWIDTH below), so the order depends only on the graph and the plan, and is
the same on every rank. A block is a sequence of runs of one micro-batch without a transfer between them; it
is not interrupted. The depth is the number of steps at once: with depth n, step k begins on a device after
step k - n has ended there.

The event loop of the simulation (simulation/engine.py) is not used here: ranks lower programs without a
simulator or a JIT compiler, a block may occupy any number of devices, and only the order counts.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from raddle.graph.graph import Graph
from raddle.plans.plan import Plan
from raddle.program.program import Gather, Instruction, Merge, Move, Reduce, Run, Update

SPEED = 1e12  # floating-point operations per second
BANDWIDTH = 10e9  # bytes per second, both of memory and of a transfer
LATENCY = 20e-6  # seconds of a transfer, an all-reduce or a merge, besides those for bytes


def reorder(
    instructions: Sequence[Instruction], graph: Graph, plan: Plan, depth: int
) -> list[Instruction]:
    """Returns the instructions in the new order, with `depth` steps at once and renumbered dependencies."""
    blocks = _blocks(instructions)
    order = _list_schedule(instructions, blocks, _seconds(graph, plan), plan, depth)
    new_number = {old: new for new, old in enumerate(order)}
    return [
        replace(i, deps=tuple(sorted(new_number[d] for d in i.deps)))
        for i in (instructions[n] for n in order)
    ]


def _blocks(instructions: Sequence[Instruction]) -> list[list[int]]:
    """Divides instructions (numbers) into blocks. Every instruction other than a Run is its own block."""

    def kind(number: int) -> object:
        """Returns a value that consecutive instructions of one block have in common."""
        i = instructions[number]
        if isinstance(i, Run):
            return (i.key, i.phase)
        return number

    blocks: list[list[int]] = []
    # Without updates: an update between two runs does not end their block.
    numbers = [n for n, i in enumerate(instructions) if not isinstance(i, Update)]
    for _, group in groupby(numbers, key=kind):
        blocks.append(list(group))
    blocks += [[n] for n, i in enumerate(instructions) if isinstance(i, Update)]
    return sorted(blocks)


def _seconds(graph: Graph, plan: Plan) -> dict[str, float]:
    """Returns, by operator, the nominal seconds of its forward on each of its devices."""
    seconds = {}
    for op in graph.ops:
        devices = max(1, len(set(plan.tiles[op.name].devices)))
        nbytes = sum(graph.values[n].nbytes for n in (*op.inputs, *op.outputs))
        seconds[op.name] = (
            op.space.forward_work(op.space.full).flops / SPEED + nbytes / BANDWIDTH
        ) / devices
    return seconds


def _list_schedule(
    instructions: Sequence[Instruction],
    blocks: Sequence[Sequence[int]],
    seconds: dict[str, float],
    plan: Plan,
    depth: int,
) -> list[int]:
    """Returns the numbers of the instructions in the order in which their blocks become ready.

    seconds: by operator, of its forward. depth: steps at once. In the code, b and f are numbers of blocks,
    n of instructions and d of devices (in `deps`: of instructions).
    """
    block_of = {n: b for b, numbers in enumerate(blocks) for n in numbers}
    waits: list[set[int]] = [set() for _ in blocks]  # by block, the blocks that it waits for
    devices = [{d for n in numbers for d in instructions[n].devices} for numbers in blocks]
    for b, numbers in enumerate(blocks):
        waits[b] |= {block_of[d] for n in numbers for d in instructions[n].deps} - {b}
    _limit_depth(instructions, blocks, devices, waits, depth)
    followers: list[list[int]] = [[] for _ in blocks]  # by block, the blocks that wait for it
    for b, awaited_blocks in enumerate(waits):
        for awaited in awaited_blocks:
            followers[awaited].append(b)
    missing = [len(w) for w in waits]  # by block, how many blocks it still waits for
    ready_at = [0.0] * len(blocks)  # by block, nominal seconds from the beginning
    free_at = [0.0] * plan.devices  # by device, the same: when it has ended its last block so far
    heap = [(0.0, b) for b, count in enumerate(missing) if not count]
    heapq.heapify(heap)
    order: list[int] = []
    while heap:
        ready, b = heapq.heappop(heap)
        order += blocks[b]
        # A transfer does not occupy its devices.
        is_transfer = isinstance(instructions[blocks[b][0]], Move | Reduce | Gather)
        start = ready if is_transfer else max([ready, *(free_at[d] for d in devices[b])])
        end = start + sum(_duration(instructions[n], seconds, plan) for n in blocks[b])
        if not is_transfer:
            for d in devices[b]:
                free_at[d] = end
        for f in followers[b]:
            ready_at[f] = max(ready_at[f], end)
            missing[f] -= 1
            if not missing[f]:
                heapq.heappush(heap, (ready_at[f], f))
    assert len(order) == len(instructions), "instructions wait for each other"
    return order


def _limit_depth(
    instructions: Sequence[Instruction],
    blocks: Sequence[Sequence[int]],
    devices: Sequence[set[int]],
    waits: list[set[int]],
    depth: int,
) -> None:
    """Adds to `waits`: on each device, the first block of step k waits for the last of step k - depth."""
    # By step and device, its first and its last block.
    first: dict[tuple[int, int], int] = {}
    last: dict[tuple[int, int], int] = {}
    for b, numbers in enumerate(blocks):
        step = instructions[numbers[0]].key.step
        for d in devices[b]:
            first.setdefault((step, d), b)
            last[step, d] = b
    for (step, d), b in first.items():
        if (step - depth, d) in last:
            waits[b].add(last[step - depth, d])


def _duration(i: Instruction, seconds: dict[str, float], plan: Plan) -> float:
    """Returns the nominal seconds of an instruction. seconds: by operator, of its forward."""
    if isinstance(i, Run):
        # A backward takes twice the time of a forward.
        return seconds[i.op] * (2.0 if i.phase == "B" else 1.0)
    if isinstance(i, Move):
        largest = max(m.elements for m in i.messages)
        return LATENCY + 4 * largest / BANDWIDTH  # 4 bytes per element
    if isinstance(i, Reduce | Gather | Merge):
        return LATENCY
    return 0.0
