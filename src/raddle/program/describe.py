"""Describes an instruction in words, for error messages, as in: instruction 7 ('fc1' backward, ...).

It also has the names that the checks of a program share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from raddle.graph.box import Box
from raddle.program.program import (
    Gather,
    Instruction,
    Merge,
    Move,
    Reduce,
    Run,
)

# By device, its boxes of one value or parameter: a type that the files of program/checks use.
BoxesByDevice = Mapping[int, Sequence[Box]]
# By phase of a Run or Merge, its words.
PHASES = {"F": "forward", "R": "forward again", "B": "backward", "W": "backward to parameters"}


def describe(number: int, instruction: Instruction) -> str:
    """Returns a description such as: instruction 7 ('fc1' backward, step 0, micro-batch 1)."""
    where = f"step {instruction.key.step}, micro-batch {instruction.key.micro_batch}"
    if isinstance(instruction, Run):
        what = f"'{instruction.op}' {PHASES[instruction.phase]}"
    elif isinstance(instruction, Merge):
        what = f"merge of '{instruction.op}' {PHASES[instruction.phase]}"
    elif isinstance(instruction, Move):
        what = f"{instruction.kind} of '{instruction.value}'"
    elif isinstance(instruction, Reduce):
        what = f"reduce of {', '.join(repr(name) for name in instruction.parameters)}"
    elif isinstance(instruction, Gather):
        what = f"gather of {', '.join(repr(name) for name in instruction.parameters)}"
    else:
        what = f"{type(instruction).__name__.lower()} of '{instruction.parameter}'"
    return f"instruction {number} ({what}, {where})"
