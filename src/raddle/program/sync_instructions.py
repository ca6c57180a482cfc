"""Writes the instruction for each row of the step script (step_script.py).

A row is one operation: SUM, PUSH, UPDATE or PULL. Its subject is a whole parameter, a bucket or a block
(WholeParameterWriter), or a bundle of slices (BundleWriter). A region is a box of a parameter with its
holders; a slice is a range of rows of a region; a bundle is slices that are synchronised together
(bundle.py). With bounded staleness, no holder is more than `staleness` steps ahead of the slowest.
"""

# p: number of a parameter, d: device, s: region or bundle

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from raddle.graph.box import Box
from raddle.plans.sync import Sync
from raddle.program.bundle import Bundle
from raddle.program.collective_kind import Collective
from raddle.program.instruction_writer import InstructionWriter, sorted_deps
from raddle.program.lower_variant import join_messages
from raddle.program.message_kind import MessageKind, Subject, check_all_kinds_sent
from raddle.program.parameter_layout import ParameterLayout, holders
from raddle.program.parameter_region import ParameterRegion
from raddle.program.program import Gather, Key, Message, Reduce, Update
from raddle.program.step_script import ALL_REDUCE, PULL, PUSH, SUM

# Importing fails if there is a kind of message about parameters that this file does not send.
check_all_kinds_sent((MessageKind.PUSH, MessageKind.PULL), Subject.PARAMETER)


class ScriptRow(NamedTuple):
    """A row of the step script (step_script.py). -1 means none."""

    operation: int  # SUM, PUSH, UPDATE or PULL
    subject: int  # a parameter, a bundle or, if the row is about a bucket or block, a group
    # of a SUM: ALL_REDUCE or REDUCE_SCATTER; of the PULL of a block: ALL_GATHER; else NO_COLLECTIVE
    collective: int
    # The row waits for the gradient of this parameter; if it is about a bundle, for those of all parameters
    # of the bundle.
    parameter: int
    after_row: int  # the row waits for this row
    # the parameters of the bucket or block, if the row is the SUM of a bucket or the PULL of a block
    members: Sequence[int]


class RowWriter(Protocol):
    """Writes the instruction of a row."""

    def parameter_names(self, row: ScriptRow) -> Sequence[str]:
        """Returns the parameters that a row is about. Not to be called for the SUM of a bucket."""

    def write(
        self, row: ScriptRow, key: Key, gradient: Sequence[int], before: Sequence[int]
    ) -> int:
        """Writes the instruction of a row, and returns its number.

        gradient: the instructions that compute the gradient that the row waits for. before: those of the
        rows that it waits for.
        """

    def staleness_waits(self, row: ScriptRow, key: Key) -> Sequence[int]:
        """Returns updates of an earlier step that the parameter's next use waits for, if any.

        There are such updates with bounded staleness only.
        """


class WholeParameterWriter:
    """Writes rows about whole parameters: summed in buckets, sharded, or updated on a server."""

    def __init__(self, parameters: ParameterLayout, writer: InstructionWriter) -> None:
        self.parameters, self.writer = parameters, writer
        sync = parameters.plan.parsed_sync
        self.on_server = sync.in_order_server
        self.shards = sync.shards
        self.updates: dict[str, int] = {}  # by parameter, its last update

    def parameter_names(self, row: ScriptRow) -> Sequence[str]:
        return (self.parameters.trainable[row.subject],)

    def staleness_waits(self, row: ScriptRow, key: Key) -> Sequence[int]:
        return ()

    def write(
        self, row: ScriptRow, key: Key, gradient: Sequence[int], before: Sequence[int]
    ) -> int:
        """Writes a Reduce, Move or Update or, to pull a block, a Gather (`RowWriter.write`)."""
        deps = [*gradient, *before]
        if row.operation == SUM:
            all_reduces = row.collective == ALL_REDUCE
            names, synced, devices = self._members(row, replicated=all_reduces and self.shards)
            collective = Collective.ALL_REDUCE if all_reduces else Collective.REDUCE_SCATTER
            return self.writer.emit(
                Reduce(names, key, synced, devices, sorted_deps(deps), collective)
            )
        if row.operation == PULL and row.members:
            names, synced, devices = self._members(row)
            updates = [self.updates[name] for name in names]
            return self.writer.emit(
                Gather(names, Key(key.step), synced, devices, sorted_deps(updates))
            )
        (name,) = self.parameter_names(row)
        regions = self.parameters.regions[name]
        if row.operation == PUSH:
            return self.writer.emit_move(
                name, MessageKind.PUSH, key, join_messages(_push_messages(regions)), deps
            )
        if row.operation == PULL:
            return self.writer.emit_move(
                name,
                MessageKind.PULL,
                Key(key.step),  # of the step, not of a micro-batch
                join_messages(_pull_messages(regions)),
                deps,
            )
        devices = tuple(sorted({s.server for s in regions})) if self.on_server else holders(regions)
        self.updates[name] = self.writer.emit(
            Update(name, Key(key.step), regions, devices, sorted_deps(deps))
        )
        return self.updates[name]

    def _members(
        self, row: ScriptRow, *, replicated: bool = False
    ) -> tuple[tuple[str, ...], tuple[tuple[ParameterRegion, ...], ...], tuple[int, ...]]:
        """Returns the parameters of a bucket or block, the synchronised regions of each, and all holders.

        replicated: only the regions whose shards have replicas.
        """
        names = tuple(self.parameters.trainable[p] for p in row.members)
        synced = tuple(self.parameters.synced_regions(n) for n in names)
        if replicated:
            synced = tuple(tuple(s for s in regions if s.group_size) for regions in synced)
        return names, synced, holders(region for regions in synced for region in regions)


class BundleWriter:
    """Writes rows about bundles: slices that are synchronised together.

    If updates are asynchronous, a server handles every holder on its own: it applies the gradient of a
    holder as soon as it arrives. With bounded staleness, a pull may have to wait for the slowest holder.
    """

    def __init__(self, parameters: ParameterLayout, writer: InstructionWriter) -> None:
        self.writer, self.sync = writer, parameters.plan.parsed_sync
        self.bundles = synced_bundles(parameters)
        # The updates of a bundle in a step, by parameters and boxes of the bundle, and step.
        self.updates: dict[tuple[tuple[str, ...], tuple[Box, ...], int], list[int]] = {}

    def parameter_names(self, row: ScriptRow) -> Sequence[str]:
        return self.bundles[row.subject].parameters

    def staleness_waits(self, row: ScriptRow, key: Key) -> Sequence[int]:
        bundle = self.bundles[row.subject]
        if self.sync.synchronous or self.sync.staleness is None:
            return ()
        step = key.step - self.sync.staleness
        return self.updates.get((bundle.parameters, bundle.boxes, step), ())

    def write(
        self, row: ScriptRow, key: Key, gradient: Sequence[int], before: Sequence[int]
    ) -> int:
        """Writes a Reduce, a Move or an Update of a bundle (`RowWriter.write`)."""
        bundle = self.bundles[row.subject]
        deps = [*gradient, *before]
        if row.operation == SUM:
            regions = tuple((slice_,) for slice_ in bundle.slices)
            return self.writer.emit(
                Reduce(bundle.parameters, key, regions, bundle.devices, sorted_deps(deps))
            )
        if row.operation == PUSH:
            return self._move(bundle, MessageKind.PUSH, key, _push_messages([bundle]), deps)
        if row.operation == PULL:
            deps += self.staleness_waits(row, key)
            return self._move(bundle, MessageKind.PULL, key, _pull_messages([bundle]), deps)
        devices = bundle.devices if bundle.server < 0 else (bundle.server,)
        if bundle.server >= 0 and bundle.server not in bundle.devices:
            deps = list(before)  # the server computes no gradient: it waits for the push
        update = Update(
            bundle.parameters[0], key, bundle.slices, devices, sorted_deps(deps), _bundled(bundle)
        )
        number = self.writer.emit(update)
        self.updates.setdefault((bundle.parameters, bundle.boxes, key.step), []).append(number)
        return number

    def _move(
        self, bundle: Bundle, kind: MessageKind, key: Key, messages: list[Message],
        deps: Sequence[int],
    ) -> int:  # fmt: skip
        name = bundle.parameters[0]
        return self.writer.emit_move(name, kind, key, messages, deps, _bundled(bundle))


def synced_bundles(parameters: ParameterLayout) -> list[Bundle]:
    """Returns all bundles as they are synchronised. A bundle's place in the list is its number."""
    return bundles_by_holder(parameters.cut.bundles, parameters.plan.parsed_sync)


def bundles_by_holder(bundles: Sequence[Bundle], sync: Sync) -> list[Bundle]:
    """Returns the bundles as they are, if updates are synchronous; else a bundle for each of their holders.

    Such a bundle has one holder, because the server applies the gradient of each holder on its own.
    """
    if sync.synchronous:
        return list(bundles)
    return [bundle.with_devices((d,)) for bundle in bundles for d in bundle.devices]


def _bundled(bundle: Bundle) -> tuple[str, ...]:
    """Returns the parameter of each slice; () for a bundle of one slice."""
    return bundle.parameters if len(bundle.slices) > 1 else ()


def _push_messages(sent: Sequence[ParameterRegion | Bundle]) -> list[Message]:
    """Returns the messages that bring regions or bundles from their holders to their servers."""
    return [Message(d, s.server, s.boxes) for s in sent for d in s.devices if d != s.server]


def _pull_messages(sent: Sequence[ParameterRegion | Bundle]) -> list[Message]:
    """Returns the messages that bring regions or bundles from their servers to their holders."""
    return [Message(s.server, d, s.boxes) for s in sent for d in s.devices if d != s.server]
