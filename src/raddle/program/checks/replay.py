"""Replays every micro-batch, instruction by instruction: who holds which activations and gradients."""

from __future__ import annotations

from collections.abc import Sequence

from raddle.errors import InputError
from raddle.program.checks.backward_replay import Backward
from raddle.program.checks.forward_replay import Forward
from raddle.program.checks.replay_progress import Progress
from raddle.program.checks.variant_facts import Facts
from raddle.program.describe import PHASES
from raddle.program.message_kind import Subject
from raddle.program.program import Instruction, Key, Merge, Move, Program, Run


def check_micro_batches(program: Program, every: Sequence[Facts]) -> None:
    """Every micro-batch of every step; those with the same instructions are replayed once."""
    groups: dict[Key, list[int]] = {}
    for number, i in enumerate(program.instructions):
        if isinstance(i, Run | Merge) or (isinstance(i, Move) and not i.kind.is_of_parameter):
            groups.setdefault(i.key, []).append(number)
    steps, count = program.plan.steps, program.plan.microbatches
    there = {(key.step, key.micro_batch) for key in groups}
    for step, micro in ((s, m) for s in range(steps) for m in range(count)):
        if (step, micro) not in there:
            raise InputError(f"nothing is run in step {step}, micro-batch {micro}.")
    if len(there) < len(groups):
        raise InputError("a micro-batch runs in two variants: its instructions disagree.")
    passed: list[list[tuple[object, ...]]] = []
    for key, numbers in groups.items():
        place = {number: at for at, number in enumerate(numbers)}
        waits = [
            frozenset(place[d] for d in program.instructions[n].deps if d in place) for n in numbers
        ]
        signature = [
            (key.variant, *_content(program.instructions[n]), w)
            for n, w in zip(numbers, waits, strict=True)
        ]
        if signature not in passed:
            _replay(every[key.variant], key, Progress(program, numbers))
            passed.append(signature)


def _content(i: Instruction) -> tuple[object, ...]:
    """What an instruction does, whenever it does it."""
    if isinstance(i, Run):
        return (i.op, i.phase, i.devices)
    if isinstance(i, Merge):
        return (i.op, i.phase, i.devices, i.cells)
    assert isinstance(i, Move)
    return (i.value, i.kind, i.messages)


def _replay(facts: Facts, key: Key, progress: Progress) -> None:
    """One micro-batch, and whether all of it is run."""
    forward = Forward(facts, progress)
    backward = Backward(facts, progress, forward)
    for at, number in enumerate(progress.numbers):
        progress.at = at
        i = facts.program.instructions[number]
        if isinstance(i, Run):
            if i.phase not in facts.phases(facts.ops[i.op]) and i.phase != "R":
                progress.refuse("the plan has no such part.")
            {"F": forward.run, "R": forward.recompute}.get(i.phase, backward.run)(i)
        elif isinstance(i, Merge):
            (forward.merge if i.phase == "F" else backward.unmerge)(i)
        elif isinstance(i, Move) and i.kind.between_operators:
            # ownership.py checks messages of parameters, waiting.py who waits for a signal
            whole = i.kind.subject is Subject.RESULT
            if i.kind.is_forward:
                (forward.activation if whole else forward.partial)(i)
            else:
                (backward.gradient if whole else backward.partial_gradient)(i)
    for op in facts.graph.ops:
        for phase in facts.phases(op):
            if (op.name, phase) not in progress.done:
                raise InputError(
                    f"'{op.name}' is never run {PHASES[phase]} in step {key.step}, "
                    f"micro-batch {key.micro_batch}."
                )
