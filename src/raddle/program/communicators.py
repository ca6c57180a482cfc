"""Lists the communicators that a program needs: the process groups whose ranks talk to each other.

A communicator takes seconds and memory to make, so there are few, whatever the number of messages:

    one for each distinct set of devices that take part in a collective; the first has all devices
    one for all messages up, from a device to one with a higher number
    one for all messages down; in a pipeline, up are the activations and down the gradients

The runtime makes the communicators of this list, in its order, on every rank before the first step. NCCL
runs the operations of a communicator one after the other, so its members issue them in program order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from raddle.program.program import Gather, Message, Move, Program, Reduce

UP, DOWN = 1, -1  # directions of messages: to a device with a higher, with a lower number


class Communicator(NamedTuple):
    """A set of devices that communicate, and what for: collectives, or messages in one direction."""

    devices: tuple[int, ...]  # in ascending order
    direction: int = 0  # of its messages, UP or DOWN; 0: it is for collectives

    def __str__(self) -> str:
        purpose = {0: "collectives", UP: "messages up", DOWN: "messages down"}[self.direction]
        return f"{purpose} over {', '.join(map(str, self.devices))}"


def communicators(program: Program) -> tuple[Communicator, ...]:
    """Returns the communicators of a program; none if it has one device. The first has all devices."""
    everyone = tuple(range(program.plan.devices))
    if len(everyone) == 1:
        return ()
    groups: dict[tuple[int, ...], None] = {everyone: None}  # a set that keeps its order
    directions: set[int] = set()
    for i in program.instructions:
        if isinstance(i, Reduce | Gather):
            groups.update(dict.fromkeys(groups_of(i)))
        elif isinstance(i, Move) and not is_sent_by_priority(program, i):
            directions.update(direction_of(message) for message in i.messages)
    return (
        *(Communicator(devices) for devices in groups),
        *(Communicator(everyone, direction) for direction in (UP, DOWN) if direction in directions),
    )


def most_on_a_device(needed: Sequence[Communicator]) -> int:
    """Returns the largest number of communicators that one device takes part in."""
    members = [device for communicator in needed for device in communicator.devices]
    return max((members.count(device) for device in set(members)), default=0)


def groups_of(collective: Reduce | Gather) -> tuple[tuple[int, ...], ...]:
    """Returns the distinct sets of devices that take part together, in the order of the regions.

    Every member starts its groups in this order.
    """
    rings = (
        ring
        for regions in collective.regions
        for region in regions
        for ring in region.rings(collective.collective)
    )
    return tuple(dict.fromkeys(rings))


def direction_of(message: Message) -> int:
    """Returns UP or DOWN."""
    return UP if message.source < message.target else DOWN


def is_sent_by_priority(program: Program, move: Move) -> bool:
    """Returns whether a move has connections of its own: it sends slices of parameters, by priority."""
    return bool(program.slices) and move.kind.is_of_parameter
