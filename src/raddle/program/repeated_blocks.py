"""Finds the repeated blocks of a device's operators, such as the layers of a transformer.

torch.compile compiles the segment of a block once for all blocks. But the host takes about 0.8 ms in a step
to start a compiled segment, and a GPU that computes it in less time has to wait. On an H200, GPT-2 with a
segment per layer took 32 ms a step where one segment takes 20 ms, while a Llama with 1.2 billion parameters
took the same time with both. So only large blocks count. A sequence of operators repeats with a period p
where operator i and operator i + p are equal: of one kind, with equal attributes and tiles.

    embed  norm attn add norm mlp add  norm attn add norm mlp add  norm loss
           |------- p = 6 ----------|  |------------------------|
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from raddle.graph.graph import Op
from raddle.graph.operator_kind import kernel_key, work
from raddle.program.program import Variant

MIN_OPS = 8  # of a block: each segment takes time to start
# Of a block, forward, on one device: an H200 takes about 2 ms for these FLOPs, forward and backward.
MIN_FLOPS = 3e11
MIN_SHARE = 0.5  # of operators that must be in repeated blocks: else a cut costs more than it saves
MAX_PERIODS = 20  # the number of periods that are tried


class Repetition(NamedTuple):
    """The operators from position `start` up to `end`, without `end` itself, repeat with a period."""

    period: int
    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start


def block_borders(variant: Variant, device: int, ops: Sequence[Op]) -> set[int]:
    """Returns the positions, in the list of a device's operators, between which whole repeated blocks lie.

    Borders are chosen where the fewest bytes pass from one block to the next. The set is empty if less than
    half of the operators are in repeated blocks, or if the blocks are small.
    """
    run = longest_repetition([_signature(variant, device, op) for op in ops])
    if run is None or run.period < MIN_OPS or run.length < MIN_SHARE * len(ops):
        return set()
    if _flops(variant, device, ops[run.start : run.start + run.period]) < MIN_FLOPS:
        return set()
    passing = _bytes_that_pass(variant, ops)
    inside_composites = _inside_composites(variant, ops)
    best: tuple[int, int, int] | None = None  # bytes, negative number of blocks, first border
    for first in range(run.start, min(run.start + run.period, run.end)):
        count = (run.end - first) // run.period
        borders = range(first, run.end + 1, run.period)
        if count < 2 or not inside_composites.isdisjoint(borders):
            continue
        candidate = passing[first + run.period], -count, first
        best = candidate if best is None else min(best, candidate)
    return set() if best is None else set(range(best[2], run.end + 1, run.period))


def longest_repetition(signatures: Sequence[Hashable]) -> Repetition | None:
    """Returns the repetition of most elements; of several, the one with the shortest period.

    >>> longest_repetition("a bcd bcd bcd e".replace(" ", ""))
    Repetition(period=3, start=1, end=10)
    """
    last_position: dict[Hashable, int] = {}
    gaps: Counter[int] = Counter()  # distances from an element to the next equal one
    for at, signature in enumerate(signatures):
        if signature in last_position:
            gaps[at - last_position[signature]] += 1
        last_position[signature] = at
    runs = []
    for period, _ in gaps.most_common(MAX_PERIODS):
        start = 0
        for at in range(len(signatures) - period + 1):
            if at == len(signatures) - period or signatures[at] != signatures[at + period]:
                if at - start >= period:
                    runs.append(Repetition(period, start, at + period))
                start = at + 1
    return min(runs, key=lambda run: (-run.length, run.period), default=None)


def _signature(variant: Variant, device: int, op: Op) -> Hashable:
    """Returns a key that is equal for operators that do the same on this device, with other operands."""
    boxes = tuple(t.box for t in variant.tiles[op.name].tiles if t.device == device)
    return kernel_key(op), boxes, op.name in variant.merges


def _flops(variant: Variant, device: int, ops: Sequence[Op]) -> int:
    """Returns the FLOPs of the forward of these operators' tiles on a device."""
    return sum(
        work(op, tile.box).flops
        for op in ops
        for tile in variant.tiles[op.name].tiles
        if tile.device == device
    )


def _bytes_that_pass(variant: Variant, ops: Sequence[Op]) -> list[int]:
    """Returns, by position, the bytes of the values computed before it that operators after it read."""
    values = variant.graph.values
    last_reader = {name: at for at, op in enumerate(ops) for name in op.inputs}
    changes = [0] * (len(ops) + 2)
    for at, op in enumerate(ops):
        for name in op.outputs:
            if last_reader.get(name, at) > at:
                changes[at + 1] += values[name].nbytes
                changes[last_reader[name] + 1] -= values[name].nbytes
    total, passing = 0, []
    for change in changes:
        total += change
        passing.append(total)
    return passing


def _inside_composites(variant: Variant, ops: Sequence[Op]) -> set[int]:
    """Returns the positions at which a cut would divide a composite, which may run as one native call."""
    position = {op.name: at for at, op in enumerate(ops)}
    inside: set[int] = set()
    for fused in variant.graph.fused_calls:
        places = [position[name] for name in fused.ops if name in position]
        if places:
            inside.update(range(min(places) + 1, max(places) + 1))
    return inside
