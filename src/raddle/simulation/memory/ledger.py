"""Keeps the ledger of simulated memory: entries (device, bytes, begin, end), alive from begin to end.

The ledger also looks up in the timeline when instructions run and when messages are sent. A Move is the
instruction that sends messages (program/program.py). A task is one device's share of an instruction, or one
of its messages.
"""

# Times are in nanoseconds. Memory that is alive from a to b counts at time a, and no longer at time b.

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from raddle.program.program import Move, held_element_bytes, message_bytes
from raddle.simulation.timeline import Timeline

Array = np.ndarray

NEVER = np.iinfo(np.int64).max  # the start of an instruction on a device where it does not run


class Span(NamedTuple):
    """By device, when an instruction starts and ends; (NEVER, -1) if it does not run there."""

    start: Array
    end: Array


class Flight(NamedTuple):
    """The messages of a Move instruction, as arrays over the messages."""

    source: Array  # device
    target: Array  # device
    nbytes: Array
    start: Array  # when its transfer starts
    end: Array

    def concatenated(self, other: Flight) -> Flight:
        """Returns the messages of both; a gradient may return in several moves, one from each stage."""
        return Flight(*(np.concatenate(pair) for pair in zip(self, other, strict=True)))


class Ledger:
    """The entries of a timeline. through_host: messages wait in the host's memory (see peaks.py)."""

    def __init__(self, timeline: Timeline, *, through_host: bool = False) -> None:
        self.timeline, self.program = timeline, timeline.program
        self.through_host = through_host
        self.devices = np.arange(self.program.plan.devices)
        self.columns: list[tuple[Array, Array, Array, Array]] = []  # device, bytes, begin, end
        numbers = np.arange(len(self.program.instructions) + 1)
        # By instruction, the number of its first task; tasks are sorted by instruction.
        self.first_task = np.searchsorted(timeline.tasks.instruction, numbers)
        self.message_sizes: dict[int, Array] = {}  # by id of a tuple of messages: bytes of each

    def add(self, device: Array, nbytes: Array, begin: Array, end: Array) -> None:
        """Adds entries; all arguments are arrays of the same length."""
        allocated = (nbytes > 0) & (begin < end)
        self.columns.append(
            (device[allocated], nbytes[allocated], begin[allocated], end[allocated])
        )

    def add_by_device(self, nbytes: Array, begin: Array, end: Array) -> None:
        """Adds an entry for every device; the arguments are arrays by device."""
        self.add(self.devices, nbytes, begin, end)

    def entries(self) -> list[Array]:
        """Returns all entries as columns: device, bytes, begin, end."""
        if not self.columns:
            return [np.empty(0, np.int64)] * 4
        return [np.concatenate(column) for column in zip(*self.columns, strict=True)]

    def empty_span(self) -> Span:
        """Returns the span of an instruction that runs on no device."""
        return Span(np.full(len(self.devices), NEVER), np.full(len(self.devices), -1))

    def span(self, number: int) -> Span:
        """Returns when each device executes an instruction; number: of the instruction."""
        a, b = self.first_task[number : number + 2]  # its tasks are a to b - 1
        start, end = self.empty_span()
        devices = self.timeline.tasks.device[a:b]
        start[devices], end[devices] = self.timeline.start[a:b], self.timeline.end[a:b]
        return Span(start, end)

    def collective_span(self, number: int) -> Span:
        """Returns when each device takes part in a collective; number: of the instruction."""
        tasks, (a, b) = self.timeline.tasks, self.first_task[number : number + 2]
        transfers = a + np.flatnonzero(
            tasks.nbytes[a:b]
        )  # its other tasks wait, or are host overhead
        start, end = self.empty_span()
        np.minimum.at(start, tasks.device[transfers], self.timeline.start[transfers])
        np.maximum.at(end, tasks.device[transfers], self.timeline.end[transfers])
        return Span(start, end)

    def flight(self, number: int, move: Move) -> Flight:
        """Returns the messages of a move; number: of the instruction."""
        a = self.first_task[number]  # the first tasks of a move are its messages, in their order
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
        """Returns by message the time from which it no longer takes memory on its source."""
        return flight.start if self.through_host else flight.end

    def arrival(self, flight: Flight, first_use: Array) -> Array:
        """Returns by message the time from which it takes memory on its target.

        This is the start of its transfer or, through the host, its first use. first_use: by device, when it
        first uses the value (NEVER: not at all).
        """
        if not self.through_host:
            return flight.start
        first = first_use[flight.target]
        return np.where(first < NEVER, np.maximum(flight.end, first), flight.end)

    def parameter_bytes(self, name: str) -> Array:
        """Returns by device the bytes of a parameter that it holds; its gradient has as many."""
        nbytes = np.zeros(len(self.devices), np.int64)
        for region in self.program.regions[name]:
            width = held_element_bytes(self.program, name)
            nbytes[list(region.devices)] += region.box.volume * width
        return nbytes
