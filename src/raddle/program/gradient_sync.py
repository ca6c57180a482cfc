"""Writes the instructions that synchronise gradients and update parameters.

The *step script* (step_script.py) decides when gradients are sent or summed, and in which order parameters
are updated. It is a table of operations: SUM, PUSH, UPDATE or PULL. An event, such as "the gradient of
parameter 3 is complete", adds rows to it. `lower` calls `GradientSync` for every instruction that
contributes to a gradient, and at the end of each action and each step. `GradientSync` gives these events to
the script, and writes one instruction for each new row (sync_instructions.py). With all-reduces in buckets:

    call of `lower`                       event       new rows                     instructions
    contribute("fc.weight", key, 7)       COMPLETE    SUM, if its bucket is full   Reduce
    step_ends(key)                        STEP_ENDS   UPDATE of each parameter     Update, Update, ...

An action is one stage of a micro-batch, forward or backward. A contribution to a gradient is the backward
of one operator in one micro-batch. A region is a box of a parameter, with the devices that hold it
(holders). A bundle is slices (ranges of rows) of regions that are synchronised together (bundle.py). A
group is all parameters whose gradients are summed by the same sets of devices; each group has its own
bucket. With sharded parameters, a group is the parameters of one block (parameter_blocks.py).
"""

# p: number of a parameter, s: number of a bundle, g: number of a group, n: row of the step script

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
    """Synchronises the gradients of all parameters of a program, and updates the parameters.

    parameters: which devices hold which regions. writer: collects the instructions. overlap: whether steps
    overlap; then a parameter is updated as soon as its gradient is complete.
    """

    def __init__(
        self, parameters: ParameterLayout, writer: InstructionWriter, *, overlap: bool
    ) -> None:
        self.parameters, self.writer = parameters, writer
        sync, bundles = parameters.plan.parsed_sync, synced_bundles(parameters)
        self.parameter_number = {name: p for p, name in enumerate(parameters.trainable)}
        self.facts = _sync_facts(parameters, bundles, overlap=overlap)
        # whether rows of the script are about bundles of slices, not about whole parameters
        sliced = sync.sliced and not overlap
        self.row_writer: RowWriter = (BundleWriter if sliced else WholeParameterWriter)(
            parameters, writer
        )
        # By parameter and step, the instructions that contribute to its gradient, each with the instruction
        # that has to end before the gradient is sent.
        self.contributions: dict[tuple[str, int], list[tuple[int, int]]] = {}
        # By parameter, the instructions that gave it its present value: updates, pulls or gathers. The next
        # forward that reads it waits for them. last_writers: those of earlier steps.
        self.last_writers: dict[str, list[int]] = {}
        self.new_writers: dict[str, list[int]] = {}  # those of this step
        self._begin_step()

    def _begin_step(self) -> None:
        """Starts an empty step script."""
        # A parameter or bundle has at most 4 rows in a step: SUM or PUSH, the SUM over replicas of shards,
        # UPDATE, PULL.
        self.rows = [0] * (4 * (len(self.parameter_number) + len(self.facts.needs_sync)) * COLUMNS)
        self.state = _new_state(self.facts, self.rows)
        self.row_instructions: list[int] = []  # by row, the number of its instruction
        # A program that only runs forward has no gradients, and so no bundles to order.
        order = (
            self.parameters.plan.order if self.facts.ordered_sums and self.facts.needs_sync else ()
        )
        # The bundles whose all-reduces have to start in the order of the plan (turns.py).
        self.turns = Turns([s for s in order if self.facts.needs_sync[s]])

    def contribute(self, name: str, key: Key, number: int, last: int) -> None:
        """Notes a contribution to the gradient of a parameter; synchronises the gradient if it is complete.

        name: of the parameter. key, number: of the instruction that contributes. last: the instruction
        after which the gradient may be sent: `number`, or the last of a recomputed block.
        """
        contributions, p = (
            self.contributions.setdefault((name, key.step), []),
            self.parameter_number[name],
        )
        if not contributions:  # the first one: its place in the order of first contributions
            self.facts.contribution_order[p] = len(self.contributions)
        contributions.append((number, last))
        # Complete: each operator that reads the parameter has contributed in each micro-batch of the step.
        if len(contributions) < self.parameters.plan.microbatches * len(
            self.parameters.lowered[0].contributors[name]
        ):
            return
        if self.facts.update_at_once:
            # No row waits for a row of an earlier event: the table can be used again from its beginning.
            self.state.counters[ROWS], self.state.counters[SUMMED], self.row_instructions = 0, 0, []
        self._handle_event(step_script.COMPLETE, p, number, key)
        # Where sums are ordered: the bundles whose turn has come now.
        for s in self.turns.complete(self._completed_sums(p)):
            first_parameter = self.row_writer.parameter_names(_row_of_bundle(s))[0]
            self._handle_event(step_script.TURN, s, self.parameter_number[first_parameter], key)

    def _completed_sums(self, p: int) -> list[int]:
        """Returns the bundles of parameter p that can be summed: all their gradients are complete now.

        The result is empty unless the plan orders the sums.
        """
        facts, missing = self.facts, self.state.missing
        if not facts.ordered_sums:
            return []
        positions = range(facts.first_bundle[p], facts.first_bundle[p + 1])
        bundles = dict.fromkeys(facts.bundles[k] for k in positions)
        return [s for s in bundles if facts.needs_sync[s] and missing[s] == 0]

    def action_ends(self, key: Key) -> None:
        """Handles the end of an action: a stage of a micro-batch has run backward. key: of the action."""
        self._handle_event(step_script.ACTION_ENDS, -1, -1, key)

    def step_ends(self, key: Key) -> None:
        """Handles the end of a step: all gradients are complete. key: of the step."""
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
        """Gives an event to the step script, and writes an instruction for each row that it adds.

        event: COMPLETE, TURN, ACTION_ENDS or STEP_ENDS of step_script.py. subject: for COMPLETE the
        parameter whose gradient is complete, for TURN the bundle, else -1. run_or_parameter: for COMPLETE
        the instruction that completed the gradient, for TURN a parameter of the bundle, else -1.
        """
        # `write_rows` takes lists of events. The last argument, which tells the rows of different events
        # apart, is not needed for one event.
        step_script.write_rows(
            [event], [subject], [run_or_parameter], self.facts, self.state, [0, 0]
        )
        for n in range(len(self.row_instructions), self.state.counters[ROWS]):
            self.row_instructions.append(self._write_row(n, key))

    def _write_row(self, n: int, key: Key) -> int:
        """Writes the instruction of row n, and returns its number."""
        # The columns of a row are explained in step_script.py.
        operation, subject, collective, _, p, after_row, first_member, member_count = self.rows[
            n * COLUMNS : (n + 1) * COLUMNS
        ]
        member_positions = range(first_member, first_member + member_count)
        members = [self.state.sum_members[k] for k in member_positions]
        row = ScriptRow(operation, subject, collective, p, after_row, members)
        sends_gradients = operation in (step_script.SUM, step_script.PUSH) and after_row < 0
        # The names of the parameters for whose gradients the row waits. A sum over replicas waits for
        # another row alone.
        summed = members if sends_gradients else []
        awaited = [self.parameters.trainable[member] for member in summed]
        if p >= 0:
            awaited += self.row_writer.parameter_names(row)
        gradient = [
            i
            for name in awaited
            for pair in self.contributions[name, key.step]
            for i in dict.fromkeys(pair)
        ]
        if self.facts.after_backward and sends_gradients:
            # A device sends after its last computation so far. The row waits for the last computations of
            # all devices; for each sender, only its own has an effect.
            gradient = [*gradient, *chain.from_iterable(self.writer.latest.values())]
        number = self.row_writer.write(row, key, gradient, self._instructions_before(row))
        if operation == step_script.PULL and members:  # the all-gather of a block
            self.new_writers.update((self.parameters.trainable[p], [number]) for p in members)
        elif operation in (step_script.UPDATE, step_script.PULL):
            staleness_waits = self.row_writer.staleness_waits(row, key)
            for name in dict.fromkeys(self.row_writer.parameter_names(row)):
                if isinstance(
                    self.row_writer, BundleWriter
                ):  # a parameter may be in several bundles
                    self.new_writers.setdefault(name, []).extend([number, *staleness_waits])
                else:
                    self.new_writers[name] = [number]
        return number

    def _instructions_before(self, row: ScriptRow) -> list[int]:
        """Returns the instructions of the rows that a row waits for.

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

        It is enough that, on each device, the first parameter that the forward reads waits for all updates:
        the device reads the other parameters later.
        """
        if self.parameters.plan.parsed_sync.by_priority:
            return
        all_writers = [i for writers in self.last_writers.values() for i in writers]
        waiting_devices: set[int] = set()  # those whose first parameter waits for all updates
        for op in self.parameters.graph.ops:
            for name in (i for i in op.inputs if i in self.last_writers):
                devices = set(holders(self.parameters.regions[name]))
                if devices - waiting_devices:
                    self.last_writers[name] = all_writers
                    waiting_devices |= devices


def rule_of(sync: Sync) -> int:
    """Returns the rule of the step script for a sync kind."""
    if sync.sliced:
        return step_script.SLICE_SUMS if sync.collective else step_script.SLICES
    if sync.shards:
        return step_script.SHARDS
    return step_script.SERVER if sync.in_order_server else step_script.BUCKETS


def _row_of_bundle(s: int) -> ScriptRow:
    """Returns some row about bundle s, for `RowWriter.parameter_names`, which takes a row."""
    return ScriptRow(step_script.SUM, s, step_script.NO_COLLECTIVE, -1, -1, ())


def _sync_facts(parameters: ParameterLayout, bundles: list[Bundle], *, overlap: bool) -> SyncFacts:
    """Returns the facts that the step script needs about a plan.

    The number of a parameter is its place in `parameters.trainable`, that of a bundle its place in
    `bundles`.
    """
    sync, values = parameters.plan.parsed_sync, parameters.graph.values
    rule = rule_of(sync)
    if overlap and sync.sliced:
        rule = step_script.BUCKETS
    # By group, its number. A group is given by the sets of devices that sum its parameters (and its block).
    group_number = {group: g for g, group in enumerate(dict.fromkeys(parameters.groups.values()))}
    bundles_of: dict[str, list[int]] = {name: [] for name in parameters.trainable}
    for s, bundle in enumerate(bundles):
        for name in bundle.parameters:
            bundles_of[name].append(s)
    return SyncFacts(
        rule=rule,
        bucket_bytes=0 if overlap else parameters.plan.bucket,
        update_at_once=overlap,
        pull_at_once=not sync.zero3,
        ordered_sums=bool(parameters.plan.order) and rule == step_script.SLICE_SUMS,
        after_backward=sync.after_backward,
        group_of=[
            group_number[parameters.groups[name]] if name in parameters.groups else -1
            for name in parameters.trainable
        ],
        nbytes=[
            values[name].dtype.itemsize
            * sum(region.box.volume for region in parameters.synced_regions(name))
            for name in parameters.trainable
        ],
        replicated=[
            int(any(region.group_size for region in parameters.regions[name]))
            for name in parameters.trainable
        ],
        first_bundle=list(accumulate(map(len, bundles_of.values()), initial=0)),
        bundles=[s for bundle_numbers in bundles_of.values() for s in bundle_numbers],
        needs_sync=[int(bundle.needs_sync) for bundle in bundles],
        contribution_order=[0] * len(parameters.trainable),
    )


def _new_state(facts: SyncFacts, rows: list[int]) -> ScriptState:
    """Returns the state of the step script at the beginning of a step. rows: an empty table."""
    parameter_count = len(facts.group_of)
    groups_of_parameters = [facts.group_of[p] for p in range(parameter_count)]
    group_count = max(groups_of_parameters, default=-1) + 1
    missing = [0] * len(facts.needs_sync)
    for k in range(len(facts.bundles)):
        missing[facts.bundles[k]] += 1
    return ScriptState(
        counters=[0] * COUNTERS,
        incomplete=[groups_of_parameters.count(g) for g in range(group_count)],
        bucket_fill=[0] * group_count,
        bucket_first=[-1] * group_count,
        bucket_last=[0] * group_count,
        bucket_next=[0] * parameter_count,
        opened_groups=[0] * group_count,
        complete=[0] * parameter_count,
        ready_at=[0] * parameter_count,
        wait_row=[0] * parameter_count,
        sum_members=[0] * parameter_count,
        missing=missing,
        rows=rows,
    )
