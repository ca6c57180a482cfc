"""Schedules as data: dependencies, times, text, and rows that cannot be run."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raddle.errors import InputError
from raddle.plans.schedule import (
    Action,
    Schedule,
    all_actions_in_order,
    bubble,
    draw_schedule,
    peak_alive,
    schedule_from_text,
    schedule_to_text,
    time_slots,
)

F, B, W = (lambda s, m, phase=phase: Action(phase, s, m) for phase in "FBW")

TWO = schedule_from_text("F0 F1 B0 B1\nF0 B0 F1 B1")


def test_properties() -> None:
    assert (TWO.stages, TWO.microbatches, TWO.split) == (2, 2, False)
    assert TWO.rows[1] == (F(1, 0), B(1, 0), F(1, 1), B(1, 1))
    assert schedule_from_text("F0 B0 W0").split
    mirrored = schedule_from_text("F0.0 B0.0 F1.1 B1.1\nF0.1 B0.1 F1.0 B1.0")
    assert [mirrored.worker(s, m) for m in range(2) for s in range(2)] == [0, 1, 1, 0]


def test_order_is_by_start_then_by_worker() -> None:
    assert draw_schedule(TWO) == [
        "F0 F1 .. B0 .. B1",
        ".. F0 B0 F1 B1 ..",
    ]
    assert all_actions_in_order(TWO) == [
        F(0, 0), F(0, 1), F(1, 0), B(1, 0), B(0, 0), F(1, 1), B(1, 1), B(0, 1)
    ]  # fmt: skip


def test_slots_with_other_durations() -> None:
    first, second = time_slots(TWO, forward=1, backward=Fraction(5, 2))
    assert second == [
        (1, 2, F(1, 0)),
        (2, Fraction(9, 2), B(1, 0)),
        (Fraction(9, 2), Fraction(11, 2), F(1, 1)),
        (Fraction(11, 2), 8, B(1, 1)),
    ]
    assert first[-1] == (8, Fraction(21, 2), B(0, 1))
    assert bubble(TWO, 1, Fraction(5, 2)) == 1 - Fraction(4 * 7, 2) / (2 * Fraction(21, 2))


def test_weights_are_a_phase_of_their_own() -> None:
    split = schedule_from_text("F0 F1 B0 W0 B1 W1\nF0 B0 F1 B1 W0 W1")
    assert draw_schedule(split) == [
        "F0 F1 .. B0 W0 B1 W1",
        ".. F0 B0 F1 B1 W0 W1",
    ]
    assert bubble(split) == Fraction(2, 14)
    assert bubble(split, weights=2) == Fraction(2, 18)
    assert peak_alive(split) == [2, 2]
    assert peak_alive(TWO) == [2, 1]


def test_waits_are_respected() -> None:
    free = schedule_from_text("F0 B0 F1 B1")
    assert draw_schedule(Schedule(free.rows, ((F(0, 1), B(0, 0)),))) == draw_schedule(free)
    apart = schedule_from_text("F0.0 B0.0\nF1.0 B1.0\nF1.0 after B0.0")
    assert apart.waits == ((F(0, 1), B(0, 0)),)
    assert draw_schedule(apart) == [
        "F0.0 B0.0 .... ....",
        ".... .... F1.0 B1.0",
    ]
    assert all_actions_in_order(apart) == [F(0, 0), B(0, 0), F(0, 1), B(0, 1)]


def test_tokens_have_one_width() -> None:
    long = schedule_from_text(" ".join(f"F{m} B{m}" for m in range(11)))
    assert draw_schedule(long)[0].startswith("F0  B0  F1")
    assert draw_schedule(long)[0].endswith("F10 B10")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("B0 F0", "worker 0 cannot start B0 before its own F0, which comes later: change"),
        (
            "F0 B0 F1 B1\nF0 B0 F1 B1\nF1 F0 B0 B1",
            "worker 1 cannot start B0 before B0 of worker 2, which cannot start F1 before F1 of worker 1: "
            "change",
        ),
        (
            "F1 B1 F0 B0\nF0 B0 F1 B1",
            "worker 0 cannot start B1 before B1 of worker 1, which cannot start F0 before F0 of worker 0: "
            "change",
        ),
        (
            "F0.0 B0.0\nF1.0 B1.0\nF1.0 after B0.0\nF0.0 after B1.0",
            "worker 0 cannot start F0.0 before B1.0 of worker 1, "
            "which cannot start F1.0 before B0.0 of worker 0",
        ),
        ("F0 B0 F1", "B1.0 is missing: the schedule has 1 stages and 2 micro-batches, so add B1.0"),
        ("F0 B0\nF0", "B0.1 is missing"),
        ("F1 B1", "F0.0 is missing"),
        ("F999999999", "F0.0 is missing"),
        ("F0 B0 W0\nF0 B0", "W0.1 is missing"),
        ("F0 F0 B0", "worker 0 has F0.0 2 times: keep one"),
        (
            "F0\nB0.0",
            "stage 0 of micro-batch 0 is in the rows of workers 0 and 1: keep all its phases",
        ),
        ("F0 B0\nF1.0 after B0.0", "a wait names F1.0, which no row has: remove"),
    ],
)
def test_what_cannot_be_ordered_says_why(text: str, says: str) -> None:
    schedule = schedule_from_text(text)
    with pytest.raises(InputError) as caught:
        all_actions_in_order(schedule)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        (Schedule(()), "has no actions"),
        (Schedule(((),)), "has no actions"),
        (Schedule(((Action("X", 0, 0),),)), "worker 0 has X0.0, which is no action"),
        (Schedule(((Action("FB", 0, 0),),)), "worker 0 has FB0.0, which is no action"),
        (Schedule(((Action("F", 0, -1),),)), "which is no action"),
    ],
)
def test_what_is_no_schedule_says_why(schedule: Schedule, says: str) -> None:
    with pytest.raises(InputError, match=says):
        all_actions_in_order(schedule)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no actions"),
        (".. ..\n..", "no actions"),
        ("F0 B0\nF0 b0", r"line 2: 'b0' is no action: write F0, B0 or W0, or F0\.1"),
        ("F0 B0\n\nF0 B", "line 3: 'B' is no action"),
        ("F0.x", r"line 1: 'F0\.x' is no action"),
        ("F0..B0", r"line 1: 'F0\.\.B0' is no action"),
        ("F٣ B0", "line 1: 'F٣' is no action"),
        ("F12345678901 B0", "line 1: 'F12345678901' is no action"),
        (
            "F0 B0\nF0 after B0.0",
            r"line 2: 'F0' is no action: write F0\.1 \(micro-batch 0 of stage 1\)",
        ),
        (
            "F0 B0\nafter F0.0",
            r"line 2: cannot read 'after F0\.0': write a wait as F1\.0 after B0\.0",
        ),
    ],
)
def test_damaged_text_names_token_and_line(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        schedule_from_text(text)


def test_text() -> None:
    text = "F0 F1 B0 B1\nF0 B0 F1 B1"
    assert schedule_to_text(TWO) == text
    assert schedule_from_text("\n".join(draw_schedule(TWO))) == TWO
    assert schedule_from_text("\n  F0 F1\t.. B0 .... B1 \n\n. F0 B0 F1 B1\n") == TWO
    assert schedule_from_text("F0.0 F1 B0 B1\nF0 B0.1 F1 B1") == TWO
    assert (
        schedule_from_text("  0  F0 F1 .. B0 B1\n  1  .. F0 B0 F1 B1  # the last\n# idle 20 %")
        == TWO
    )
    mixed = Schedule(((F(0, 0), B(0, 0)), (), (F(0, 1), B(0, 1))), ((F(0, 1), F(0, 0)),))
    assert schedule_to_text(mixed) == "F0.0 B0.0\n.\nF1.0 B1.0\nF1.0 after F0.0"
    assert schedule_from_text(schedule_to_text(mixed)) == mixed


ACTIONS = [Action(phase, s, m) for phase in "FB" for s in range(2) for m in range(2)]


def is_linear_extension(schedule: Schedule, actions: list[Action]) -> bool:
    at = {action: i for i, action in enumerate(actions)}
    last = schedule.stages - 1
    return (
        all(at[a] < at[b] for row in schedule.rows for a, b in pairwise(row))
        and all(at[F(s - 1, m)] < at[F(s, m)] for phase, s, m in at if phase == "F" and s > 0)
        and all(at[F(s, m)] < at[B(s, m)] for phase, s, m in at if phase == "B")
        and all(at[B(s + 1, m)] < at[B(s, m)] for phase, s, m in at if phase == "B" and s < last)
        and all(at[B(s, m)] < at[W(s, m)] for phase, s, m in at if phase == "W")
        and all(at[second] < at[first] for first, second in schedule.waits)
    )


@given(st.permutations(ACTIONS), st.lists(st.integers(0, 2), min_size=4, max_size=4))
def test_random_rows_are_ordered_or_refused(actions: list[Action], workers: list[int]) -> None:
    """Each (stage, micro-batch) on a random worker, in random order."""
    schedule = Schedule(
        tuple(
            tuple(
                action for action in actions if workers[2 * action.stage + action.micro_batch] == w
            )
            for w in range(3)
        )
    )
    try:
        ordered = all_actions_in_order(schedule)
    except InputError:
        return
    assert sorted(ordered) == sorted(ACTIONS)
    assert is_linear_extension(schedule, ordered)


@given(
    st.lists(st.lists(st.sampled_from([*ACTIONS, W(0, 0)]), max_size=5), max_size=3),
    st.lists(st.tuples(st.sampled_from(ACTIONS), st.sampled_from(ACTIONS)), max_size=2),
)
def test_any_rows_are_ordered_or_refused(
    lines: list[list[Action]], waits: list[tuple[Action, Action]]
) -> None:
    schedule = Schedule(tuple(map(tuple, lines)), tuple(waits))
    try:
        ordered = all_actions_in_order(schedule)
    except InputError:
        return
    assert is_linear_extension(schedule, ordered)


@given(st.text(alphabet="FBW019. \nafter", max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        schedule = schedule_from_text(text)
    except InputError:
        return
    assert schedule_from_text(schedule_to_text(schedule)) == schedule
