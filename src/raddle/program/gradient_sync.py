"""Writes the instructions that synchronise gradients and update parameters.

`lower` calls `GradientSync` for every contribution to a gradient, and at the end of an action or a step.
Each call is an event for the step script, a table of what is to be done (step_script.py). For each row that
the event adds to the table, `GradientSync` writes an instruction (sync_instructions.py).

A region is a box of a parameter with its holders; a bundle is slices of regions that are synchronised
together (bundle.py). A group is all parameters whose gradients are summed by the same sets of devices, in
a bucket of their own; with shards, those of one block (parameter_blocks.py).
"""

# p: number of a parameter, s: number of a bundle, n: row of the step script

from __future__ import annotations

from itertools import accumulate, chain

from raddle.plans.sync import Sync
from raddle.program import step_script
from raddle.program.bundle import Bundle
from raddle.program.instruction_writer import InstructionWriter
from raddle.program.parameter_layout import ParameterLayout, holders
from raddle.program.program import Key
from raddle.program.step_script import (
    AFTER_ROW,
    COLUMNS,
    COUNTERS,
    ROWS,
    SUMMED,
    ScriptState,
    SyncFacts,
)
from raddle.program.sync_instructions import (
    BundleWriter,
    RowWriter,
    ScriptRow,
    WholeParameterWriter,
    synced_bundles,
)
from raddle.program.turns import Turns


class GradientSync:
    """The synchronisation of all parameters of a program.

    overlap: whether steps overlap, so that a parameter is updated as soon as its gradient is complete.
    """

    def __init__(
        self, parameters: ParameterLayout, writer: InstructionWriter, *, overlap: bool
    ) -> None:
        self.parameters, self.writer = parameters, writer
        sync, bundles = parameters.plan.parsed_sync, synced_bundles(parameters)
        self.parameter_number = {name: p for p, name in enumerate(parameters.trainable)}
        self.facts = _sync_facts(parameters, bundles, overlap=overlap)
        sliced = sync.sliced and not overlap  # rows of the script are about bundles, not parameters
        self.row_writer: RowWriter = (BundleWriter if sliced else WholeParameterWriter)(
            parameters, writer
        )
        # By parameter and step, the instructions that contribute to its gradient.
        self.contributions: dict[tuple[str, int], list[int]] = {}
        # By parameter, the instructions that its next use waits for: of the steps before, and of this step.
        self.last_writers: dict[str, list[int]] = {}
        self.new_writers: dict[str, list[int]] = {}
        self._begin_step()

    def _begin_step(self) -> None:
        """Starts an empty script: up to 4 rows per parameter and per bundle.

        They are SUM or PUSH, the SUM over replicas of shards, UPDATE and PULL.
        """
        self.rows = [0] * (4 * (len(self.parameter_number) + len(self.facts.needs_sync)) * COLUMNS)
        self.state = _new_state(self.facts, self.rows)
        self.row_instructions: list[int] = []  # by row, the number of its instruction
        # A program of forwards only has no gradients, and so no bundles to order.
        order = (
            self.parameters.plan.order if self.facts.ordered_sums and self.facts.needs_sync else ()
        )
        # The bundles whose all-reduces have to start in the order of the plan (turns.py).
        self.turns = Turns([s for s in order if self.facts.needs_sync[s]])

    def contribute(self, name: str, key: Key, number: int) -> None:
        """Notes that instruction `number` contributes to a gradient; synchronises it if it is complete."""
        contributions, p = (
            self.contributions.setdefault((name, key.step), []),
            self.parameter_number[name],
        )
        if not contributions:
            self.facts.contribution_order[p] = len(self.contributions)
        contributions.append(number)
        if len(contributions) < self.parameters.plan.microbatches * len(
            self.parameters.lowered[0].contributors[name]
        ):
            return
        if self.facts.update_at_once:  # no row waits for an earlier event: empty the script
            self.state.counters[ROWS], self.state.counters[SUMMED], self.row_instructions = 0, 0, []
        self._handle_event(step_script.COMPLETE, p, number, key)
        for s in self.turns.complete(self._completed_sums(p)):
            first = self.row_writer.parameter_names(_row_of_bundle(s))[0]
            self._handle_event(step_script.TURN, s, self.parameter_number[first], key)

    def _completed_sums(self, p: int) -> list[int]:
        """If sums are ordered: the bundles to sum whose last gradient is that of parameter p."""
        facts, missing = self.facts, self.state.missing
        if not facts.ordered_sums:
            return []
        places = range(facts.first_bundle[p], facts.first_bundle[p + 1])
        bundles = dict.fromkeys(facts.bundles[k] for k in places)
        return [s for s in bundles if facts.needs_sync[s] and missing[s] == 0]

    def action_ends(self, key: Key) -> None:
        """Handles the end of an action: a stage of a micro-batch has run backward."""
        self._handle_event(step_script.ACTION_ENDS, -1, -1, key)

    def step_ends(self, key: Key) -> None:
        """Handles the end of a step: all gradients are complete."""
        self._handle_event(step_script.STEP_ENDS, -1, -1, key)
        assert not self.turns.waiting, "all gradients are complete at the end of a step"
        if isinstance(self.row_writer, BundleWriter):
            self.last_writers = self.new_writers
            self._add_step_barrier()
        else:
            self.last_writers.update(self.new_writers)
        self.new_writers, self.contributions = {}, {}
        self._begin_step()

    def _handle_event(self, event: int, subject: int, run_or_parameter: int, key: Key) -> None:
        """Writes the instructions of the rows that follow from an event of the step script.

        subject: the parameter whose gradient is complete or, for a TURN, the bundle. run_or_parameter: the
        instruction that completed the gradient or, for a TURN, a parameter of the bundle. -1: none.
        """
        # The last argument, by event its first row, is not used here: there is one event.
        step_script.write_rows(
            [event], [subject], [run_or_parameter], self.facts, self.state, [0, 0]
        )
        for n in range(len(self.row_instructions), self.state.counters[ROWS]):
            self.row_instructions.append(self._write_row(n, key))

    def _write_row(self, n: int, key: Key) -> int:
        """Writes the instruction of row n, and returns its number."""
        operation, subject, collective, _, p, after_row, first, count = self.rows[
            n * COLUMNS : (n + 1) * COLUMNS
        ]
        members = [self.state.sum_members[k] for k in range(first, first + count)]
        row = ScriptRow(operation, subject, collective, p, after_row, members)
        sends_gradients = operation in (step_script.SUM, step_script.PUSH) and after_row < 0
        # The parameters for whose gradients the row waits. A sum over replicas waits for a row alone.
        summed = members if sends_gradients else []
        awaited = [self.parameters.trainable[member] for member in summed]
        if p >= 0:
            awaited += self.row_writer.parameter_names(row)
        gradient = [i for name in awaited for i in self.contributions[name, key.step]]
        if self.facts.after_backward and sends_gradients:
            # A device sends after the last of its computations; a wait for that of others has no effect.
            gradient = [*gradient, *chain.from_iterable(self.writer.latest.values())]
        number = self.row_writer.write(row, key, gradient, self._instructions_before(row))
        if operation == step_script.PULL and members:  # of a block
            self.new_writers.update((self.parameters.trainable[p], [number]) for p in members)
        elif operation in (step_script.UPDATE, step_script.PULL):
            stale = self.row_writer.staleness_waits(row, key)
            for name in dict.fromkeys(self.row_writer.parameter_names(row)):
                if isinstance(self.row_writer, BundleWriter):
                    self.new_writers.setdefault(name, []).extend([number, *stale])
                else:
                    self.new_writers[name] = [number]
        return number

    def _instructions_before(self, row: ScriptRow) -> list[int]:
        """The instructions of the rows that a row waits for.

        An update after a sum over replicas also waits for the reduce-scatter, because a device may have
        shards of the block without replicas.
        """
        rows_before, n = list[int](), row.after_row
        while n >= 0 and (not rows_before or row.operation == step_script.UPDATE):
            rows_before.append(n)
            n = self.rows[n * COLUMNS + AFTER_ROW]
        return [self.row_instructions[n] for n in rows_before]

    def _add_step_barrier(self) -> None:
        """Makes the next step wait until all parameters are updated, unless the sync kind has no barrier.

        It is enough that the first parameter that a device uses waits for all: the others come later.
        """
        if self.parameters.plan.parsed_sync.by_priority:
            return
        all_writers = [i for writers in self.last_writers.values() for i in writers]
        seen: set[int] = set()  # devices whose first parameter waits for all
        for op in self.parameters.graph.ops:
            for name in (i for i in op.inputs if i in self.last_writers):
                devices = set(holders(self.parameters.regions[name]))
                if devices - seen:
                    self.last_writers[name] = all_writers
                    seen |= devices


def rule_of(sync: Sync) -> int:
    """The rule of the step script for a sync kind."""
    if sync.sliced:
        return step_script.SLICE_SUMS if sync.collective else step_script.SLICES
    if sync.shards:
        return step_script.SHARDS
    return step_script.SERVER if sync.in_order_server else step_script.BUCKETS


def _row_of_bundle(s: int) -> ScriptRow:
    """A row about bundle s, to look up its parameters."""
    return ScriptRow(step_script.SUM, s, step_script.NO_COLLECTIVE, -1, -1, ())


def _sync_facts(parameters: ParameterLayout, bundles: list[Bundle], *, overlap: bool) -> SyncFacts:
    """What the step script has to know; numbers are those of `parameters.trainable` and `bundles`."""
    sync, values = parameters.plan.parsed_sync, parameters.graph.values
    rule = rule_of(sync)
    if overlap and sync.sliced:
        rule = step_script.BUCKETS
    # The number of each group; here a group is given by the sets of devices that sum its parameters.
    numbers = {group: g for g, group in enumerate(dict.fromkeys(parameters.groups.values()))}
    bundles_of: dict[str, list[int]] = {name: [] for name in parameters.trainable}
    for s, bundle in enumerate(bundles):
        for name in bundle.parameters:
            bundles_of[name].append(s)
    return SyncFacts(
        rule,
        0 if overlap else parameters.plan.bucket,  # bucket_bytes
        overlap,  # update_at_once
        not sync.zero3,  # pull_at_once
        bool(parameters.plan.order) and rule == step_script.SLICE_SUMS,  # ordered_sums
        sync.after_backward,
        # By parameter: group_of and, below, nbytes and replicated.
        [numbers[parameters.groups[n]] if n in parameters.groups else -1 for n in parameters.trainable],
        [
            values[n].dtype.itemsize * sum(s.box.volume for s in parameters.synced_regions(n))
            for n in parameters.trainable
        ],
        [int(any(s.group_size for s in parameters.regions[n])) for n in parameters.trainable],
        list(accumulate(map(len, bundles_of.values()), initial=0)),  # first_bundle
        [s for numbers in bundles_of.values() for s in numbers],  # bundles
        [int(bundle.needs_sync) for bundle in bundles],  # needs_sync
        [0] * len(parameters.trainable),  # contribution_order
    )  # fmt: skip


def _new_state(facts: SyncFacts, rows: list[int]) -> ScriptState:
    """The state of the step script at the beginning of a step. rows: an empty table."""
    count = len(facts.group_of)  # of parameters
    groups_of_parameters = [facts.group_of[p] for p in range(count)]
    groups = max(groups_of_parameters, default=-1) + 1  # how many
    incomplete = [groups_of_parameters.count(g) for g in range(groups)]
    missing = [0] * len(facts.needs_sync)
    for k in range(len(facts.bundles)):
        missing[facts.bundles[k]] += 1
    return ScriptState(
        [0] * COUNTERS,
        incomplete,
        [0] * groups,  # bucket_fill
        [-1] * groups,  # bucket_first
        [0] * groups,  # bucket_last
        [0] * count,  # bucket_next
        [0] * groups,  # opened_groups
        [0] * count,  # complete
        [0] * count,  # ready_at
        [0] * count,  # wait_row
        [0] * count,  # sum_members
        missing,
        rows,
    )  # fmt: skip
