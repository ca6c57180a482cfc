"""Refuses a program by an InputError that names the wrong instruction and the reason.

All checks in this folder use it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

from raddle.errors import InputError
from raddle.program.describe import describe
from raddle.program.program import Program


def refuse(program: Program, number: int, reason: str) -> NoReturn:
    """Raises InputError: instruction `number` is wrong."""
    raise InputError(f"{describe(number, program.instructions[number])}: {reason}")


def check_waits_for(program: Program, number: int, others: Iterable[int]) -> None:
    """Raises InputError unless the `deps` of instruction `number` name all of `others`."""
    missing = set(others) - set(program.instructions[number].deps)
    if missing:
        first = min(missing)
        what = describe(first, program.instructions[first])
        refuse(program, number, f"it does not wait for {what}.")
