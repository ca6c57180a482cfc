"""Replays every micro-batch without tensors: who holds which boxes of activations and gradients.

A variant is a graph of one micro-batch size, with its tiles on certain devices; all micro-batches of this
size that run on these devices use it. Most programs have one. A key names a step, a micro-batch and its
variant (program.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from raddle.errors import InputError
from raddle.program.checks.backward_replay import BackwardReplay
from raddle.program.checks.forward_replay import ForwardReplay
from raddle.program.checks.replay_progress import ReplayProgress
from raddle.program.checks.variant_facts import VariantFacts
from raddle.program.describe import PHASES
from raddle.program.message_kind import Subject
from raddle.program.program import Instruction, Key, Merge, Move, Program, Run


def check_micro_batches(program: Program, all_facts: Sequence[VariantFacts]) -> None:
    """Checks every micro-batch of every step. Those with the same instructions are replayed once."""
    numbers_by_key: dict[Key, list[int]] = {}
    for number, i in enumerate(program.instructions):
        if isinstance(i, Run | Merge) or (isinstance(i, Move) and not i.kind.is_of_parameter):
            numbers_by_key.setdefault(i.key, []).append(number)
    steps, count = program.plan.steps, program.plan.microbatches
    micro_batches = {(key.step, key.micro_batch) for key in numbers_by_key}
    for step, micro_batch in ((s, m) for s in range(steps) for m in range(count)):
        if (step, micro_batch) not in micro_batches:
            raise InputError(f"nothing is run in step {step}, micro-batch {micro_batch}.")
    if len(micro_batches) < len(numbers_by_key):
        raise InputError("a micro-batch runs in two variants: its instructions disagree.")
    # For each replayed micro-batch, its instructions without step and micro-batch: equal ones are skipped.
    checked: list[list[tuple[object, ...]]] = []
    for key, numbers in numbers_by_key.items():
        position_of = {number: position for position, number in enumerate(numbers)}
        # By instruction, the positions of those that it waits for in the same micro-batch.
        waits = [
            frozenset(position_of[d] for d in program.instructions[n].deps if d in position_of)
            for n in numbers
        ]
        signature = [
            (key.variant, *_content(program.instructions[n]), w)
            for n, w in zip(numbers, waits, strict=True)
        ]
        if signature not in checked:
            _replay(all_facts[key.variant], key, ReplayProgress(program, numbers))
            checked.append(signature)


def _content(i: Instruction) -> tuple[object, ...]:
    """Returns the fields of an instruction without its step, micro-batch and dependencies."""
    if isinstance(i, Run):
        return (i.op, i.phase, i.devices)
    if isinstance(i, Merge):
        return (i.op, i.phase, i.devices, i.cells)
    assert isinstance(i, Move)
    return (i.value, i.kind, i.messages)


def _replay(facts: VariantFacts, key: Key, progress: ReplayProgress) -> None:
    """Replays one micro-batch, and checks that every operator is run in all of its phases."""
    forward = ForwardReplay(facts, progress)
    backward = BackwardReplay(facts, progress, forward)
    for position, number in enumerate(progress.numbers):
        progress.position = position
        i = facts.program.instructions[number]
        if isinstance(i, Run):
            if i.phase not in facts.phases(facts.ops[i.op]) and i.phase != "R":
                progress.refuse("the plan does not run it in this phase.")
            {"F": forward.replay_run, "R": forward.replay_recompute}.get(
                i.phase, backward.replay_run
            )(i)
        elif isinstance(i, Merge):
            (forward.replay_merge if i.phase == "F" else backward.replay_unmerge)(i)
        elif isinstance(i, Move) and i.kind.between_operators:
            # parameters.py checks messages of parameters, schedule_waits.py checks signals
            is_complete = i.kind.subject is Subject.RESULT  # not a partial result
            if i.kind.is_forward:
                (forward.replay_activation if is_complete else forward.replay_partial)(i)
            else:
                (backward.replay_gradient if is_complete else backward.replay_partial_gradient)(i)
    for op in facts.graph.ops:
        for phase in facts.phases(op):
            if (op.name, phase) not in progress.done:
                raise InputError(
                    f"'{op.name}' is never run {PHASES[phase]} in step {key.step}, "
                    f"micro-batch {key.micro_batch}."
                )
