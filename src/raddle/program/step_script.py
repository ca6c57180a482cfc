"""When gradients leave and parameters are updated, row by row: these rules stand here and nowhere else.

`lower` calls `assemble` on lists and hangs an instruction on every row; the searches' fast path compiles
the same function and simulates the rows. So it keeps to what both can do: integers, sequences of one
dimension, loops. A row says what is done with which parameter, bucket or slice, which collective of which
group that is, and what it waits for: the gradient of a parameter, and one earlier row.

    BUCKETS      gradients of a group of devices are summed together when they fill a bucket, or when
                 nothing more is coming for it; at the end of a step every holder updates its copy
    SERVER       a gradient is pushed to its server, updated there at the end of a step, and pulled
    SLICES       each slice is pushed, updated at its server and pulled as soon as it is complete
    SLICE_SUMS   each slice is summed on its holders and updated there; where sums have an order, when
                 it is their turn (turns.py)
"""

# p: parameter, s: slice, g: group of devices that sum the same parameters, n: row

from __future__ import annotations

from typing import NamedTuple, Protocol

BUCKETS, SERVER, SLICES, SLICE_SUMS = range(4)  # ways to synchronise
COMPLETE, TURN, ACTION_ENDS, STEP_ENDS = range(4)  # events; TURN: of a slice, in an order of sums
SUM, PUSH, UPDATE, PULL = range(4)  # what a row does
NO_COLLECTIVE, ALL_REDUCE = range(2)
# Columns of a row. Its subject: with BUCKETS and SERVER a parameter (of a SUM: a group), else a slice; the
# group of a collective that sums buckets; the parameter whose gradient it waits for, and the row (-1: no).
# The parameters of a SUM are `State.members` from MEMBER_AT on.
OPERATION, SUBJECT, COLLECTIVE, GROUP, PARAMETER, AFTER_ROW, FIRST_MEMBER, MEMBER_COUNT = range(8)
COLUMNS = 8
CLOCK, RUN, RUN_CLOCK, ROWS, SUMMED, COMPLETED, OPENED = range(7)  # State.numbers


class Numbers(Protocol):
    """A list or an array of integers."""

    def __getitem__(self, at: int, /) -> int: ...

    def __setitem__(self, at: int, number: int, /) -> None: ...

    def __len__(self) -> int: ...


class SyncFacts(NamedTuple):
    """How parameters are synchronised; by parameter or by slice."""

    rule: int
    bucket_bytes: int  # bytes that fill a bucket
    update_at_once: (
        bool  # steps overlap: a parameter is updated as soon as its gradient is complete
    )
    pull_at_once: bool  # updated slices are sent back at once, not pulled before their next use
    ordered_sums: bool  # sums of slices wait for their turn
    group_of: Numbers  # that sums a parameter; with a server, 0; -1: nothing is to be sent
    nbytes: Numbers  # of a parameter in memory, what is shared of it
    first_slice: Numbers  # the slices of a parameter are numbered from here on
    slice_count: Numbers  # so many
    needs_sync: Numbers  # of a slice, whether it goes to another device at all
    contribution_order: Numbers  # of a parameter, among the first contributions to gradients


class ScriptState(NamedTuple):
    """What has happened in a step, and the rows that follow from it."""

    counters: Numbers
    incomplete: Numbers  # by group, its parameters that are not complete
    bucket_fill: Numbers  # by group, bytes in its bucket
    bucket_first: Numbers  # by group, the first and the last parameter in its bucket, and by
    bucket_last: Numbers  # parameter the next one; -1: none
    bucket_next: Numbers
    opened_groups: Numbers  # groups in the order of their first bucket
    complete: Numbers  # parameters in the order in which they were complete
    ready_at: Numbers  # by parameter, when it was summed or, if it is not, complete
    wait_row: Numbers  # by parameter, the row that it waits for
    sum_members: Numbers
    rows: Numbers  # COLUMNS numbers a row


def write_rows(
    events: Numbers, subjects: Numbers, runs: Numbers, facts: SyncFacts, state: ScriptState,
    first_row: Numbers,
) -> None:  # fmt: skip
    """Writes the rows of events; those of event e are row_at[e] to row_at[e + 1].

    An event is about a parameter, or a slice whose turn it is; `runs` number what contributed last.
    """
    counters, complete, ready_at, wait_row, rows = (
        state.counters, state.complete, state.ready_at, state.wait_row, state.rows,
    )  # fmt: skip
    bucket_fill, bucket_first, bucket_last, bucket_next = (
        state.bucket_fill,
        state.bucket_first,
        state.bucket_last,
        state.bucket_next,
    )
    group_of, nbytes, incomplete, rule = facts.group_of, facts.nbytes, state.incomplete, facts.rule
    for e in range(len(events)):
        event, p = events[e], subjects[e]
        if event == COMPLETE:
            if counters[RUN] != runs[e]:
                counters[CLOCK] += 1
                counters[RUN], counters[RUN_CLOCK] = runs[e], counters[CLOCK]
            complete[counters[COMPLETED]] = p
            counters[COMPLETED] += 1
            ready_at[p], wait_row[p], g = counters[RUN_CLOCK], -1, group_of[p]
            if rule == SLICES:
                _sync_through_servers(p, facts, counters, rows)
            elif rule == SLICE_SUMS:
                _sum_slices(p, facts, counters, rows)
            elif g >= 0 and rule == SERVER:
                counters[CLOCK] += 1
                ready_at[p] = counters[CLOCK]
                wait_row[p] = _write_row(PUSH, p, p, -1, counters, rows)
            elif g >= 0:
                if bucket_first[g] < 0:
                    bucket_first[g] = p
                    _note_first_bucket(g, state)
                else:
                    bucket_next[bucket_last[g]] = p
                bucket_last[g], bucket_next[p] = p, -1
                incomplete[g] -= 1
                bucket_fill[g] += nbytes[p]
                if is_full(bucket_fill[g], facts.bucket_bytes):
                    _sum_bucket(g, state)
            if facts.update_at_once:
                _update(facts, state)
        elif event == TURN:
            sum_slice(p, runs[e], counters, rows)
        elif event == ACTION_ENDS:
            _sum_finished_buckets(state)
        else:
            _update(facts, state)
        first_row[e + 1] = counters[ROWS]


def is_full(nbytes: int, limit: int) -> bool:
    """Whether a bucket is summed now; else it waits for more gradients."""
    return nbytes >= limit


def updates_before(ready_at: int, order: int, other_ready_at: int, other_order: int) -> bool:
    """The order of updates: as gradients are complete, the last layers first."""
    return ready_at < other_ready_at or (ready_at == other_ready_at and order < other_order)


def _note_first_bucket(g: int, state: ScriptState) -> None:
    """Remembers in which order groups had their first buckets."""
    for k in range(state.counters[OPENED]):
        if state.opened_groups[k] == g:
            return
    state.opened_groups[state.counters[OPENED]] = g
    state.counters[OPENED] += 1


def _sum_finished_buckets(state: ScriptState) -> None:
    """Sums the buckets that nothing more is coming for."""
    for k in range(state.counters[OPENED]):
        g = state.opened_groups[k]
        if state.incomplete[g] == 0 and state.bucket_first[g] >= 0:
            _sum_bucket(g, state)


def _sum_bucket(g: int, state: ScriptState) -> None:
    """Sums a bucket; its parameters are complete with that."""
    counters, sum_members, bucket_next = state.counters, state.sum_members, state.bucket_next
    ready_at, wait_row, rows = state.ready_at, state.wait_row, state.rows
    counters[CLOCK] += 1
    n = _write_row(SUM, g, -1, -1, counters, rows)
    rows[n * COLUMNS + COLLECTIVE], rows[n * COLUMNS + GROUP] = ALL_REDUCE, g
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


def _update(facts: SyncFacts, state: ScriptState) -> None:
    """Updates all parameters that are complete; a server sends the result back."""
    counters, complete, ready_at, wait_row, rows = (
        state.counters, state.complete, state.ready_at, state.wait_row, state.rows,
    )  # fmt: skip
    order, on_server, group_of = facts.contribution_order, facts.rule == SERVER, facts.group_of
    if facts.rule == SLICES or facts.rule == SLICE_SUMS:
        return  # they were updated one by one
    for k in range(1, counters[COMPLETED]):  # almost in order
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


def _sync_through_servers(p: int, facts: SyncFacts, counters: Numbers, rows: Numbers) -> None:
    """Slices go to their servers, are updated there, and come back, one by one."""
    for s in range(facts.first_slice[p], facts.first_slice[p] + facts.slice_count[p]):
        n = -1
        if facts.needs_sync[s]:
            n = _write_row(PUSH, s, p, -1, counters, rows)
        n = _write_row(UPDATE, s, p, n, counters, rows)
        if facts.needs_sync[s] and facts.pull_at_once:
            _write_row(PULL, s, -1, n, counters, rows)


def _sum_slices(p: int, facts: SyncFacts, counters: Numbers, rows: Numbers) -> None:
    """Slices that one device alone holds are updated; all others are summed before."""
    for s in range(facts.first_slice[p], facts.first_slice[p] + facts.slice_count[p]):
        if not facts.needs_sync[s]:
            _write_row(UPDATE, s, p, -1, counters, rows)
    for s in range(facts.first_slice[p], facts.first_slice[p] + facts.slice_count[p]):
        if facts.needs_sync[s] and not facts.ordered_sums:
            sum_slice(s, p, counters, rows)


def sum_slice(s: int, p: int, counters: Numbers, rows: Numbers) -> None:
    """Sums a slice over its holders, and updates it on each."""
    n = _write_row(SUM, s, p, -1, counters, rows)
    rows[n * COLUMNS + COLLECTIVE] = ALL_REDUCE
    _write_row(UPDATE, s, -1, n, counters, rows)


def _write_row(
    operation: int, subject: int, parameter: int, after_row: int, counters: Numbers,
    rows: Numbers,
) -> int:  # fmt: skip
    n = counters[ROWS]
    column = n * COLUMNS
    rows[column + OPERATION], rows[column + SUBJECT], rows[column + COLLECTIVE] = (
        operation,
        subject,
        NO_COLLECTIVE,
    )
    rows[column + GROUP], rows[column + PARAMETER], rows[column + AFTER_ROW] = (
        -1,
        parameter,
        after_row,
    )
    rows[column + FIRST_MEMBER], rows[column + MEMBER_COUNT] = 0, 0
    counters[ROWS] = n + 1
    return n
