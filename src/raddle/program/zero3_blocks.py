"""ZeRO-3: cuts operators into blocks, and gathers the parameters of a block before it runs.

Every device permanently holds its own shard of the parameters. The parameters of a block are gathered by
pulls from the devices that hold the shards (their servers), and released after the block. The pulls of a
block start when the block before it begins, so a device has the parameters of about two blocks:

    time      ------------------>
    pulls     0 1    2               numbers are blocks
    computes    F0   F1   F2         F: forward

ZeRO, Rajbhandari et al., SC 2020, section 7.2.2 (stage 3).

A block has an eighth of the bytes of all parameters, or a little more: with smaller blocks, there are too
many messages. Blocks of recomputed operators, and operators that run as one fused call, are not cut.
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

PARTS = 8  # about how many blocks, each with 1/8 of the bytes


class Zero3Block(NamedTuple):
    """Operators whose parameters are gathered together."""

    ops: list[Op]
    ops_to_run: list[Op]  # those that run in the phase: not all operators have a backward


def cut_blocks(
    ops: Sequence[Op], graph: Graph, plan: Plan, sharded: Collection[str], active: Collection[str],
    phase: str,
) -> list[Zero3Block]:  # fmt: skip
    """The blocks of some operators, in the order in which a phase runs them.

    sharded: names of the sharded parameters. active: values whose gradient is needed. phase: F or B.
    """
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
    """Yields the operators of each block, with the instructions that gather their parameters.

    pull(k) writes the pulls of block k. It is called just before block k - 1 is yielded, to prefetch.
    """
    next_pulls = pull(0)
    for at, block in enumerate(blocks):
        pulls, next_pulls = next_pulls, pull(at + 1) if at + 1 < len(blocks) else []
        yield block.ops, pulls


def op_blocks(
    ops: Sequence[Op], graph: Graph, plan: Plan, sharded: Collection[str]
) -> list[list[Op]]:
    """Cuts operators into blocks, before operators that read new parameters.

    sharded: names of the sharded parameters.
    """
    # By operator, the bytes of parameters that no operator before it reads; and their names.
    new_bytes, seen = (
        [],
        set[str](),
    )
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
    """The positions of operators before which no block may begin: all but the first of each piece.

    pieces: names of operators that have to stay in one block.
    """
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
    """By parameter, the messages that bring the rows that operators read to the devices that run them.

    A region is a box of a parameter with its holders; a slice is a range of its rows, with a server. A
    device that reads a part of a region gets all slices of the region, from their servers.
    """
    # By parameter and by the lower corner of a region, the devices that read it.
    readers: dict[str, dict[tuple[int, ...], set[int]]] = {}
    for op in ops:
        for operand, name in enumerate(op.inputs):
            if name not in slices:
                continue
            reading_devices = readers.setdefault(name, {})
            # read_box: what a tile on the device reads of the parameter; None: nothing.
            for device, read_box in operand_regions(op, operand, tiles[op.name]):
                for region in regions[name]:
                    if read_box is not None and not (read_box & region.box).empty:
                        reading_devices.setdefault(region.box.lo, set()).add(device)
    pulls = {}
    for name, devices_by_start in readers.items():
        messages = [
            Message(s.server, d, (s.box,))
            for region in regions[name]
            for s in slices[name]
            if region.box.contains(s.box)  # s: a slice of the region
            for d in sorted(devices_by_start.get(region.box.lo, set()) - {s.server})
        ]
        if messages:
            pulls[name] = join_messages(messages)
    return pulls
