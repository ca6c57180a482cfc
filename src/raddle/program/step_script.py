"""The step script: in which order gradients are sent or summed, and parameters updated, during a step.

The script is a table. A row is one operation (SUM, PUSH, UPDATE or PULL) on a parameter, a bucket or a
bundle of slices, with what it waits for: the gradient of a parameter, and one earlier row. Events go in,
such as "the gradient of parameter 3 is complete"; `write_rows` appends the rows that follow from them, by
one rule:

    BUCKETS      gradients that the same devices sum are all-reduced together, when they fill a bucket or
                 when no more are to come; at the end of a step every holder updates its copy
    SHARDS       the gradients of a block are reduce-scattered together when all are complete; at the end
                 of a step every holder updates its shard; then the blocks are all-gathered. If shards have
                 replicas (HSDP), the sums of a block are all-reduced over them, just before the second
                 reduce-scatter that follows the block's own: by then, that one has probably ended
    SERVER       a gradient is pushed to its server; at the end of a step it is updated there, and pulled
    SLICES       each bundle of slices is pushed, updated on its server and pulled as soon as the gradients
                 of all its parameters are complete
    SLICE_SUMS   each bundle is all-reduced and updated on every holder; if the plan orders the sums, each
                 waits for its turn (turns.py)

For example, with BUCKETS, let two parameters be in one group (0) and one bucket, and let their gradients be
complete in the order 1, 0. Then the table at the end of the step is:

    row   operation   subject   collective   parameter   after row   members
    0     SUM         group 0   ALL_REDUCE   none        none        1, 0
    1     UPDATE      1         none         1           0
    2     UPDATE      0         none         0           0

With `after_backward` the rules are the same, but nothing is sent before the step ends: the rows of all
gradients are then written in the order in which the gradients were complete.

Two callers share these rules. `lower` calls `write_rows` on lists and writes an instruction for every row;
the fast simulation of the searches JIT-compiles it with numba. So the code keeps to what both can do:
integers, one-dimensional sequences and loops.
"""

# Parameters, bundles, rows and groups are referred to by numbers. p: parameter, s: bundle, n: row, g:
# group, all parameters whose gradients are summed by the same sets of devices, in a bucket of their own

from __future__ import annotations

from typing import NamedTuple, Protocol

BUCKETS, SHARDS, SERVER, SLICES, SLICE_SUMS = range(5)  # rules
# Events: the gradient of a parameter is complete; the turn of a bundle has come (only where sums are
# ordered); a stage of a micro-batch has run backward; the step ends.
COMPLETE, TURN, ACTION_ENDS, STEP_ENDS = range(4)
SUM, PUSH, UPDATE, PULL = range(4)  # operations
NO_COLLECTIVE, ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER = range(4)
# Columns of a row; -1 means none:
#   OPERATION   SUM, PUSH, UPDATE or PULL
#   SUBJECT     what the operation is about: with BUCKETS, SHARDS and SERVER a parameter (if the row has a
#               collective, a group), with SLICES and SLICE_SUMS a bundle
#   COLLECTIVE  the collective that a SUM, or the PULL of a block, is; else NO_COLLECTIVE
#   GROUP       the group whose bucket or block the collective is about; -1 for a bundle
#   PARAMETER   the row waits for the gradient of this parameter; if the subject is a bundle, for the
#               gradients of all its parameters
#   AFTER_ROW   the row waits for this earlier row
#   FIRST_MEMBER, MEMBER_COUNT   the parameters of a bucket or block: a range of `ScriptState.sum_members`
OPERATION, SUBJECT, COLLECTIVE, GROUP, PARAMETER, AFTER_ROW, FIRST_MEMBER, MEMBER_COUNT = range(8)
COLUMNS = 8
# Indices into ScriptState.counters. CLOCK counts the Run instructions that complete gradients, the sums of
# buckets and the pushes of parameters: it says which gradient was ready first. RUN is the instruction that
# completed the last gradient, at RUN_CLOCK. REPLICATED is the row up to which the reduce-scatters of shards
# with replicas were followed by an all-reduce, IN_FLIGHT the number of those after it. The others are
# lengths: of `rows`, `sum_members`, `complete` and `opened_groups`.
CLOCK, RUN, RUN_CLOCK, ROWS, SUMMED, COMPLETED, OPENED, REPLICATED, IN_FLIGHT = range(9)
COUNTERS = 9
# How many reduce-scatters may be in flight on a rank. Each keeps the gradients of a block in memory. If
# communication is so slow that more would wait, it is never idle anyway.
MOST_SCATTERS = 2


class Numbers(Protocol):
    """A list or an array of integers."""

    def __getitem__(self, at: int, /) -> int: ...

    def __setitem__(self, at: int, number: int, /) -> None: ...

    def __len__(self) -> int: ...


class SyncFacts(NamedTuple):
    """Facts about the synchronisation of a plan's parameters, which are the same in every step."""

    rule: int  # BUCKETS, SHARDS, SERVER, SLICES or SLICE_SUMS
    bucket_bytes: int  # a bucket with at least this many bytes is full
    update_at_once: bool  # steps overlap: update a parameter as soon as its gradient is complete
    pull_at_once: bool  # gather blocks after their update; False: before their next use (ZeRO-3)
    ordered_sums: bool  # sums of bundles wait for their turn
    after_backward: bool  # gradients are sent or summed after the whole backward, not during it
    group_of: Numbers  # by parameter, its group (SERVER: any number); -1: nothing to send or sum
    nbytes: Numbers  # by parameter, bytes of its gradient that are sent or summed
    replicated: (
        Numbers  # by parameter, 1 if its shards have replicas, one in each group of holders (HSDP)
    )
    # The bundles that have slices of parameter p: bundles[first_bundle[p]:first_bundle[p + 1]].
    first_bundle: Numbers
    bundles: Numbers
    needs_sync: Numbers  # by bundle, 1 if more than one device holds or updates it
    # By parameter, its place in the order in which the gradients of parameters got their first contribution
    # in a step, that is, the first B or W run that adds to them. If the gradients of two parameters are
    # ready at the same CLOCK, this place decides which parameter is updated first.
    contribution_order: Numbers


class ScriptState(NamedTuple):
    """The state of one step: which gradients are complete, the open buckets, and the rows so far.

    The bucket of a group is a linked list of parameters: bucket_first, bucket_next ... bucket_last.
    """

    counters: Numbers  # CLOCK to IN_FLIGHT
    incomplete: Numbers  # by group, how many gradients are not complete
    bucket_fill: Numbers  # by group, bytes in its bucket
    bucket_first: Numbers  # by group, the first parameter in its bucket; -1: empty
    bucket_last: Numbers  # by group, the last one
    bucket_next: Numbers  # by parameter, the next one in its bucket; -1: it is the last
    opened_groups: Numbers  # groups in the order of their first bucket
    # parameters to update, in the order in which their gradients were completed
    complete: Numbers
    ready_at: Numbers  # by parameter, the CLOCK when its gradient was complete, summed or pushed
    wait_row: Numbers  # by parameter, the row that its update waits for; -1: none
    sum_members: Numbers  # the parameters of all buckets that were summed
    # By bundle, how many of its parameters have no complete gradient; a parameter counts once for each of
    # its slices in the bundle.
    missing: Numbers
    rows: Numbers  # the table, COLUMNS numbers for each row


def write_rows(
    events: Numbers, subjects: Numbers, runs: Numbers, facts: SyncFacts, state: ScriptState,
    first_row: Numbers,
) -> None:  # fmt: skip
    """Appends the rows that follow from events: rows first_row[e] to first_row[e + 1] from event e.

    subjects: by event, the parameter whose gradient is complete, or the bundle whose turn it is.
    runs: by event, the instruction that completed the gradient; for a TURN, a parameter of the bundle.
    """
    counters, complete, ready_at, wait_row = (
        state.counters, state.complete, state.ready_at, state.wait_row,
    )  # fmt: skip
    for e in range(len(events)):
        # subject: a parameter; of a TURN, a bundle
        event, subject = events[e], subjects[e]
        if event == COMPLETE:
            if counters[RUN] != runs[e]:
                counters[CLOCK] += 1
                counters[RUN], counters[RUN_CLOCK] = runs[e], counters[CLOCK]
            complete[counters[COMPLETED]] = subject
            counters[COMPLETED] += 1
            ready_at[subject], wait_row[subject] = counters[RUN_CLOCK], -1
            if not facts.after_backward:
                _synchronise(subject, facts, state)
            if facts.update_at_once:
                _update(facts, state)
        elif event == TURN:
            sum_bundle(subject, runs[e], counters, state.rows)  # runs[e]: a parameter of the bundle
        elif event == ACTION_ENDS:
            _sum_finished_buckets(state)
        else:
            if facts.after_backward:
                for k in range(counters[COMPLETED]):
                    _synchronise(complete[k], facts, state)
                _sum_finished_buckets(state)
            while counters[IN_FLIGHT] > 0:
                _sum_replicas(facts, state)
            _update(facts, state)
            if facts.rule == SHARDS and facts.pull_at_once:
                _gather_blocks(state)
        first_row[e + 1] = counters[ROWS]


def _synchronise(p: int, facts: SyncFacts, state: ScriptState) -> None:
    """Writes the rows that follow from the complete gradient of parameter p, by the rule."""
    counters, rows, rule, g = state.counters, state.rows, facts.rule, facts.group_of[p]
    if rule == SLICES:
        _sync_through_servers(p, facts, state)
    elif rule == SLICE_SUMS:
        _sum_bundles(p, facts, state)
    elif g >= 0 and rule == SERVER:
        counters[CLOCK] += 1
        state.ready_at[p] = counters[CLOCK]
        state.wait_row[p] = _write_row(PUSH, p, p, -1, counters, rows)
    elif g >= 0:
        _add_to_bucket(p, g, facts, state)


def _add_to_bucket(p: int, g: int, facts: SyncFacts, state: ScriptState) -> None:
    """Puts a complete gradient into the bucket of its group, and sums the bucket if it is full."""
    if state.bucket_first[g] < 0:
        state.bucket_first[g] = p
        _note_first_bucket(g, state)
    else:
        state.bucket_next[state.bucket_last[g]] = p
    state.bucket_last[g], state.bucket_next[p] = p, -1
    state.incomplete[g] -= 1
    state.bucket_fill[g] += facts.nbytes[p]
    if facts.rule == SHARDS:
        if state.incomplete[g] == 0:
            if state.counters[IN_FLIGHT] >= MOST_SCATTERS:
                _sum_replicas(facts, state)
            _sum_bucket(g, REDUCE_SCATTER, state)
            state.counters[IN_FLIGHT] += facts.replicated[p]
    elif is_full(state.bucket_fill[g], facts.bucket_bytes):
        _sum_bucket(g, ALL_REDUCE, state)


def is_full(nbytes: int, limit: int) -> bool:
    """Returns whether a bucket of `nbytes` is summed now. Otherwise it waits for more gradients."""
    return nbytes >= limit


def updates_before(ready_at: int, order: int, other_ready_at: int, other_order: int) -> bool:
    """Returns whether one parameter is updated before another: in the order in which gradients are ready.

    order, other_order: their `contribution_order`, which decides between equal times.
    """
    return ready_at < other_ready_at or (ready_at == other_ready_at and order < other_order)


def _note_first_bucket(g: int, state: ScriptState) -> None:
    """Adds a group to `opened_groups`, unless it is there already."""
    for k in range(state.counters[OPENED]):
        if state.opened_groups[k] == g:
            return
    state.opened_groups[state.counters[OPENED]] = g
    state.counters[OPENED] += 1


def _sum_finished_buckets(state: ScriptState) -> None:
    """Sums the buckets of all groups that have no incomplete gradients."""
    for k in range(state.counters[OPENED]):
        g = state.opened_groups[k]
        if state.incomplete[g] == 0 and state.bucket_first[g] >= 0:
            _sum_bucket(g, ALL_REDUCE, state)


def _sum_bucket(g: int, collective: int, state: ScriptState) -> None:
    """Writes the SUM of a group's bucket, and empties the bucket."""
    counters, sum_members, bucket_next = state.counters, state.sum_members, state.bucket_next
    ready_at, wait_row, rows = state.ready_at, state.wait_row, state.rows
    counters[CLOCK] += 1
    n = _write_row(SUM, g, -1, -1, counters, rows)
    rows[n * COLUMNS + COLLECTIVE], rows[n * COLUMNS + GROUP] = collective, g
    rows[n * COLUMNS + FIRST_MEMBER] = counters[SUMMED]
    p, count = state.bucket_first[g], 0
    while p >= 0:
        sum_members[counters[SUMMED] + count] = p
        ready_at[p], wait_row[p] = counters[CLOCK], n
        p = bucket_next[p]
        count += 1
    rows[n * COLUMNS + MEMBER_COUNT] = count
    counters[SUMMED] += count
    state.bucket_first[g], state.bucket_fill[g] = -1, 0


def _sum_replicas(facts: SyncFacts, state: ScriptState) -> None:
    """Writes the SUM over the replicas of shards that follows the earliest reduce-scatter without one."""
    counters, sum_members, rows = state.counters, state.sum_members, state.rows
    n = counters[REPLICATED]  # searches the row of this reduce-scatter
    while (
        rows[n * COLUMNS + COLLECTIVE] != REDUCE_SCATTER
        or facts.replicated[sum_members[rows[n * COLUMNS + FIRST_MEMBER]]] == 0
    ):
        n += 1
    counters[REPLICATED] = n + 1
    counters[IN_FLIGHT] -= 1
    replica_sum = _write_row(SUM, rows[n * COLUMNS + GROUP], -1, n, counters, rows)
    rows[replica_sum * COLUMNS + COLLECTIVE] = ALL_REDUCE
    for column in (GROUP, FIRST_MEMBER, MEMBER_COUNT):
        rows[replica_sum * COLUMNS + column] = rows[n * COLUMNS + column]
    first = rows[n * COLUMNS + FIRST_MEMBER]
    for k in range(first, first + rows[n * COLUMNS + MEMBER_COUNT]):
        state.wait_row[sum_members[k]] = replica_sum


def _gather_blocks(state: ScriptState) -> None:
    """Writes a PULL for every block that was summed, in the order in which the next forward needs them."""
    counters, rows = state.counters, state.rows
    for n in range(counters[ROWS] - 1, -1, -1):  # the reverse order of the backward
        if rows[n * COLUMNS + COLLECTIVE] == REDUCE_SCATTER:
            pull = _write_row(PULL, rows[n * COLUMNS + GROUP], -1, -1, counters, rows)
            rows[pull * COLUMNS + COLLECTIVE] = ALL_GATHER
            for column in (GROUP, FIRST_MEMBER, MEMBER_COUNT):
                rows[pull * COLUMNS + column] = rows[n * COLUMNS + column]


def _update(facts: SyncFacts, state: ScriptState) -> None:
    """Writes the UPDATE of every parameter in `complete` and, with SERVER, the PULL after it."""
    counters, complete, ready_at, wait_row, rows = (
        state.counters, state.complete, state.ready_at, state.wait_row, state.rows,
    )  # fmt: skip
    order, on_server, group_of = facts.contribution_order, facts.rule == SERVER, facts.group_of
    if facts.rule == SLICES or facts.rule == SLICE_SUMS:
        return  # bundles were updated one by one
    for k in range(1, counters[COMPLETED]):  # insertion sort: the parameters are almost in order
        p, position = complete[k], k
        while position > 0 and updates_before(
            ready_at[p], order[p], ready_at[complete[position - 1]], order[complete[position - 1]]
        ):
            complete[position] = complete[position - 1]
            position -= 1
        complete[position] = p
    for k in range(counters[COMPLETED]):
        p = complete[k]
        n = _write_row(UPDATE, p, p, wait_row[p], counters, rows)
        if on_server and group_of[p] >= 0:
            _write_row(PULL, p, -1, n, counters, rows)
    counters[COMPLETED] = 0


def _sync_through_servers(p: int, facts: SyncFacts, state: ScriptState) -> None:
    """Writes PUSH, UPDATE and PULL for each bundle whose last gradient is that of parameter p."""
    counters, rows = state.counters, state.rows
    for k in range(facts.first_bundle[p], facts.first_bundle[p + 1]):
        s = facts.bundles[k]
        state.missing[s] -= 1
        if state.missing[s] > 0:
            continue
        n = -1
        if facts.needs_sync[s]:
            n = _write_row(PUSH, s, p, -1, counters, rows)
        n = _write_row(UPDATE, s, p, n, counters, rows)
        if facts.needs_sync[s] and facts.pull_at_once:
            _write_row(PULL, s, -1, n, counters, rows)


def _sum_bundles(p: int, facts: SyncFacts, state: ScriptState) -> None:
    """Writes the UPDATE of bundles that one device holds, then SUM and UPDATE of all others.

    These are the bundles whose last gradient is that of parameter p. If sums are ordered, the others wait
    for their TURN.
    """
    for k in range(facts.first_bundle[p], facts.first_bundle[p + 1]):
        s = facts.bundles[k]
        state.missing[s] -= 1
        if state.missing[s] == 0 and not facts.needs_sync[s]:
            _write_row(UPDATE, s, p, -1, state.counters, state.rows)
    if facts.ordered_sums:
        return
    for k in range(facts.first_bundle[p], facts.first_bundle[p + 1]):
        s = facts.bundles[k]
        # A bundle with several slices of p is here several times, but is summed once.
        if state.missing[s] == 0 and facts.needs_sync[s]:
            state.missing[s] = -1
            sum_bundle(s, p, state.counters, state.rows)


def sum_bundle(s: int, p: int, counters: Numbers, rows: Numbers) -> None:
    """Writes the SUM of a bundle over its holders, and its UPDATE on each. p: one of its parameters."""
    n = _write_row(SUM, s, p, -1, counters, rows)
    rows[n * COLUMNS + COLLECTIVE] = ALL_REDUCE
    _write_row(UPDATE, s, -1, n, counters, rows)


def _write_row(
    operation: int, subject: int, parameter: int, after_row: int, counters: Numbers,
    rows: Numbers,
) -> int:  # fmt: skip
    """Appends a row without a collective, and returns its number."""
    n = counters[ROWS]
    row_start = n * COLUMNS  # where row n begins in `rows`
    rows[row_start + OPERATION], rows[row_start + SUBJECT], rows[row_start + COLLECTIVE] = (
        operation,
        subject,
        NO_COLLECTIVE,
    )
    rows[row_start + GROUP], rows[row_start + PARAMETER], rows[row_start + AFTER_ROW] = (
        -1,
        parameter,
        after_row,
    )
    rows[row_start + FIRST_MEMBER], rows[row_start + MEMBER_COUNT] = 0, 0
    counters[ROWS] = n + 1
    return n
