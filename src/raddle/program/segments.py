"""Segments: maximal runs of a device's operators without communication inside.

A segment is executed as one piece, forward and backward. It ends where something is sent (so that it leaves
early), merged or reduced, and starts where something is received, in either direction; at the border of a
block that is recomputed; and, where the backward is split, around every operator with parameters (so that
nothing between them is computed twice).
"""

from __future__ import annotations

from itertools import pairwise

from raddle.graph.graph import Op
from raddle.program.program import Key, Merge, Move, Program, Reduce, Run

# The operators of a device are numbered in their order; a cut at i lies before operator i.


def segments(program: Program, device: int) -> list[tuple[Op, ...]]:
    """The operators of a device, in their order, cut where the device communicates."""
    tiles = program.plan.tiles
    own = [op for op in program.graph.ops if device in tiles[op.name].devices]
    cuts = sorted({0, len(own)} | _talks(program, device, own) | _choices(program, own))
    return [tuple(own[a:b]) for a, b in pairwise(cuts)]


def _talks(program: Program, device: int, own: list[Op]) -> set[int]:
    """Where communication cuts: seen in the last micro-batch, which also reduces gradients."""
    place = {op.name: at for at, op in enumerate(own)}
    key = Key(0, program.plan.microbatches - 1)
    cuts: set[int] = set()
    received: set[int] = set()
    last, direction, cut_next = 0, "F", False
    for number, i in enumerate(program.instructions):
        if i.key.step > 0:
            break
        if i.key != key or device not in i.devices:
            continue
        if isinstance(i, Run) and i.phase != "R":
            at, way = place[i.op], "F" if i.phase == "F" else "B"
            waits = not received.isdisjoint(i.deps)
            received.difference_update(i.deps)
            if (cut_next or waits) and way == direction and at != last:
                cuts.add(at if way == "F" else last)
            last, direction, cut_next = at, way, False
        elif isinstance(i, Move) and all(m.source != device for m in i.messages):
            received.add(number)
        elif isinstance(i, Move | Merge | Reduce):
            cut_next = True
            if isinstance(i, Move):
                received.add(number)
    return cuts


def _choices(program: Program, own: list[Op]) -> set[int]:
    """Where the plan cuts."""
    plan, cuts = program.plan, set[int]()
    block = {name: k for k, names in enumerate(plan.recompute) for name in names}
    for at, (before, after) in enumerate(pairwise(own), 1):
        if block.get(before.name) != block.get(after.name):
            cuts.add(at)
        if plan.split_backward and (_weighted(program, before) or _weighted(program, after)):
            cuts.add(at)
    return cuts


def _weighted(program: Program, op: Op) -> bool:
    values = program.graph.values
    return any(values[i].role == "parameter" and i in program.active for i in op.inputs)
