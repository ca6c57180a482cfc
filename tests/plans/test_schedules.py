"""The named schedules: their pictures, and the formulas of their papers (bubbles, memory, versions)."""

from __future__ import annotations

from fractions import Fraction
from inspect import cleandoc
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_schedule import is_linear_extension

from raddle.errors import InputError
from raddle.plans.schedule import (
    Action,
    Schedule,
    Time,
    all_actions_in_order,
    bubble,
    draw_schedule,
    peak_alive,
    schedule_from_text,
    schedule_to_text,
    time_slots,
)
from raddle.plans.schedules import (
    ASYNCHRONOUS,
    MAKERS,
    NAMES,
    SCHEDULES,
    named_schedule,
    peak_versions,
    update_positions,
    versions_used,
)
from raddle.plans.schedules.unidirectional import interleaved
from raddle.reports.schedules import describe_schedule, show_schedule

# P: workers, m: micro-batches, v: stages a worker, f, b, w: durations of F, B, W

WORKERS = st.integers(1, 7)
COUNTS = st.integers(1, 18)
TIMES = st.fractions(Fraction(1, 4), 4, max_denominator=4)

PICTURES = {  # (name, stages, workers, micro-batches); the docstrings show the same
    ("sequential", 2, 2, 2): """
        F0 .. .. B0 F1 .. .. B1
        .. F0 B0 .. .. F1 B1 ..
    """,
    ("gpipe", 2, 2, 3): """
        F0 F1 F2 .. .. B2 B1 B0
        .. F0 F1 F2 B2 B1 B0 ..
    """,
    ("1f1b", 3, 3, 4): """
        F0 F1 F2 .. .. B0 F3 B1 .. B2 .. B3
        .. F0 F1 .. B0 F2 B1 F3 B2 .. B3 ..
        .. .. F0 B0 F1 B1 F2 B2 F3 B3 .. ..
    """,
    ("interleaved", 4, 2, 4): """
        F0.0 F1.0 F0.2 F1.2 F2.0 B0.2 F3.0 B1.2 F2.2 B0.0 F3.2 B1.0 .... B2.2 .... B3.2 B2.0 B3.0
        .... F0.1 F1.1 F0.3 B0.3 F1.3 B1.3 F2.1 B0.1 F3.1 B1.1 F2.3 B2.3 F3.3 B3.3 B2.1 B3.1 ....
    """,
    ("zb-h1", 3, 3, 4): """
        F0 F1 F2 .. .. B0 W0 F3 B1 W1 B2 W2 B3 W3
        .. F0 F1 .. B0 F2 B1 W0 F3 B2 W1 B3 W2 W3
        .. .. F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3
    """,
    ("zb-h2", 3, 3, 5): """
        F0 F1 F2 F3 F4 B0 W0 B1 W1 B2 W2 B3 W3 B4 W4 .. ..
        .. F0 F1 F2 B0 F3 B1 F4 B2 W0 B3 W1 B4 W2 W3 W4 ..
        .. .. F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 W0 W1 W2 W3 W4
    """,
    ("gems", 3, 3, 2): """
        F0.0 .... .... .... .... B0.0 F1.2 B1.2 .... ....
        .... F0.1 .... .... B0.1 F1.1 .... .... B1.1 ....
        .... .... F0.2 B0.2 F1.0 .... .... .... .... B1.0
    """,
    ("gems-basic", 2, 2, 2): """
        F0.0 .... .... B0.0 .... F1.1 B1.1 ....
        .... F0.1 B0.1 .... F1.0 .... .... B1.0
    """,
    ("chimera", 4, 4, 4): """
        F0.0 F1.0 .... F2.3 B2.3 F3.3 B3.3 B0.0 .... B1.0
        .... F0.1 F2.2 F1.1 F3.2 B2.2 B0.1 B3.2 B1.1 ....
        .... F2.1 F0.2 F3.1 F1.2 B0.2 B2.1 B1.2 B3.1 ....
        F2.0 F3.0 .... F0.3 B0.3 F1.3 B1.3 B2.0 .... B3.0
    """,
    ("pipedream", 3, 3, 6): """
        F0 F1 F2 .. .. B0 F3 B1 F4 B2 F5 B3 .. B4 .. B5
        .. F0 F1 .. B0 F2 B1 F3 B2 F4 B3 F5 B4 .. B5 ..
        .. .. F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 .. ..
    """,
    ("2bw", 2, 2, 4): """
        F0 F1 .. B0 F2 B1 F3 B2 .. B3
        .. F0 B0 F1 B1 F2 B2 F3 B3 ..
    """,
}
MORE_PICTURES = {
    # Fewer micro-batches than workers.
    ("1f1b", 3, 3, 2): """
        F0 F1 .. .. .. B0 .. B1
        .. F0 F1 .. B0 .. B1 ..
        .. .. F0 B0 F1 B1 .. ..
    """,
    # MASTER: the next pair's forward chases the second replica's backward in turn.
    ("gems", 2, 2, 4): """
        F0.0 .... .... B0.0 F1.1 B1.1 F2.0 .... .... B2.0 F3.1 B3.1 ....
        .... F0.1 B0.1 F1.0 .... .... B1.0 F2.1 B2.1 F3.0 .... .... B3.0
    """,
    # A group of two, one each way.
    ("chimera", 4, 4, 2): """
        F0.0 .... .... F1.3 B1.3 .... .... B0.0
        .... F0.1 F1.2 .... .... B1.2 B0.1 ....
        .... F1.1 F0.2 .... .... B0.2 B1.1 ....
        F1.0 .... .... F0.3 B0.3 .... .... B1.0
    """,
    # Two groups: the forwards of 4 and 5 stand in the first group's bubbles.
    ("chimera", 2, 2, 4): """
        F0.0 F1.1 B1.1 B0.0 F2.0 F3.1 B3.1 B2.0
        F1.0 F0.1 B0.1 B1.0 F3.0 F2.1 B2.1 B3.0
    """,
    # Megatron's rows for four micro-batches, without the fourth.
    ("interleaved", 4, 2, 3): """
        F0.0 F1.0 F0.2 F1.2 F2.0 B0.2 .... B1.2 F2.2 B0.0 B1.0 .... B2.2 .... B2.0
        .... F0.1 F1.1 F0.3 B0.3 F1.3 B1.3 F2.1 B0.1 B1.1 F2.3 B2.3 .... B2.1 ....
    """,
}


def lines(picture: str) -> list[str]:
    return cleandoc(picture).splitlines()


@pytest.mark.parametrize("case", [*PICTURES, *MORE_PICTURES])
def test_picture(case: tuple[str, int, int, int]) -> None:
    assert draw_schedule(named_schedule(*case)) == lines((PICTURES | MORE_PICTURES)[case])


@pytest.mark.parametrize("case", PICTURES)
def test_docstring_shows_the_picture(case: tuple[str, int, int, int]) -> None:
    maker = interleaved if case[0] == "interleaved" else MAKERS[case[0]]
    if case[0] != "2bw":  # says that it has pipedream's
        assert cleandoc(PICTURES[case]) in cleandoc(maker.__doc__ or "")


def test_every_name_has_a_picture() -> None:
    assert {name for name, *_ in PICTURES} == set(NAMES)


def some(name: str) -> list[Schedule]:
    chunks = (1, 2, 3) if name == "interleaved" else (1,)
    workers = (2, 4) if name == "chimera" else (1, 2, 3, 4, 5)
    return [
        named_schedule(name, v * P, P, m) for v in chunks for P in workers for m in range(1, 10)
    ]


@pytest.mark.parametrize("name", NAMES)
def test_all_actions_once_in_an_order_and_as_text(name: str) -> None:
    for schedule in some(name):
        phases = "FBW" if name.startswith("zb") else "FB"
        stages, micro = range(schedule.stages), range(schedule.microbatches)
        ordered = all_actions_in_order(schedule)
        assert sorted(ordered) == sorted(
            Action(p, s, m) for p in phases for s in stages for m in micro
        )
        assert is_linear_extension(schedule, ordered)
        assert schedule_from_text(schedule_to_text(schedule)) == schedule
        assert schedule_from_text("\n".join(draw_schedule(schedule))).rows == schedule.rows


def makespan(schedule: Schedule, *times: Time) -> Time:
    return max(line[-1][1] for line in time_slots(schedule, *times))


@given(WORKERS, COUNTS, TIMES, TIMES)
def test_bubble_of_sequential(P: int, m: int, f: Fraction, b: Fraction) -> None:
    assert bubble(named_schedule("sequential", P, P, m), f, b) == Fraction(P - 1, P)
    assert bubble(named_schedule("gems-basic", P, P, m), f, b) == Fraction(P - 1, P)
    assert peak_alive(named_schedule("sequential", P, P, m)) == [1] * P


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@given(WORKERS, COUNTS, TIMES, TIMES)
def test_bubble_of_gpipe_and_1f1b(name: str, P: int, m: int, f: Fraction, b: Fraction) -> None:
    """Also for m < P: the critical path goes down, along the last worker's row, and up."""
    assert bubble(named_schedule(name, P, P, m), f, b) == Fraction(P - 1, m + P - 1)


@given(WORKERS, COUNTS)
def test_alive_in_gpipe_and_1f1b(P: int, m: int) -> None:
    assert peak_alive(named_schedule("gpipe", P, P, m)) == [m] * P
    assert peak_alive(named_schedule("1f1b", P, P, m)) == [min(m, P - s) for s in range(P)]


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), TIMES, TIMES)
def test_bubble_of_interleaved(P: int, v: int, groups: int, f: Fraction, b: Fraction) -> None:
    m = groups * P
    schedule = named_schedule("interleaved", v * P, P, m)
    assert bubble(schedule, f, b) == Fraction(P - 1, v * m + P - 1)
    if v > 1:
        ahead = [2 * (P - 1 - w) + (v - 1) * P + 1 for w in range(P)]
        assert peak_alive(schedule) == [min(v * m, most) for most in ahead]


@given(WORKERS, COUNTS, TIMES, TIMES, TIMES)
def test_idle_time_of_zb_h1(P: int, m: int, f: Fraction, b: Fraction, w: Fraction) -> None:
    """The paper's (P-1)(F + B - W) for m >= P and W <= F, B; fewer micro-batches have less W to fill in."""
    schedule = named_schedule("zb-h1", P, P, m)
    idle = makespan(schedule, f, b, w) - m * (f + b + w)
    assert idle == (P - 1) * (f + b) - (min(m, P) - 1) * min(f, b, w)
    if m >= P and w <= f and w <= b:
        assert idle == (P - 1) * (f + b - w)
    assert peak_alive(schedule) == [min(m, P)] * P


@given(WORKERS, st.integers(0, 9), TIMES, TIMES)
def test_zb_h2_has_no_bubble_inside(P: int, more: int, f: Fraction, w: Fraction) -> None:
    """From a worker's first action to its last: with F = B the paper's (P-1)(F + B - 2W), or none."""
    m = 2 * P - 1 + more
    schedule = named_schedule("zb-h2", P, P, m)
    assert [line[-1][1] - line[0][0] for line in time_slots(schedule)] == [3 * m] * P
    spans = [line[-1][1] - line[0][0] for line in time_slots(schedule, f, f, w)]
    assert max(spans) - m * (f + f + w) == max(0, (P - 1) * (f + f - 2 * w))
    assert peak_alive(schedule) == [2 * P - 1] * P


@given(WORKERS, COUNTS, TIMES, TIMES)
def test_bubble_of_gems(P: int, m: int, f: Fraction, b: Fraction) -> None:
    """A forward that chases a backward takes P times the slower of the two, and one of the faster."""
    schedule = named_schedule("gems", P, P, m)
    period = P * max(f, b) + min(f, b)
    assert makespan(schedule, f, b) == P * (f + b) + (m - 1) * period
    assert peak_alive(schedule) == [1] * P


@pytest.mark.parametrize("P", [2, 3, 4, 8])
def test_gems_tends_to_its_limit(P: int) -> None:
    """Backward = 2 × forward: from above, within 0.01 with 50 pairs; below 1.5 × sequential's speed."""
    limit = Fraction(P - 1) / (P + Fraction(1, 2))
    bubbles = [bubble(named_schedule("gems", P, P, 2 * pairs), 1, 2) for pairs in (1, 2, 5, 10, 50)]
    assert bubbles == sorted(bubbles, reverse=True)
    assert 0 < bubbles[-1] - limit < Fraction(1, 100)
    speedups = [
        makespan(named_schedule("sequential", P, P, m), 1, 2)
        / Fraction(makespan(named_schedule("gems", P, P, m), 1, 2))
        for m in (2, 10, 100)
    ]
    assert 1 < speedups[0] < speedups[1] < speedups[2] < Fraction(3, 2)


EVEN = st.integers(1, 4).map(lambda half: 2 * half)


@given(EVEN, st.integers(1, 4))
def test_bubble_of_chimera(P: int, groups: int) -> None:
    """The paper's two formulas: the first for m any multiple of P, the second for m = P."""
    m = groups * P
    assert bubble(named_schedule("chimera", P, P, m)) == Fraction(P - 2, 2 * m + P - 2)
    assert bubble(named_schedule("chimera", P, P, P), 1, 2) == (P - 2) / (
        Fraction(3, 2) * P + P - 2
    )


@given(EVEN, st.integers(1, 4), TIMES, TIMES)
def test_idle_time_of_chimera(P: int, groups: int, f: Fraction, b: Fraction) -> None:
    """Groups fit together without a bubble if f = b; otherwise each border costs the difference."""
    schedule = named_schedule("chimera", P, P, groups * P)
    idle = makespan(schedule, f, b) - groups * P * (f + b)
    assert idle == (P - 2) * (max(f, b) + (groups - 1) * abs(f - b))


@given(EVEN, st.integers(1, 4), st.integers(0, 7))
def test_alive_in_chimera(P: int, groups: int, more: int) -> None:
    """Between P/2 + 1 on the outer workers and P on the inner ones."""
    most = [P // 2 + 1 + min(w, P - 1 - w) for w in range(P)]
    assert max(most) == P
    assert peak_alive(named_schedule("chimera", P, P, groups * P)) == most
    assert all(
        a <= b
        for a, b in zip(peak_alive(named_schedule("chimera", P, P, more + 1)), most, strict=True)
    )


@given(WORKERS, st.integers(8, 30))
def test_pipedream_never_idles_between_fill_and_drain(P: int, m: int) -> None:
    for s, line in enumerate(time_slots(named_schedule("pipedream", P, P, m))):
        actions = [action for _, _, action in line]
        steady = line[actions.index(Action("B", s, 0)) : actions.index(Action("F", s, m - 1)) + 1]
        assert all(one[1] == following[0] for one, following in pairwise(steady))


@given(WORKERS, st.integers(8, 30))
def test_versions_of_pipedream(P: int, m: int) -> None:
    """F(s, m) follows B(s, m - (P-s)), so stage s misses the updates of the P-1-s micro-batches before."""
    schedule = named_schedule("pipedream", P, P, m, per_step=1)
    used = versions_used(schedule, 1, "latest")
    assert used == {(s, i): max(0, i - (P - 1 - s)) for s in range(P) for i in range(m)}
    if m >= 2 * P - 1:  # during the fill all forwards use version 0
        assert peak_versions(schedule, 1, "latest") == [P - s for s in range(P)]


@given(st.integers(2, 7), st.integers(0, 4), st.integers(2, 5))
def test_versions_of_2bw(P: int, more: int, steps: int) -> None:
    """One update late everywhere, with two versions, from P - 1 micro-batches a step on."""
    per_step = P - 1 + more
    schedule = named_schedule("2bw", P, P, steps * per_step, per_step=per_step)
    used = versions_used(schedule, per_step, "2bw")
    assert used == {(s, i): max(0, i // per_step - 1) for s, i in used}
    assert peak_versions(schedule, per_step, "2bw") == [2] * P


def test_updates() -> None:
    """Worker 0 runs F0 F1 B0 F2 B1 F3 B2 B3, worker 1 runs F0 B0 F1 B1 F2 B2 F3 B3."""
    schedule = named_schedule("pipedream", 2, 2, 4)
    assert update_positions(schedule, 2) == [[5, 8], [4, 8]]
    assert versions_used(schedule, 2, "latest") == {
        (0, 0): 0, (0, 1): 0, (0, 2): 0, (0, 3): 1,
        (1, 0): 0, (1, 1): 0, (1, 2): 1, (1, 3): 1,
    }  # fmt: skip
    assert peak_versions(schedule, 2, "latest") == [2, 1]
    assert peak_versions(schedule, 4, "latest") == [1, 1]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_printed_is_the_schedule(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With what it waits for: printed, saved to a file and read, nothing is lost."""
    for workers, m in [(1, 1), (2, 3), (4, 5)] if name != "chimera" else [(2, 3), (4, 5)]:
        schedule = named_schedule(name, workers, workers, m)
        show_schedule(describe_schedule(schedule, name))
        assert schedule_from_text(capsys.readouterr().out) == schedule


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ASYNCHRONOUS])
def test_a_flush_leaves_one_version(name: str) -> None:
    for schedule in some(name):
        assert set(versions_used(schedule, schedule.microbatches, "latest").values()) == {0}
        assert set(peak_versions(schedule, schedule.microbatches, "latest")) == {1}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("2f2b", 2, 2, 2), "there is no schedule '2f2b': use one of sequential, gpipe, 1f1b"),
        (("1f1b", 2, 2, 0), "got 2, 2 and 0: use at least one of each"),
        (
            ("1f1b", 4, 2, 2),
            "1f1b runs one stage per worker, got 4 stages on 2: cut 2 stages, or use inter",
        ),
        (("interleaved", 5, 2, 2), "as many stages on every worker, got 5 on 2: cut 6 stages"),
        (("chimera", 3, 3, 4), "chimera needs an even number of workers, got 3: use 4, or 1f1b"),
    ],
)
def test_what_a_schedule_needs(arguments: tuple[str, int, int, int], says: str) -> None:
    with pytest.raises(InputError, match=says):
        named_schedule(*arguments)


@pytest.mark.parametrize(
    ("name", "per_step", "says"),
    [
        (
            "1f1b",
            4,
            "1f1b ends with every step, got 12 micro-batches in steps of 4: make one schedule",
        ),
        ("pipedream", 5, "12 micro-batches are not whole steps of 5: use a multiple"),
        ("pipedream", 0, "12 micro-batches are not whole steps of 0"),
        (
            "2bw",
            2,
            "needs version 1, but its worker is at 0: use more than 2 micro-batches per step",
        ),
    ],
)
def test_what_steps_need(name: str, per_step: int, says: str) -> None:
    with pytest.raises(InputError, match=says):
        named_schedule(name, 4, 4, 12, per_step=per_step)


def test_what_versions_need() -> None:
    schedule = named_schedule("2bw", 4, 4, 12)
    with pytest.raises(InputError, match="12 micro-batches are not whole steps of 5"):
        versions_used(schedule, 5, "latest")
    with pytest.raises(
        InputError, match="there is no rule 'newest' for versions: use latest or 2bw"
    ):
        versions_used(schedule, 4, "newest")
    with pytest.raises(
        InputError, match="micro-batch 4 on stage 0 needs version 1, but its worker is at 0"
    ):
        versions_used(schedule, 2, "2bw")


def test_every_schedule_is_in_the_docs() -> None:
    """Files declare schedules; lists and help are drawn from them, the guide is written by hand."""
    guide = (Path(__file__).parents[2] / "docs" / "pipelines.md").read_text()
    assert [name for name in NAMES if f"`{name}`" not in guide] == []
    assert NAMES[:3] == ("sequential", "gpipe", "1f1b")
    assert {name for name in NAMES if SCHEDULES[name].splits_backward} == {"zb-h1", "zb-h2"}
