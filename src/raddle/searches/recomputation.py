"""Activation checkpointing: divides the forward into blocks whose inner values are recomputed.

Only values that cross from one block to another are saved for the backward. The method is from Chen et al.,
Training deep nets with sublinear memory cost (arXiv 1604.06174), §4.1; GPipe calls it re-materialisation.
"""

from __future__ import annotations

from itertools import accumulate

from raddle.errors import InputError
from raddle.graph.graph import Graph


def recompute_blocks(graph: Graph, count: int) -> tuple[tuple[str, ...], ...]:
    """Returns the operators of each block to recompute: consecutive, with about equal bytes of results.

    count: number of blocks, the last one included. The last block is not recomputed and not returned: its
    backward follows its forward at once, so recomputing it would save no memory.
    """
    if not 2 <= count <= len(graph.ops):
        raise InputError(
            f"cannot recompute in {count} blocks: '{graph.name}' has {len(graph.ops)} operators, "
            "ask for at least 2 blocks and at most that many."
        )
    sizes = [sum(graph.values[o].nbytes for o in op.outputs) for op in graph.ops]
    total, names = sum(sizes), [op.name for op in graph.ops]
    block_ops: list[list[str]] = [[] for _ in range(count)]
    for name, size, end in zip(names, sizes, accumulate(sizes), strict=True):
        block_ops[min(count - 1, (end - size) * count // max(1, total))].append(name)
    return tuple(tuple(block) for block in block_ops[:-1] if block)
