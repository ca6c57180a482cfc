"""Segments: maximal sequences of a device's operators without communication inside.

The runtime executes a segment as one piece, forward and backward. The operators of a device are cut

- where the device sends, merges or reduces (so that data is sent early) and where it waits for a message,
  in either direction;
- at the borders of stages and of recomputed blocks;
- before attention with native dropout, if another such attention is before it in the segment: the random
  generator is set at the start of a segment (runtime/execution/random_generator.py), so that the masks of
  an attention do not depend on what else runs in its segment. If segments are compiled, this is done only
  where several devices compute the same tile, because their masks have to be equal. It is not done
  elsewhere, because the host takes longer to start a small compiled segment than the GPU to compute it;
- if the backward is split, around every operator with parameters (its W, run later inside a longer segment,
  would compute gradients of activations again);
- if they are compiled, at the borders of large repeated blocks (repeated_blocks.py), so that equal blocks
  are compiled once;
- in a `threaded` plan (several steps at once), wherever any device communicates. There the order may place
  instructions of another step (threaded_order.py), such as an update of the parameters. A segment runs as
  one piece, so no such place may be inside.

A composite, such as a batch norm of several operators, is not cut to sum the gradients of its parameters:
they are sent after the whole composite, so that it can stay one fused call.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from raddle.graph.gradients import trained_parameters
from raddle.graph.graph import Op
from raddle.plans.native_dropout import has_native_dropout
from raddle.plans.pipelining import is_threaded, stage_of
from raddle.program.program import (
    Gather,
    Instruction,
    Key,
    Merge,
    Move,
    Program,
    Reduce,
    Run,
    Variant,
)
from raddle.program.repeated_blocks import block_borders

# The operators of a device are numbered in the order of the graph; a cut at i lies before operator i.


def segments(
    program: Program, device: int, variant: int = 0, *, compiled: bool = False
) -> list[tuple[Op, ...]]:
    """Returns the segments of a device: the operators that it computes, in order.

    variant: index into `program.variants`. A variant is a graph of one micro-batch size, with its tiles on
    certain devices; most programs have one. compiled: whether torch.compile compiles the segments.
    """
    chosen = program.variants[variant]
    device_ops = [op for op in chosen.graph.ops if device in chosen.tiles[op.name].devices]
    cuts = {0, len(device_ops)} | _cuts_of_plan(program, device_ops)
    if compiled:
        cuts |= block_borders(chosen, device, device_ops)
    threaded = is_threaded(program.plan)
    for instructions in _representative_micro_batches(program, variant):
        cuts |= _cuts_of_device(program, instructions, device, device_ops)
        if threaded:
            cuts |= _cuts_of_all_devices(program, instructions, device_ops)
    cuts |= _cuts_of_native_dropout(program, chosen, device_ops, cuts, compiled=compiled)
    return [tuple(device_ops[a:b]) for a, b in pairwise(sorted(cuts))]


def _representative_micro_batches(
    program: Program, variant: int
) -> list[list[tuple[int, Instruction]]]:
    """Returns the numbered instructions of the micro-batches that together have all possible cuts.

    These are the last micro-batch of the first step, and those in which gradients are synchronised. An
    element of the result has the (number, instruction) pairs of one micro-batch.
    """
    instructions_by_key: dict[Key, list[tuple[int, Instruction]]] = {}
    for number, i in enumerate(program.instructions):
        if i.key.step == 0 and i.key.variant == variant:
            instructions_by_key.setdefault(i.key, []).append((number, i))
    micro_batches = list(instructions_by_key.values())
    if not micro_batches:  # a variant that appears in later steps
        later = next(i.key for i in program.instructions if i.key.variant == variant)
        return [[(n, i) for n, i in enumerate(program.instructions) if i.key == later]]
    return [
        instructions for m, instructions in enumerate(micro_batches)
        if m == len(micro_batches) - 1
        or any(isinstance(i, Reduce) or _pushes_slice(program, i) for _, i in instructions)
    ]  # fmt: skip


def _cuts_of_device(
    program: Program,
    instructions: Sequence[tuple[int, Instruction]],
    device: int,
    device_ops: list[Op],
) -> set[int]:
    """Returns the cuts that a device's communication makes in a micro-batch: positions in `device_ops`."""
    position_of = {op.name: position for position, op in enumerate(device_ops)}
    # By operator, the number of its composite: a fused call computes the operators of a composite at once.
    composite = {name: n for n, fused in enumerate(program.graph.fused_calls) for name in fused.ops}
    # By operator of the device, its composite; an operator outside of composites has its own number.
    composite_of = [composite.get(op.name, -1 - k) for k, op in enumerate(device_ops)]
    cuts: set[int] = set()
    received: set[int] = set()  # moves to this device, and gathers, for which no run has waited yet
    # last, direction: the position of the last operator, and whether it ran forward (F) or backward (B).
    # cut_next: whether to cut before the next operator. syncs_gradients: whether gradients are sent or
    # summed, so that a cut is needed at the end of the present composite.
    last, direction, cut_next, syncs_gradients = 0, "F", False, False
    for number, i in instructions:
        if device not in i.devices:
            continue
        if isinstance(i, Run) and i.phase != "R":
            position, phase = position_of[i.op], "F" if i.phase == "F" else "B"
            waits = not received.isdisjoint(i.deps)
            received.difference_update(i.deps)
            leaves_composite = phase != direction or composite_of[position] != composite_of[last]
            if (
                (cut_next or waits or (syncs_gradients and leaves_composite))
                and phase == direction
                and position != last
            ):
                cuts.add(position if phase == "F" else last)
            last, direction, cut_next, syncs_gradients = (
                position,
                phase,
                False,
                syncs_gradients and not leaves_composite,
            )
        elif isinstance(i, Reduce) or _pushes_slice(program, i):
            syncs_gradients = True
        elif isinstance(i, Gather):
            received.add(number)
        elif program.slices and isinstance(i, Move) and i.kind.is_pull:
            continue  # received concurrently with what the device computes
        elif isinstance(i, Move) and all(m.source != device for m in i.messages):
            received.add(number)
        elif isinstance(i, Move | Merge):
            cut_next = True
            if isinstance(i, Move):
                received.add(number)
    return cuts


def _pushes_slice(program: Program, i: Instruction) -> bool:
    """Returns whether an instruction sends the gradient of a slice to its server."""
    return bool(program.slices) and isinstance(i, Move) and i.kind.is_push


def _cuts_of_all_devices(
    program: Program, instructions: Sequence[tuple[int, Instruction]], device_ops: list[Op]
) -> set[int]:
    """Returns the cuts of a threaded plan: where any device communicates (module docstring).

    They are after each operator that a move, merge, reduce or update waits for, and before each operator
    that waits for one of these.
    """
    op_number = {op.name: number for number, op in enumerate(program.graph.ops)}
    # By operator of the device, its number in the graph.
    device_op_numbers = [op_number[op.name] for op in device_ops]
    # The instructions that are no computation: moves, merges, reduces and updates.
    communication = {n for n, i in instructions if not isinstance(i, Run)}
    # A border at k lies before operator k of the graph. Backward, operators run in reverse order, so
    # the border before the backward of operator k is at k + 1, and the border after it is at k.
    borders: set[int] = set()
    for _, i in instructions:
        if isinstance(i, Run):
            if not communication.isdisjoint(i.deps):
                borders.add(op_number[i.op] + (i.phase != "F"))
            continue
        for dep in (program.instructions[d] for d in i.deps):
            if isinstance(dep, Run) and dep.key == i.key:
                borders.add(op_number[dep.op] + (dep.phase == "F"))
    return {sum(number < border for number in device_op_numbers) for border in borders}


def _cuts_of_native_dropout(
    program: Program, variant: Variant, device_ops: list[Op], cuts: set[int], *, compiled: bool
) -> set[int]:
    """Returns the cuts before attention with native dropout (module docstring).

    cuts: the cuts that other rules make. A segment that draws random numbers is cut as late as possible.
    """
    further: set[int] = set()
    draws = False  # whether the present segment draws random numbers
    for position, op in enumerate(device_ops):
        draws = draws and position not in cuts
        tiling = variant.tiles[op.name]
        if has_native_dropout(program.plan, op, tiling):
            has_copies = len({tile.box for tile in tiling.tiles}) < len(tiling.tiles)
            if draws and (has_copies or not compiled):
                further.add(position)
            draws = True
    return further


def _cuts_of_plan(program: Program, device_ops: list[Op]) -> set[int]:
    """Returns the cuts at borders of stages and recomputed blocks, and those of a split backward."""
    plan, cuts = program.plan, set[int]()
    # By operator, the number of its recomputed block.
    block = {name: k for k, names in enumerate(plan.recompute) for name in names}
    stage = stage_of(plan)  # by operator, the number of its stage
    for position, (before, after) in enumerate(pairwise(device_ops), 1):
        if any(number.get(before.name) != number.get(after.name) for number in (block, stage)):
            cuts.add(position)
        if plan.split_backward and any(
            trained_parameters(program.graph, op, program.active) for op in (before, after)
        ):
            cuts.add(position)
    return cuts
