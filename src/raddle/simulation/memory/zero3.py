"""Memory of parameters that are divided among devices, as far as it does not last.

rows of others    from the start of the message that brings them (its buffer is there before it arrives)
                  to the end of the last run that waits for it and reads them
own rows, again   in the whole parameter: from the first run that waits for its rows to the same end
gradient          from the first backward that adds to it until all of it is pushed or, at home, applied
"""

# d: device; times are in nanoseconds, as in ledger.py

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from raddle.program.checks.zero3 import uses_of_pulls
from raddle.program.program import Move, Program, Run, Update
from raddle.program.weight_versions import parameters_by_op
from raddle.simulation.memory.ledger import Array, Ledger


def record_divided(ledger: Ledger) -> None:
    """Adds what divided parameters and their gradients take for a while."""
    _record_wholes(ledger)
    for (name, _), given in _gradients(ledger.program).items():
        _record_gradient(ledger, name, given)


def _record_wholes(ledger: Ledger) -> None:
    for number, use in uses_of_pulls(ledger.program).items():
        pull = ledger.program.instructions[number]
        assert isinstance(pull, Move)
        first, _ = _around(ledger, use.waiting)
        _, last = _around(ledger, use.reading)
        flight = ledger.flight(number, pull)
        begin = flight.start
        if ledger.through_host:
            begin = np.maximum(flight.end, first[flight.target])
        ledger.add(flight.target, flight.nbytes, begin, np.maximum(flight.end, last[flight.target]))
        ledger.add_by_device(_own_rows(ledger, pull), first, last)


def _around(ledger: Ledger, numbers: Sequence[int]) -> tuple[Array, Array]:
    """By device, when the first of some instructions starts and the last ends."""
    first, last = ledger.absent()
    for number in numbers:
        span = ledger.span(number)
        first, last = np.minimum(first, span.start), np.maximum(last, span.end)
    return first, last


def _own_rows(ledger: Ledger, pull: Move) -> Array:
    """By device that is sent rows of a share, the bytes of those that it has: it puts them together."""
    program, nbytes = ledger.program, np.zeros(len(ledger.devices), np.int64)
    width = program.element_bytes(pull.value)
    for share in program.regions[pull.value]:
        sent = {m.target for m in pull.messages if any(not (b & share.box).empty for b in m.boxes)}
        for s in program.slices[pull.value]:
            if s.server in sent and share.box.contains(s.box):
                nbytes[s.server] += s.box.volume * width
    return nbytes


class _Given(NamedTuple):
    """What happens to a parameter's gradient in a step, as numbers of instructions."""

    backward: list[int]
    pushes: list[int]
    updates: list[int]


def _gradients(program: Program) -> dict[tuple[str, int], _Given]:
    """By divided parameter and step."""
    found: dict[tuple[str, int], _Given] = {}
    read = parameters_by_op(program.graph)

    def of(name: str, step: int) -> _Given:
        return found.setdefault((name, step), _Given([], [], []))

    for number, i in enumerate(program.instructions):
        if isinstance(i, Run) and i.phase == "B":
            for name in (n for n in read[i.op] if n in program.slices):
                of(name, i.key.step).backward.append(number)
        elif isinstance(i, Move) and i.kind.is_push:
            of(i.value, i.key.step).pushes.append(number)
        elif isinstance(i, Update) and i.parameter in program.slices:
            of(i.parameter, i.key.step).updates.append(number)
    return found


def _record_gradient(ledger: Ledger, name: str, given: _Given) -> None:
    first, _ = _around(ledger, given.backward)
    _, last = _around(ledger, given.updates)
    for number in given.pushes:
        push = ledger.program.instructions[number]
        assert isinstance(push, Move)
        flight = ledger.flight(number, push)
        np.maximum.at(last, flight.source, ledger.gone(flight))
    ledger.add_by_device(ledger.nbytes_of(name), first, last)
