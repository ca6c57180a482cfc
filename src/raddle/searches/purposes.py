"""Counts the bytes that a plan sends between devices, by purpose: activations, parameters and so on."""

from __future__ import annotations

from raddle.costs.collectives import collective_bytes
from raddle.program.message_kind import Purpose
from raddle.program.program import Gather, Move, Program, Reduce, buffer_bytes, message_bytes


def bytes_by_purpose(program: Program) -> dict[str, int]:
    """Returns the bytes sent between devices in an average step, by name of the purpose.

    Their sum is the metric `comm_bytes`.

    A Move sends boxes of a value; a Reduce sums gradients, a Gather gathers sharded parameters.
    """
    totals = dict.fromkeys(Purpose, 0)
    # Cache by value and list of messages: the Moves of later steps share the lists of the first step.
    bytes_of_move: dict[tuple[str, int], int] = {}
    for instruction in program.instructions:
        if isinstance(instruction, Move):
            key = (instruction.value, id(instruction.messages))
            if key not in bytes_of_move:
                bytes_of_move[key] = sum(
                    message_bytes(program, instruction, m) for m in instruction.messages
                )
            totals[instruction.kind.purpose] += bytes_of_move[key]
        elif isinstance(instruction, Reduce | Gather):
            totals[Purpose.PARAMETERS] += sum(
                collective_bytes(instruction.collective, len(devices), nbytes)
                for devices, nbytes in buffer_bytes(program, instruction).items()
            )
    per_step, before, steps = dict[str, int](), 0, program.plan.steps
    # Cumulative totals are divided by the steps, so that rounding does not change the sum.
    for purpose, total in totals.items():
        per_step[purpose.value] = (before + total) // steps - before // steps
        before += total
    return per_step
