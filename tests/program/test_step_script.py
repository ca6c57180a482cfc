"""The step script on lists: when gradients are sent or summed, and when parameters are updated."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from raddle.program import step_script
from raddle.program.step_script import (
    ACTION_ENDS,
    ALL_REDUCE,
    BUCKETS,
    COLLECTIVE,
    COLUMNS,
    COMPLETE,
    REDUCE_SCATTER,
    ROWS,
    SERVER,
    SHARDS,
    SLICE_SUMS,
    SLICES,
    STEP_ENDS,
    SUM,
    TURN,
    ScriptState,
    SyncFacts,
)

Event = tuple[int, int, int]  # event, subject, run


def facts(rule: int, count: int, **more: Any) -> SyncFacts:
    """`count` parameters of 10 bytes in one group, each a bundle that needs synchronisation."""
    plain = SyncFacts(
        rule, 25, False, True, False, False, [0] * count, [10] * count, [0] * count,
        list(range(count + 1)), list(range(count)), [1] * count, list(range(count)),
    )  # fmt: skip
    return plain._replace(**more)


def picture(sync_facts: SyncFacts, events: Sequence[Event]) -> str:
    """Draws the rows of each event: S sum (with its parameters), > push, U update, < pull.

    R is a sum over the replicas of shards, which waits for a reduce-scatter.

    * marks a row that waits for a gradient; | separates events.
    """
    count, rows = len(sync_facts.group_of), [0] * 1000
    left = [sum(sync_facts.group_of[p] == g for p in range(count)) for g in range(count)]
    missing = [list(sync_facts.bundles).count(s) for s in range(len(sync_facts.needs_sync))]
    state = ScriptState(
        [0] * step_script.COUNTERS,
        left,
        *([0] * count, [-1] * count, *([0] * count for _ in range(7))),
        missing,
        rows,
    )
    at = [0] * (len(events) + 1)
    step_script.write_rows(*([e[k] for e in events] for k in range(3)), sync_facts, state, at)
    assert at[-1] == state.counters[ROWS]
    words = []
    for n in range(at[-1]):
        what, subject, collective, group, p, after, first, members = rows[
            n * COLUMNS : (n + 1) * COLUMNS
        ]
        of = "+".join(str(state.sum_members[first + k]) for k in range(members)) or str(subject)
        assert after < n
        assert (group >= 0) == (members > 0)
        if what == SUM and after >= 0:
            assert (collective, rows[after * COLUMNS + COLLECTIVE]) == (ALL_REDUCE, REDUCE_SCATTER)
        words.append(
            ("R" if what == SUM and after >= 0 else "S>U<"[what]) + of + ("*" if p >= 0 else "")
        )
    return " | ".join(" ".join(words[a:b]) for a, b in pairwise(at))


def complete(*parameters: int) -> list[Event]:
    return [(COMPLETE, p, n) for n, p in enumerate(parameters)]


ENDS = [(ACTION_ENDS, -1, -1), (STEP_ENDS, -1, -1)]


def test_a_bucket_is_summed_when_it_is_full_or_nothing_more_is_coming() -> None:
    drawn = picture(facts(BUCKETS, 4), [*complete(0, 1, 2, 3), *ENDS])
    assert drawn == " |  | S0+1+2 |  | S3 | U0* U1* U2* U3*"


def test_a_bucket_waits_while_more_is_coming_for_its_group() -> None:
    events = [*complete(0), (ACTION_ENDS, -1, -1), (COMPLETE, 1, 9), *ENDS]
    assert picture(facts(BUCKETS, 2), events) == " |  |  | S0+1 | U0* U1*"


def test_groups_have_buckets_of_their_own() -> None:
    drawn = picture(facts(BUCKETS, 4, group_of=[0, 1, 0, 1]), [*complete(0, 1, 2, 3), *ENDS])
    assert drawn == " |  |  |  | S0+2 S1+3 | U0* U2* U1* U3*"


def test_updates_are_in_the_order_in_which_gradients_are_complete() -> None:
    """One device holds parameter 1, so it is ready before the others are summed."""
    drawn = picture(facts(BUCKETS, 3, group_of=[0, -1, 0]), [*complete(2, 1, 0), *ENDS])
    assert drawn == " |  |  | S2+0 | U1* U0* U2*"


def test_parameters_that_one_operator_completes_are_updated_as_they_began() -> None:
    grouped = facts(BUCKETS, 3, group_of=[-1] * 3, contribution_order=[2, 0, 1])
    assert picture(grouped, [(COMPLETE, p, 5) for p in (0, 1, 2)] + ENDS).endswith("U1* U2* U0*")


def test_a_server_is_sent_a_gradient_at_once_and_sends_the_parameter_after_the_step() -> None:
    drawn = picture(facts(SERVER, 3, group_of=[0, -1, 0]), [*complete(0, 1, 2), *ENDS])
    assert drawn == ">0* |  | >2* |  | U0* <0 U1* U2* <2"


def test_where_steps_overlap_a_parameter_is_updated_at_once() -> None:
    overlapping = facts(BUCKETS, 2, bucket_bytes=0, update_at_once=True)
    assert picture(overlapping, [*complete(1, 0)]) == "S1 U1* | S0 U0*"


def test_after_the_backward_everything_is_sent_when_the_step_ends() -> None:
    """The rows are those of a step in which gradients are sent at once, in the same order."""
    for rule in (BUCKETS, SERVER, SLICES, SLICE_SUMS):
        at_once = facts(rule, 4, needs_sync=[1, 0, 1, 1])
        events = [*complete(3, 1, 0, 2), *ENDS]
        drawn = picture(at_once._replace(after_backward=True), events).split("|")
        assert not "".join(drawn[:-1]).strip()
        assert drawn[-1].split() == picture(at_once, events).replace("|", " ").split()


def test_a_block_is_reduce_scattered_when_complete_and_gathered_after_the_updates() -> None:
    drawn = picture(facts(SHARDS, 3, group_of=[1, 0, 0]), [*complete(2, 1, 0), *ENDS])
    assert drawn == " | S2+1 | S0 |  | U1* U2* U0* <0 <2+1"


def test_replicas_are_summed_before_the_next_but_one_reduce_scatter() -> None:
    """Shards of parameter 2 have no replicas."""
    shards = facts(SHARDS, 5, group_of=list(range(5)), replicated=[1, 1, 0, 1, 1])
    drawn = picture(shards, [*complete(0, 1, 2, 3, 4), *ENDS])
    assert drawn.startswith("S0 | S1 | R0 S2 | S3 | R1 S4 |  | R3 R4 U0* U1* U2*")
    assert drawn.endswith("U4* <4 <3 <2 <1 <0")
    after = picture(shards._replace(after_backward=True), [*complete(0, 1, 2, 3, 4), *ENDS])
    assert after == " |  |  |  |  |  | " + drawn.replace(" | ", " ").replace("  ", " ")


def test_slices_are_served_one_by_one() -> None:
    sliced = facts(SLICES, 2, first_bundle=[0, 2, 3], bundles=[0, 1, 2], needs_sync=[1, 0, 1])
    assert picture(sliced, [*complete(1, 0), *ENDS]) == ">2* U2* <2 | >0* U0* <0 U1* |  | "
    sliced = sliced._replace(pull_at_once=False)
    assert picture(sliced, complete(1, 0)) == ">2* U2* | >0* U0* U1*"


def test_a_bundle_waits_for_its_last_gradient() -> None:
    """Bundle 0 has slices of parameters 0 and 1, and two of 2; bundle 1 has one of parameter 1."""
    places = {"first_bundle": [0, 1, 3, 5], "bundles": [0, 0, 1, 0, 0], "needs_sync": [1, 1, 1]}
    served = facts(SLICES, 3, **places)
    assert picture(served, complete(1, 2, 0)) == ">1* U1* <1 |  | >0* U0* <0"
    assert picture(served, complete(0, 1, 2)) == " | >1* U1* <1 | >0* U0* <0"
    summed = facts(SLICE_SUMS, 3, **places)
    assert picture(summed, complete(0, 1, 2)) == " | S1* U1 | S0* U0"


def test_slices_are_summed_one_by_one_or_when_it_is_their_turn() -> None:
    sliced = facts(SLICE_SUMS, 2, first_bundle=[0, 2, 3], bundles=[0, 1, 2], needs_sync=[1, 0, 1])
    assert picture(sliced, complete(1, 0)) == "S2* U2 | U1* S0* U0"
    events = [*complete(0, 1), (TURN, 2, 1), (TURN, 0, 0)]
    assert picture(sliced._replace(ordered_sums=True), events) == "U1* |  | S2* U2 | S0* U0"


@given(st.data())
def test_every_parameter_is_summed_and_updated_once(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 8))
    group = [data.draw(st.integers(-1, count - 1)) for _ in range(count)]
    grouped = facts(BUCKETS, count, group_of=group, bucket_bytes=data.draw(st.integers(0, 50)))
    coming = data.draw(st.permutations(range(count)))
    words = picture(grouped, [*complete(*coming), *ENDS]).replace("|", " ").split()
    updated = [int(w[1:-1]) for w in words if w[0] == "U"]
    summed = [int(p) for w in words if w[0] == "S" for p in w[1:].split("+")]
    assert sorted(updated) == list(range(count))
    assert sorted(summed) == [p for p in range(count) if group[p] >= 0]
