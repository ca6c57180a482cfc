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
WHAT, SUBJECT, COLLECTIVE, GROUP, PARAMETER, AFTER, MEMBER_AT, MEMBERS = range(8)
COLUMNS = 8
CLOCK, RUN, RUN_CLOCK, ROWS, SUMMED, DONE, OPENED = range(7)  # State.numbers


class Numbers(Protocol):
    """A list or an array of integers."""

    def __getitem__(self, at: int, /) -> int: ...

    def __setitem__(self, at: int, number: int, /) -> None: ...

    def __len__(self) -> int: ...


class Facts(NamedTuple):
    """How parameters are synchronised; by parameter or by slice."""

    way: int
    limit: int  # bytes that fill a bucket
    at_once: bool  # steps overlap: a parameter is updated as soon as its gradient is complete
    returned: bool  # updated slices are sent back at once, not pulled before their next use
    ordered: bool  # sums of slices wait for their turn
    group: Numbers  # that sums a parameter; with a server, 0; -1: nothing is to be sent
    nbytes: Numbers  # of a parameter in memory, what is shared of it
    first: Numbers  # the slices of a parameter are numbered from here on
    slices: Numbers  # so many
    travels: Numbers  # of a slice, whether it goes to another device at all
    rank: Numbers  # of a parameter, among the first contributions to gradients


class State(NamedTuple):
    """What has happened in a step, and the rows that follow from it."""

    numbers: Numbers
    left: Numbers  # by group, its parameters that are not complete
    filled: Numbers  # by group, bytes in its bucket
    first_in: Numbers  # by group, the first and the last parameter in its bucket, and by
    last_in: Numbers  # parameter the next one; -1: none
    next_in: Numbers
    opened: Numbers  # groups in the order of their first bucket
    done: Numbers  # parameters in the order in which they were complete
    when: Numbers  # by parameter, when it was summed or, if it is not, complete
    after: Numbers  # by parameter, the row that it waits for
    members: Numbers
    rows: Numbers  # COLUMNS numbers a row


def assemble(
    events: Numbers, subjects: Numbers, runs: Numbers, facts: Facts, state: State,
    row_at: Numbers,
) -> None:  # fmt: skip
    """Writes the rows of events; those of event e are row_at[e] to row_at[e + 1].

    An event is about a parameter, or a slice whose turn it is; `runs` number what contributed last.
    """
    numbers, done, when, after, rows = (
        state.numbers, state.done, state.when, state.after, state.rows,
    )  # fmt: skip
    filled, first_in, last_in, next_in = state.filled, state.first_in, state.last_in, state.next_in
    group, nbytes, left, way = facts.group, facts.nbytes, state.left, facts.way
    for e in range(len(events)):
        event, p = events[e], subjects[e]
        if event == COMPLETE:
            if numbers[RUN] != runs[e]:
                numbers[CLOCK] += 1
                numbers[RUN], numbers[RUN_CLOCK] = runs[e], numbers[CLOCK]
            done[numbers[DONE]] = p
            numbers[DONE] += 1
            when[p], after[p], g = numbers[RUN_CLOCK], -1, group[p]
            if way == SLICES:
                _serve(p, facts, numbers, rows)
            elif way == SLICE_SUMS:
                _sum_slices(p, facts, numbers, rows)
            elif g >= 0 and way == SERVER:
                numbers[CLOCK] += 1
                when[p] = numbers[CLOCK]
                after[p] = _write(PUSH, p, p, -1, numbers, rows)
            elif g >= 0:
                if first_in[g] < 0:
                    first_in[g] = p
                    _open(g, state)
                else:
                    next_in[last_in[g]] = p
                last_in[g], next_in[p] = p, -1
                left[g] -= 1
                filled[g] += nbytes[p]
                if is_full(filled[g], facts.limit):
                    _flush(g, state)
            if facts.at_once:
                _update(facts, state)
        elif event == TURN:
            sum_slice(p, runs[e], numbers, rows)
        elif event == ACTION_ENDS:
            _flush_complete(state)
        else:
            _update(facts, state)
        row_at[e + 1] = numbers[ROWS]


def is_full(nbytes: int, limit: int) -> bool:
    """Whether a bucket is summed now; else it waits for more gradients."""
    return nbytes >= limit


def goes_before(when: int, rank: int, other_when: int, other_rank: int) -> bool:
    """The order of updates: as gradients are complete, the last layers first."""
    return when < other_when or (when == other_when and rank < other_rank)


def _open(g: int, state: State) -> None:
    """Remembers in which order groups had their first buckets."""
    for k in range(state.numbers[OPENED]):
        if state.opened[k] == g:
            return
    state.opened[state.numbers[OPENED]] = g
    state.numbers[OPENED] += 1


def _flush_complete(state: State) -> None:
    """Sums the buckets that nothing more is coming for."""
    for k in range(state.numbers[OPENED]):
        g = state.opened[k]
        if state.left[g] == 0 and state.first_in[g] >= 0:
            _flush(g, state)


def _flush(g: int, state: State) -> None:
    """Sums a bucket; its parameters are complete with that."""
    numbers, members, next_in = state.numbers, state.members, state.next_in
    when, after, rows = state.when, state.after, state.rows
    numbers[CLOCK] += 1
    n = _write(SUM, g, -1, -1, numbers, rows)
    rows[n * COLUMNS + COLLECTIVE], rows[n * COLUMNS + GROUP] = ALL_REDUCE, g
    rows[n * COLUMNS + MEMBER_AT] = numbers[SUMMED]
    p, count = state.first_in[g], 0
    while p >= 0:
        members[numbers[SUMMED] + count] = p
        when[p], after[p] = numbers[CLOCK], n
        p = next_in[p]
        count += 1
    rows[n * COLUMNS + MEMBERS] = count
    numbers[SUMMED] += count
    state.first_in[g], state.filled[g] = -1, 0


def _update(facts: Facts, state: State) -> None:
    """Updates all parameters that are complete; a server sends the result back."""
    numbers, done, when, after, rows = (
        state.numbers, state.done, state.when, state.after, state.rows,
    )  # fmt: skip
    rank, served, group = facts.rank, facts.way == SERVER, facts.group
    if facts.way == SLICES or facts.way == SLICE_SUMS:
        return  # they were updated one by one
    for k in range(1, numbers[DONE]):  # almost in order
        p, at = done[k], k
        while at > 0 and goes_before(when[p], rank[p], when[done[at - 1]], rank[done[at - 1]]):
            done[at] = done[at - 1]
            at -= 1
        done[at] = p
    for k in range(numbers[DONE]):
        p = done[k]
        n = _write(UPDATE, p, p, after[p], numbers, rows)
        if served and group[p] >= 0:
            _write(PULL, p, -1, n, numbers, rows)
    numbers[DONE] = 0


def _serve(p: int, facts: Facts, numbers: Numbers, rows: Numbers) -> None:
    """Slices go to their servers, are updated there, and come back, one by one."""
    for s in range(facts.first[p], facts.first[p] + facts.slices[p]):
        n = -1
        if facts.travels[s]:
            n = _write(PUSH, s, p, -1, numbers, rows)
        n = _write(UPDATE, s, p, n, numbers, rows)
        if facts.travels[s] and facts.returned:
            _write(PULL, s, -1, n, numbers, rows)


def _sum_slices(p: int, facts: Facts, numbers: Numbers, rows: Numbers) -> None:
    """Slices that one device alone holds are updated; all others are summed before."""
    for s in range(facts.first[p], facts.first[p] + facts.slices[p]):
        if not facts.travels[s]:
            _write(UPDATE, s, p, -1, numbers, rows)
    for s in range(facts.first[p], facts.first[p] + facts.slices[p]):
        if facts.travels[s] and not facts.ordered:
            sum_slice(s, p, numbers, rows)


def sum_slice(s: int, p: int, numbers: Numbers, rows: Numbers) -> None:
    """Sums a slice over its holders, and updates it on each."""
    n = _write(SUM, s, p, -1, numbers, rows)
    rows[n * COLUMNS + COLLECTIVE] = ALL_REDUCE
    _write(UPDATE, s, -1, n, numbers, rows)


def _write(
    what: int, subject: int, parameter: int, after: int, numbers: Numbers,
    rows: Numbers,
) -> int:  # fmt: skip
    n = numbers[ROWS]
    at = n * COLUMNS
    rows[at + WHAT], rows[at + SUBJECT], rows[at + COLLECTIVE] = what, subject, NO_COLLECTIVE
    rows[at + GROUP], rows[at + PARAMETER], rows[at + AFTER] = -1, parameter, after
    rows[at + MEMBER_AT], rows[at + MEMBERS] = 0, 0
    numbers[ROWS] = n + 1
    return n
