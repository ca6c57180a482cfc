"""Blocks of operators whose parameters are whole at a time, where parameters are divided among devices.

    block      0     1     2            F: forward; pulls of a block leave when the one before begins,
    pulls     0 1    2                  so that a device has about two blocks' parameters whole
    computes  F0     F1    F2           (ZeRO, Rajbhandari et al., SC 2020, section 7.2.2: stage 3)

A block has an eighth of the parameters' bytes or a little more: many small messages cost more than they
hide. It is not cut where operators run in one piece: what is computed again, what a native call replaces.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from raddle.graph.gradients import has_backward
from raddle.graph.graph import Graph, Op
from raddle.plans.plan import Plan
from raddle.plans.regions import operand_regions
from raddle.plans.tiling import Tiling
from raddle.program.lower_variant import join_messages
from raddle.program.program import Message, ParameterRegion

PARTS = 8


class Zero3Block(NamedTuple):
    """Operators whose parameters are whole at a time, and those of them that run in a direction."""

    ops: list[Op]
    ops_to_run: list[Op]


def cut_blocks(
    ops: Sequence[Op], graph: Graph, plan: Plan, sharded: Collection[str], active: Collection[str],
    phase: str,
) -> list[Zero3Block]:  # fmt: skip
    """The blocks of some operators, in the order of a direction."""
    recomputed = {name for names in plan.recompute for name in names}
    blocks = op_blocks(ops, graph, plan, sharded)
    if phase == "F":
        return [Zero3Block(block, block) for block in blocks]
    return [
        Zero3Block(
            block_ops, [op for op in block_ops if op.name in recomputed or has_backward(op, active)]
        )
        for block_ops in reversed(blocks)
    ]


def with_prefetch(
    blocks: Sequence[Zero3Block], pull: Callable[[int], list[int]]
) -> Iterator[tuple[list[Op], list[int]]]:
    """The operators of each block, with what brings their parameters.

    That leaves when the block before begins, and not earlier: parameters of two blocks are whole.
    """
    next_pulls = pull(0)
    for at, block in enumerate(blocks):
        pulls, next_pulls = next_pulls, pull(at + 1) if at + 1 < len(blocks) else []
        yield block.ops, pulls


def op_blocks(
    ops: Sequence[Op], graph: Graph, plan: Plan, sharded: Collection[str]
) -> list[list[Op]]:
    """Operators in their order, cut in front of those that read parameters."""
    new_bytes, seen = (
        [],
        set[str](),
    )  # by operator, the bytes of parameters that it is the first to read
    for op in ops:
        new_names = [n for n in dict.fromkeys(op.inputs) if n in sharded and n not in seen]
        seen.update(new_names)
        new_bytes.append(sum(graph.values[n].nbytes for n in new_names))
    uncuttable = _inner_positions(
        ops, [*plan.recompute, *(fused.ops for fused in graph.fused_calls)]
    )
    blocks: list[list[Op]] = [[]]
    size = 0
    for at, op in enumerate(ops):
        if new_bytes[at] and size * PARTS >= sum(new_bytes) and at not in uncuttable:
            blocks.append([])
            size = 0
        blocks[-1].append(op)
        size += new_bytes[at]
    return blocks


def _inner_positions(ops: Sequence[Op], pieces: Sequence[Sequence[str]]) -> set[int]:
    """Places in front of which nothing is cut: inside of a piece."""
    place = {op.name: at for at, op in enumerate(ops)}
    inside: set[int] = set()
    for names in pieces:
        places = [place[name] for name in names if name in place]
        if places:
            inside.update(range(min(places) + 1, max(places) + 1))
    return inside


def pull_messages(
    ops: Sequence[Op], tiles: Mapping[str, Tiling], regions: Mapping[str, Sequence[ParameterRegion]],
    slices: Mapping[str, Sequence[ParameterRegion]],
) -> dict[str, tuple[Message, ...]]:  # fmt: skip
    """By parameter, what brings the rows that these operators read to devices that are not their home.

    A device has a share in one piece: it needs all of what it reads any of.
    """
    readers: dict[str, dict[tuple[int, ...], set[int]]] = {}  # devices, by the place of a share
    for op in ops:
        for operand, name in enumerate(op.inputs):
            if name not in slices:
                continue
            reading_devices = readers.setdefault(name, {})
            for device, region in operand_regions(op, operand, tiles[op.name]):
                for parameter_region in regions[name]:
                    if region is not None and not (region & parameter_region.box).empty:
                        reading_devices.setdefault(parameter_region.box.lo, set()).add(device)
    pulls = {}
    for name, devices_by_start in readers.items():
        messages = [
            Message(s.server, d, (s.box,))
            for holder_region in regions[name]
            for s in slices[name]
            if holder_region.box.contains(s.box)
            for d in sorted(devices_by_start.get(holder_region.box.lo, set()) - {s.server})
        ]
        if messages:
            pulls[name] = join_messages(messages)
    return pulls
