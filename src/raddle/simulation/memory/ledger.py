"""What is alive for a while: device, bytes, from when, until when; and when a timeline does what."""

# times are in nanoseconds; what is alive from a to b counts at a and no more at b

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from raddle.program.program import Move, message_bytes
from raddle.simulation.timeline import Timeline

Array = np.ndarray

NEVER = np.iinfo(np.int64).max


class Span(NamedTuple):
    """By device, when something starts (or NEVER) and ends (or -1)."""

    start: Array
    end: Array


class Flight(NamedTuple):
    """Messages of one move."""

    source: Array
    target: Array
    nbytes: Array
    start: Array
    end: Array

    def concatenated(self, other: Flight) -> Flight:
        """Stages return their parts of a gradient one by one."""
        return Flight(*(np.concatenate(pair) for pair in zip(self, other, strict=True)))


class Ledger:
    """Entries of a timeline. `through_host`: messages wait in the host's memory (peaks.py)."""

    def __init__(self, timeline: Timeline, *, through_host: bool = False) -> None:
        self.timeline, self.program = timeline, timeline.program
        self.through_host = through_host
        self.devices = np.arange(self.program.plan.devices)
        self.columns: list[tuple[Array, Array, Array, Array]] = []
        numbers = np.arange(len(self.program.instructions) + 1)
        self.first_task = np.searchsorted(timeline.tasks.instruction, numbers)
        self.message_sizes: dict[int, Array] = {}

    def add(self, device: Array, nbytes: Array, begin: Array, end: Array) -> None:
        """Entries of some devices."""
        real = (nbytes > 0) & (begin < end)
        self.columns.append((device[real], nbytes[real], begin[real], end[real]))

    def add_by_device(self, nbytes: Array, begin: Array, end: Array) -> None:
        """An entry of every device."""
        self.add(self.devices, nbytes, begin, end)

    def entries(self) -> list[Array]:
        """Columns: device, bytes, begin, end."""
        if not self.columns:
            return [np.empty(0, np.int64)] * 4
        return [np.concatenate(column) for column in zip(*self.columns, strict=True)]

    def empty_span(self) -> Span:
        """When nothing happens."""
        return Span(np.full(len(self.devices), NEVER), np.full(len(self.devices), -1))

    def span(self, number: int) -> Span:
        """When each device executes an instruction."""
        a, b = self.first_task[number : number + 2]
        start, end = self.empty_span()
        devices = self.timeline.tasks.device[a:b]
        start[devices], end[devices] = self.timeline.start[a:b], self.timeline.end[a:b]
        return Span(start, end)

    def flight(self, number: int, move: Move) -> Flight:
        """When each message is on its way; the tasks of an instruction start with its messages."""
        a = self.first_task[number]
        b = a + len(move.messages)
        key = id(move.messages)
        if key not in self.message_sizes:
            self.message_sizes[key] = np.array(
                [message_bytes(self.program, move, m) for m in move.messages]
            )
        t = self.timeline
        return Flight(
            t.tasks.source[a:b],
            t.tasks.device[a:b],
            self.message_sizes[key],
            t.start[a:b],
            t.end[a:b],
        )

    def departure(self, flight: Flight) -> Array:
        """When each message has left its device."""
        return flight.start if self.through_host else flight.end

    def arrival(self, flight: Flight, first_use: Array) -> Array:
        """When each message is on the device that it goes to; `used`: by device, when it is used."""
        if not self.through_host:
            return flight.start
        first = first_use[flight.target]
        return np.where(first < NEVER, np.maximum(flight.end, first), flight.end)

    def parameter_bytes(self, name: str) -> Array:
        """By device, of a parameter."""
        nbytes = np.zeros(len(self.devices), np.int64)
        for region in self.program.regions[name]:
            nbytes[list(region.devices)] += region.box.volume * self.program.element_bytes(name)
        return nbytes
