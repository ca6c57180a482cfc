"""ZeRO-3: memory of gathered parameters and of gradients; the shards themselves are in persistent.py.

A pull is the Move that gathers a parameter before use. The servers of a parameter are the devices that hold
and update its shards. A run is an instruction that computes an operator.

    received shards     from the start of the message that brings them (its buffer is allocated before) to
                        the end of the last run that waits for the message and reads them
    copy of own shard   (a server copies its shard into the gathered parameter) from the start of the first
                        run that waits for the message to the same end
    gradient            from the first backward that adds to it until it has been pushed to its servers; on
                        a server, until the update has ended
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


def record_zero3(ledger: Ledger) -> None:
    """Adds the entries of gathered parameters and of their gradients to the ledger."""
    _record_gathered(ledger)
    for (name, _), numbers in _gradient_instructions(ledger.program).items():
        _record_gradient(ledger, name, numbers)


def _record_gathered(ledger: Ledger) -> None:
    """Adds the gathered parameters."""
    for number, use in uses_of_pulls(ledger.program).items():
        pull = ledger.program.instructions[number]
        assert isinstance(pull, Move)
        # use.waiting: the runs that wait for the pull; use.reading: those of them that read the parameter
        first, _ = _first_start_and_last_end(ledger, use.waiting)
        _, last = _first_start_and_last_end(ledger, use.reading)
        flight = ledger.flight(number, pull)
        begin = flight.start
        if ledger.through_host:
            begin = np.maximum(flight.end, first[flight.target])
        ledger.add(flight.target, flight.nbytes, begin, np.maximum(flight.end, last[flight.target]))
        ledger.add_by_device(_own_shard_bytes(ledger, pull), first, last)


def _first_start_and_last_end(ledger: Ledger, numbers: Sequence[int]) -> tuple[Array, Array]:
    """By device, when the first of some instructions starts, and when the last one ends."""
    first, last = ledger.empty_span()
    for number in numbers:
        span = ledger.span(number)
        first, last = np.minimum(first, span.start), np.maximum(last, span.end)
    return first, last


def _own_shard_bytes(ledger: Ledger, pull: Move) -> Array:
    """By device: the bytes of its own shards of the regions that it gathers, 0 if it receives nothing.

    A device copies its own shard into the gathered parameter, next to the received shards.
    """
    program, nbytes = ledger.program, np.zeros(len(ledger.devices), np.int64)
    element_bytes = program.element_bytes(pull.value)
    for region in program.regions[pull.value]:
        receivers = {
            m.target for m in pull.messages if any(not (b & region.box).empty for b in m.boxes)
        }
        for s in program.slices[pull.value]:
            if s.server in receivers and region.box.contains(s.box):
                nbytes[s.server] += s.box.volume * element_bytes
    return nbytes


class _GradientInstructions(NamedTuple):
    """The instructions of a parameter's gradient in one step, as their numbers."""

    backward: list[int]  # runs
    pushes: list[int]  # messages to the servers
    updates: list[int]


def _gradient_instructions(program: Program) -> dict[tuple[str, int], _GradientInstructions]:
    """By (sharded parameter, step)."""
    by_parameter: dict[tuple[str, int], _GradientInstructions] = {}
    read = parameters_by_op(program.graph)

    def entry(name: str, step: int) -> _GradientInstructions:
        return by_parameter.setdefault((name, step), _GradientInstructions([], [], []))

    for number, i in enumerate(program.instructions):
        if isinstance(i, Run) and i.phase == "B":
            for name in (n for n in read[i.op] if n in program.slices):
                entry(name, i.key.step).backward.append(number)
        elif isinstance(i, Move) and i.kind.is_push:
            entry(i.value, i.key.step).pushes.append(number)
        elif isinstance(i, Update) and i.parameter in program.slices:
            entry(i.parameter, i.key.step).updates.append(number)
    return by_parameter


def _record_gradient(ledger: Ledger, name: str, numbers: _GradientInstructions) -> None:
    """Adds the gradient of a parameter in one step."""
    first, _ = _first_start_and_last_end(ledger, numbers.backward)
    _, last = _first_start_and_last_end(ledger, numbers.updates)
    for number in numbers.pushes:
        push = ledger.program.instructions[number]
        assert isinstance(push, Move)
        flight = ledger.flight(number, push)
        np.maximum.at(last, flight.source, ledger.departure(flight))
    ledger.add_by_device(ledger.parameter_bytes(name), first, last)
