"""Writes the instruction for each row of the step script (step_script.py).

A row is one operation: SUM, PUSH, UPDATE or PULL. Its subject is a whole parameter, a bucket or a block
(WholeParameterWriter), or a slice of a parameter (SliceWriter). A region is a box of a parameter with its
holders; a slice is a range of rows of a region (program.py). With bounded staleness, no holder is more than
`staleness` steps ahead of the slowest.
"""

# p: number of a parameter, d: device, s: region or slice

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from raddle.graph.box import Box
from raddle.plans.sync import Sync
from raddle.program.collective_kind import Collective
from raddle.program.instruction_writer import InstructionWriter, sorted_deps
from raddle.program.lower_variant import join_messages
from raddle.program.message_kind import MessageKind, Subject, check_all_kinds_sent
from raddle.program.parameter_layout import ParameterLayout, holders
from raddle.program.parameter_region import ParameterRegion
from raddle.program.program import Gather, Key, Message, Reduce, Update
from raddle.program.step_script import PULL, PUSH, SUM

# Importing fails if there is a kind of message about parameters that this file does not send.
check_all_kinds_sent((MessageKind.PUSH, MessageKind.PULL), Subject.PARAMETER)


class ScriptRow(NamedTuple):
    """A row of the step script. All are numbers; -1 means none."""

    operation: int  # SUM, PUSH, UPDATE or PULL
    subject: int  # a parameter, or a slice; of a bucket or block, its group (step_script.py)
    parameter: int  # the row waits for the gradient of this parameter
    after_row: int  # the row waits for this row
    members: Sequence[int]  # of a SUM of a bucket, or the PULL of a block: its parameters


class RowWriter(Protocol):
    """Writes the instruction of a row."""

    def parameter_name(self, row: ScriptRow) -> str:
        """The name of the parameter that a row is about; not for the SUM of a bucket."""

    def write(
        self, row: ScriptRow, key: Key, gradient: Sequence[int], before: Sequence[int]
    ) -> int:
        """Writes the instruction of a row, and returns its number.

        gradient, before: the instructions of the gradient and of the row that the row waits for.
        """

    def staleness_waits(self, row: ScriptRow, key: Key) -> Sequence[int]:
        """Updates of an earlier step that the next use of the parameter waits for (bounded staleness)."""


class WholeParameterWriter:
    """Writes rows about whole parameters: summed in buckets, sharded, or updated on a server."""

    def __init__(self, parameters: ParameterLayout, writer: InstructionWriter) -> None:
        self.parameters, self.writer = parameters, writer
        sync = parameters.plan.parsed_sync
        self.on_server = sync.in_order_server
        self.collective = Collective.REDUCE_SCATTER if sync.shards else Collective.ALL_REDUCE
        self.updates: dict[str, int] = {}  # by parameter, its last update

    def parameter_name(self, row: ScriptRow) -> str:
        return self.parameters.trainable[row.subject]

    def staleness_waits(self, row: ScriptRow, key: Key) -> Sequence[int]:
        return ()

    def write(
        self, row: ScriptRow, key: Key, gradient: Sequence[int], before: Sequence[int]
    ) -> int:
        deps = [*gradient, *before]
        if row.operation == SUM:
            names, synced, devices = self._members(row)
            return self.writer.emit(
                Reduce(names, key, synced, devices, sorted_deps(deps), self.collective)
            )
        if row.operation == PULL and row.members:
            names, synced, devices = self._members(row)
            updates = [self.updates[name] for name in names]
            return self.writer.emit(
                Gather(names, Key(key.step), synced, devices, sorted_deps(updates))
            )
        # held: all regions of the parameter
        name, held = (
            self.parameter_name(row),
            self.parameters.regions[self.parameter_name(row)],
        )
        if row.operation == PUSH:
            return self.writer.emit_move(
                name, MessageKind.PUSH, key, join_messages(_push_messages(held)), deps
            )
        if row.operation == PULL:
            return self.writer.emit_move(
                name,
                MessageKind.PULL,
                Key(key.step),  # of the step, not of a micro-batch
                join_messages(_pull_messages(held)),
                deps,
            )
        devices = tuple(sorted({s.server for s in held})) if self.on_server else holders(held)
        self.updates[name] = self.writer.emit(
            Update(name, Key(key.step), held, devices, sorted_deps(deps))
        )
        return self.updates[name]

    def _members(
        self, row: ScriptRow
    ) -> tuple[tuple[str, ...], tuple[tuple[ParameterRegion, ...], ...], tuple[int, ...]]:
        """The parameters of a bucket or block, the regions of each that are synchronised, all holders."""
        names = tuple(self.parameters.trainable[p] for p in row.members)
        synced = tuple(self.parameters.synced_regions(n) for n in names)
        return names, synced, holders(region for regions in synced for region in regions)


class SliceWriter:
    """Writes rows about slices.

    If updates are asynchronous, a server handles every holder on its own: it applies a gradient when it
    comes. With bounded staleness, the pull may have to wait for the slowest holder.
    """

    def __init__(self, parameters: ParameterLayout, writer: InstructionWriter) -> None:
        self.writer, self.sync = writer, parameters.plan.parsed_sync
        self.slices = synced_slices(parameters)
        self.updates: dict[tuple[str, Box, int], list[int]] = {}  # by parameter, box and step

    def parameter_name(self, row: ScriptRow) -> str:
        return self.slices[row.subject][0]

    def staleness_waits(self, row: ScriptRow, key: Key) -> Sequence[int]:
        name, slice_ = self.slices[row.subject]
        if self.sync.synchronous or self.sync.staleness is None:
            return ()
        return self.updates.get((name, slice_.box, key.step - self.sync.staleness), ())

    def write(
        self, row: ScriptRow, key: Key, gradient: Sequence[int], before: Sequence[int]
    ) -> int:
        name, slice_ = self.slices[row.subject]
        deps = [*gradient, *before]
        if row.operation == SUM:
            return self.writer.emit(
                Reduce((name,), key, ((slice_,),), slice_.devices, sorted_deps(deps))
            )
        if row.operation == PUSH:
            return self.writer.emit_move(
                name, MessageKind.PUSH, key, _push_messages([slice_]), deps
            )
        if row.operation == PULL:
            stale = self.staleness_waits(row, key)
            return self.writer.emit_move(
                name, MessageKind.PULL, key, _pull_messages([slice_]), [*deps, *stale]
            )
        devices = slice_.devices if slice_.server < 0 else (slice_.server,)
        if slice_.server >= 0 and slice_.server not in slice_.devices:
            deps = list(before)  # the server computes no gradient: it waits for the push
        at = self.writer.emit(Update(name, key, (slice_,), devices, sorted_deps(deps)))
        self.updates.setdefault((name, slice_.box, key.step), []).append(at)
        return at


def synced_slices(parameters: ParameterLayout) -> list[tuple[str, ParameterRegion]]:
    """All slices with the names of their parameters. A slice's place in the list is its number."""
    sync = parameters.plan.parsed_sync
    return [
        (name, slice_)
        for name, parameter_slices in parameters.slices.items()
        for slice_ in slices_by_holder(parameter_slices, sync)
    ]


def slices_by_holder(slices: Sequence[ParameterRegion], sync: Sync) -> list[ParameterRegion]:
    """The slices as they are, if updates are synchronous; else each slice once for each of its holders.

    Then a slice has one holder, because the server applies the gradient of each holder on its own.
    """
    if sync.synchronous:
        return list(slices)
    return [slice_._replace(devices=(d,)) for slice_ in slices for d in slice_.devices]


def _push_messages(regions: Sequence[ParameterRegion]) -> list[Message]:
    return [Message(d, s.server, (s.box,)) for s in regions for d in s.devices if d != s.server]


def _pull_messages(regions: Sequence[ParameterRegion]) -> list[Message]:
    return [Message(s.server, d, (s.box,)) for s in regions for d in s.devices if d != s.server]
