"""Checks that all devices enter collectives and batches of messages in one order: else they deadlock.

A device that enters a collective waits until all other members have entered it. Two devices that enter two
of them in different orders wait for each other; three devices may do so in a ring:

    device 0 enters   A over 0, 1    then B over 0, 2
    device 1 enters   C over 1, 2    then A                 no device gets past its first collective
    device 2 enters   B              then C

Every device executes the list of instructions in its order, so the order is the same on all; but where a
schedule is greedy, a device chooses at run time which step goes on. `check_orders` also takes orders that
do not come from one list, as tests make them. The messages of one instruction in one direction (UP: to a
device with a higher number, DOWN: to a lower one) are a batch, which NCCL runs as it runs a collective
(communicators.py).
"""

# d, e: devices

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from raddle.errors import InputError
from raddle.plans.pipelining import is_greedy
from raddle.program.checks.refuse import refuse
from raddle.program.communicators import (
    DOWN,
    UP,
    Communicator,
    direction_of,
    is_sent_by_priority,
)
from raddle.program.describe import describe
from raddle.program.program import Gather, Move, Program, Reduce


class Entry(NamedTuple):
    """A collective, or a batch of messages, that devices enter together."""

    instruction: int  # the number of the instruction
    place: int  # the entry's place among those of the same instruction
    devices: tuple[int, ...]  # the devices that enter it
    communicator: Communicator


def check_collective_order(program: Program) -> None:
    """Checks that every device enters what it takes part in, and that the orders of all agree."""
    for entry in entries(program):
        i = program.instructions[entry.instruction]
        left_out = set() if isinstance(i, Move) else set(entry.devices) - set(i.devices)
        if left_out:
            refuse(
                program,
                entry.instruction,
                f"device {min(left_out)} takes part in its {entry.communicator}, but does not execute it.",
            )
    if is_greedy(program.plan):
        _check_steps_apart(program)
    check_orders(program, orders(program))


def entries(program: Program) -> Iterator[Entry]:
    """Yields the entries in the order in which their devices enter them."""
    everyone = tuple(range(program.plan.devices))
    for number, i in enumerate(program.instructions):
        if isinstance(i, Reduce | Gather):
            # Regions with the same holders and of the same dtype share a buffer.
            buffers = {
                (region.devices, program.graph.values[name].dtype): region
                for name, regions in zip(i.parameters, i.regions, strict=True)
                for region in regions
            }
            rings = [ring for r in buffers.values() for ring in r.rings(i.collective)]
            for place, devices in enumerate(rings):
                yield Entry(number, place, devices, Communicator(devices))
        elif isinstance(i, Move) and not is_sent_by_priority(program, i):
            for place, direction in enumerate((UP, DOWN)):
                messages = [m for m in i.messages if direction_of(m) == direction]
                if messages:
                    ends = {d for m in messages for d in (m.source, m.target)}
                    communicator = Communicator(everyone, direction)
                    yield Entry(number, place, tuple(sorted(ends)), communicator)


def orders(program: Program) -> dict[int, list[Entry]]:
    """Returns, by device, what it enters, in the order in which it does so."""
    by_device: dict[int, list[Entry]] = {d: [] for d in range(program.plan.devices)}
    for entry in entries(program):
        for d in entry.devices:
            by_device[d].append(entry)
    return by_device


def check_orders(program: Program, by_device: Mapping[int, Sequence[Entry]]) -> None:
    """Checks that with these orders, no device waits for ever. by_device: what each enters, in order."""
    waiting = find_deadlock(by_device)
    if waiting:
        places = ", ".join(
            f"device {d} in {describe(entry.instruction, program.instructions[entry.instruction])}"
            for d, entry in waiting.items()
        )
        raise InputError(
            f"devices wait for each other for ever, {places}: all must enter collectives and batches of "
            "messages in the same order."
        )


def find_deadlock(by_device: Mapping[int, Sequence[Entry]]) -> dict[int, Entry]:
    """Returns a ring of devices, each of which waits for the next, with what each waits in; empty: none.

    Entries are completed one by one, each when it is the next entry of all its devices.
    """
    done = dict.fromkeys(by_device, 0)  # by device, how many entries are complete
    # By instruction and place of an entry that is not complete, how many devices are in it.
    waiting: dict[tuple[int, int], int] = {}
    arrived = list(by_device)  # devices that have reached another entry
    while arrived:
        d = arrived.pop()
        if done[d] == len(by_device[d]):
            continue
        entry = by_device[d][done[d]]
        key = entry.instruction, entry.place
        waiting[key] = waiting.get(key, 0) + 1
        if waiting[key] == len(entry.devices):
            del waiting[key]
            for e in entry.devices:
                done[e] += 1
                arrived.append(e)
    return _ring(by_device, done)


def _ring(by_device: Mapping[int, Sequence[Entry]], done: Mapping[int, int]) -> dict[int, Entry]:
    """Returns devices that wait for each other in a ring. done: how many entries each has completed."""
    stuck = {d: order[done[d]] for d, order in by_device.items() if done[d] < len(order)}
    seen: list[int] = []
    d = next(iter(stuck), -1)
    while d in stuck and d not in seen:
        seen.append(d)
        # Go on with a device that should be in this entry and is not: it is in another, or has finished.
        d = next(e for e in stuck[d].devices if stuck.get(e) != stuck[d])
    ring = seen[seen.index(d) :] if d in seen else seen
    return {d: stuck[d] for d in ring}


def _check_steps_apart(program: Program) -> None:
    """Checks that no two devices enter collectives together in several steps of a greedy schedule."""
    last: dict[tuple[int, int], tuple[int, int]] = {}  # by pair of devices: step, instruction
    for entry in entries(program):
        # Messages cannot be confused: only gloo runs greedy schedules, and it matches messages by tags.
        if entry.communicator.direction:
            continue
        step = program.instructions[entry.instruction].key.step
        for pair in ((d, e) for d in entry.devices for e in entry.devices if d < e):
            other_step, other = last.setdefault(pair, (step, entry.instruction))
            if other_step != step:
                what = describe(other, program.instructions[other])
                refuse(
                    program,
                    entry.instruction,
                    f"devices {pair[0]} and {pair[1]} may enter it before or after {what}, as the schedule "
                    f"'{program.plan.schedule}' does not fix the order of steps.",
                )
