"""Blocks of operators, whose sharded parameters are synchronised together (ZeRO).

One reduce-scatter sums the gradients of a block, one all-gather brings its parameters to all holders. With
ZeRO-2 this happens after the update. With ZeRO-3 every device permanently holds its own shard alone: the
parameters of a block are gathered before the block runs, forward and backward, and released after it. The
gather of a block starts when the block before it begins, so a device has the parameters of two blocks:

    time      ------------------>
    gathers   0 1    2               numbers are blocks
    computes    F0   F1   F2         F: forward

ZeRO, Rajbhandari et al., SC 2020, section 7.2.2 (stage 3).

Larger blocks take more memory, smaller ones too many collectives: see `op_blocks`. Blocks of recomputed
operators, and operators that run as one fused call, are not cut.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from raddle.graph.gradients import has_backward
from raddle.graph.graph import Graph, Op
from raddle.plans.plan import Plan

FEWEST_BLOCKS, MOST_BLOCKS = 8, 32  # limits of the number of blocks, approximately (`op_blocks`)


class OpBlock(NamedTuple):
    """A block: operators whose parameters are gathered together."""

    ops: list[Op]
    ops_to_run: list[Op]  # those that run in the phase: not all operators have a backward


def cut_blocks(
    ops: Sequence[Op], graph: Graph, plan: Plan, sharded: Collection[str], active: Collection[str],
    phase: str,
) -> list[OpBlock]:  # fmt: skip
    """Returns the blocks of some operators, in the order in which a phase runs them.

    sharded: names of the sharded parameters. active: values whose gradient is needed. phase: F or B.
    """
    recomputed = {name for names in plan.recompute for name in names}
    blocks = op_blocks(ops, graph, plan, sharded)
    if phase == "F":
        return [OpBlock(block, block) for block in blocks]
    return [
        OpBlock(
            block_ops, [op for op in block_ops if op.name in recomputed or has_backward(op, active)]
        )
        for block_ops in reversed(blocks)
    ]


def with_prefetch(
    blocks: Sequence[OpBlock], gather: Callable[[int], list[int]]
) -> Iterator[tuple[list[Op], list[int]]]:
    """Yields the operators of each block, with the instructions that gather their parameters.

    gather(k) writes the gathers of block k. It is called just before block k - 1 is yielded, to prefetch.
    """
    next_gathers = gather(0)
    for k, block in enumerate(blocks):
        gathers, next_gathers = next_gathers, gather(k + 1) if k + 1 < len(blocks) else []
        yield block.ops, gathers


def op_blocks(
    ops: Sequence[Op], graph: Graph, plan: Plan, sharded: Collection[str]
) -> list[list[Op]]:
    """Cuts operators into blocks, before pieces that read new parameters.

    A piece is an operator, a recomputed block or a fused call. A block has about as many bytes as a bucket
    of gradients (`plan.bucket`), but at least 1/32 of all bytes, which is about a layer of a large network,
    and at most about 1/8 of all bytes.

    sharded: names of the sharded parameters.
    """
    uncuttable = _inner_positions(
        ops, [*plan.recompute, *(fused.ops for fused in graph.fused_calls)]
    )
    # new_bytes: by the first operator of a piece, the bytes of parameters that no piece before it reads; a
    # recomputed layer may begin with an operator without parameters. seen: their names
    new_bytes, seen, first = [0] * len(ops), set[str](), 0
    for position, op in enumerate(ops):
        first = first if position in uncuttable else position
        new_names = [n for n in dict.fromkeys(op.inputs) if n in sharded and n not in seen]
        seen.update(new_names)
        new_bytes[first] += sum(graph.values[n].nbytes for n in new_names)
    total = sum(new_bytes)
    block_bytes = max(total / MOST_BLOCKS, min(plan.bucket, total / FEWEST_BLOCKS))  # to be reached
    blocks: list[list[Op]] = [[]]
    nbytes = 0  # of the last block so far
    for position, op in enumerate(ops):
        if new_bytes[position] and nbytes >= block_bytes:
            blocks.append([])
            nbytes = 0
        blocks[-1].append(op)
        nbytes += new_bytes[position]
    return blocks


def _inner_positions(ops: Sequence[Op], pieces: Sequence[Sequence[str]]) -> set[int]:
    """Returns the positions of operators before which no block may begin: all but the first of each piece.

    pieces: names of operators that have to stay in one block.
    """
    position_of = {op.name: position for position, op in enumerate(ops)}
    inner: set[int] = set()
    for names in pieces:
        positions = [position_of[name] for name in names if name in position_of]
        if positions:
            inner.update(range(min(positions) + 1, max(positions) + 1))
    return inner


def block_of_parameters(
    stages: Sequence[Sequence[Op]], graph: Graph, plan: Plan, sharded: Collection[str]
) -> dict[str, int]:
    """Returns the number of the first block that reads each sharded parameter.

    stages: the operators of each stage. sharded: names of the sharded parameters.
    """
    block_of: dict[str, int] = {}
    blocks = (block for ops in stages for block in op_blocks(ops, graph, plan, sharded))
    for k, block in enumerate(blocks):
        for op in block:
            for name in op.inputs:
                if name in sharded:
                    block_of.setdefault(name, k)
    return block_of
