"""The instruction of a row of the script, for whole parameters and for slices of them."""

# p: parameter

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from raddle.graph.box import Box
from raddle.plans.sync import Sync
from raddle.program.instruction_writer import InstructionWriter, sorted_deps
from raddle.program.lower_variant import join_messages
from raddle.program.message_kind import MessageKind, Subject, check_all_kinds_sent
from raddle.program.parameter_layout import ParameterLayout, holders
from raddle.program.program import Key, Message, ParameterRegion, Reduce, Update
from raddle.program.step_script import PULL, PUSH, SUM

check_all_kinds_sent((MessageKind.PUSH, MessageKind.PULL), Subject.PARAMETER)


class Row(NamedTuple):
    """A row of the script (script.py has the columns)."""

    what: int
    subject: int
    parameter: int
    after: int
    members: Sequence[int]


class Hanging(Protocol):
    """Writes the instruction of a row."""

    def name(self, row: Row) -> str:
        """The parameter that a row other than a sum is about."""

    def write(self, row: Row, key: Key, gradient: Sequence[int], before: Sequence[int]) -> int:
        """The number of its instruction; `gradient` and `before` are what the row waits for."""

    def late(self, row: Row, key: Key) -> Sequence[int]:
        """What else the next use of what the row wrote waits for."""


class Whole:
    """Rows about whole parameters: summed in buckets, or through a server."""

    def __init__(self, known: ParameterLayout, writer: InstructionWriter) -> None:
        self.known, self.writer = known, writer
        self.served = known.plan.syncing.inline

    def name(self, row: Row) -> str:
        return self.known.trainable[row.subject]

    def late(self, row: Row, key: Key) -> Sequence[int]:
        return ()

    def write(self, row: Row, key: Key, gradient: Sequence[int], before: Sequence[int]) -> int:
        deps = [*gradient, *before]
        if row.what == SUM:
            names = tuple(self.known.trainable[p] for p in row.members)
            shares = tuple(self.known.synced_regions(n) for n in names)
            devices = holders(s for own in shares for s in own)
            return self.writer.emit(Reduce(names, key, shares, devices, sorted_deps(deps)))
        name, own = self.name(row), self.known.regions[self.name(row)]
        if row.what == PUSH:
            return self.writer.emit_move(name, MessageKind.PUSH, key, join_messages(_up(own)), deps)
        if row.what == PULL:
            return self.writer.emit_move(
                name, MessageKind.PULL, Key(key.step), join_messages(_down(own)), deps
            )
        devices = tuple(sorted({s.server for s in own})) if self.served else holders(own)
        return self.writer.emit(Update(name, Key(key.step), own, devices, sorted_deps(deps)))


class Sliced:
    """Rows about slices. Without a barrier of all workers, each is served on its own: its gradient is
    applied as it comes, and its answer may have to wait for the slowest."""

    def __init__(self, known: ParameterLayout, writer: InstructionWriter) -> None:
        self.writer, self.sync = writer, known.plan.syncing
        self.pieces = pieces_of(known)
        self.updates: dict[tuple[str, Box, int], list[int]] = {}  # of a slice in a step

    def name(self, row: Row) -> str:
        return self.pieces[row.subject][0]

    def late(self, row: Row, key: Key) -> Sequence[int]:
        name, share = self.pieces[row.subject]
        if self.sync.synchronous or self.sync.staleness is None:
            return ()
        return self.updates.get((name, share.box, key.step - self.sync.staleness), ())

    def write(self, row: Row, key: Key, gradient: Sequence[int], before: Sequence[int]) -> int:
        name, share = self.pieces[row.subject]
        deps = [*gradient, *before]
        if row.what == SUM:
            return self.writer.emit(
                Reduce((name,), key, ((share,),), share.devices, sorted_deps(deps))
            )
        if row.what == PUSH:
            return self.writer.emit_move(name, MessageKind.PUSH, key, _up([share]), deps)
        if row.what == PULL:
            late = self.late(row, key)
            return self.writer.emit_move(
                name, MessageKind.PULL, key, _down([share]), [*deps, *late]
            )
        devices = share.devices if share.server < 0 else (share.server,)
        if share.server >= 0 and share.server not in share.devices:
            deps = list(before)
        at = self.writer.emit(Update(name, key, (share,), devices, sorted_deps(deps)))
        self.updates.setdefault((name, share.box, key.step), []).append(at)
        return at


def pieces_of(known: ParameterLayout) -> list[tuple[str, ParameterRegion]]:
    """What is synchronised, in the order of its numbers."""
    sync = known.plan.syncing
    return [
        (name, piece) for name, own in known.slices.items() for piece in served_alone(own, sync)
    ]


def served_alone(slices: Sequence[ParameterRegion], sync: Sync) -> list[ParameterRegion]:
    """Slices of a parameter, each for all workers or, without a barrier, for one after the other."""
    if sync.synchronous:
        return list(slices)
    return [share._replace(devices=(d,)) for share in slices for d in share.devices]


def _up(shares: Sequence[ParameterRegion]) -> list[Message]:
    return [Message(d, s.server, (s.box,)) for s in shares for d in s.devices if d != s.server]


def _down(shares: Sequence[ParameterRegion]) -> list[Message]:
    return [Message(s.server, d, (s.box,)) for s in shares for d in s.devices if d != s.server]
