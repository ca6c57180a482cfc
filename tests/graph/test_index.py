"""Index expressions: the closed form of a range equals evaluating the expression at every point."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from raddle.graph.index import parse_index

DIMS = ["a", "b", "c"]


@st.composite
def ranges(draw: Any) -> list[tuple[int, int]]:
    los = [draw(st.integers(0, 9)) for _ in DIMS]
    return [(lo, lo + draw(st.integers(1, 6))) for lo in los]


def brute_force(
    expression: str, box: list[tuple[int, int]], extent: int, den: int = 1
) -> tuple[int, int]:
    values = []
    for point in itertools.product(*(range(lo, hi) for lo, hi in box)):
        value = eval(expression, {}, dict(zip(DIMS, point, strict=True)))
        if value % den == 0 and 0 <= value // den < extent:
            values.append(value // den)
    return (min(values), max(values) + 1) if values else (0, 0)


@given(ranges(), st.integers(1, 4), st.integers(1, 4), st.integers(0, 12), st.integers(1, 30))
def test_window(box: Any, stride: int, dilation: int, padding: int, extent: int) -> None:
    text = f"a*{stride}+b*{dilation}-{padding}"
    assert parse_index(text, DIMS, extent, {}, {}).range(box) == brute_force(text, box, extent)


@given(ranges(), st.integers(1, 4), st.integers(1, 4), st.integers(0, 12), st.integers(1, 30))
def test_exact_division(box: Any, stride: int, dilation: int, padding: int, extent: int) -> None:
    inner = f"a-b*{dilation}+{padding}"
    computed = parse_index(f"({inner})/{stride}", DIMS, extent, {}, {}).range(box)
    assert computed == brute_force(inner, box, extent, stride)


@given(ranges(), st.integers(1, 5), st.integers(1, 5), st.integers(1, 4))
def test_digits(box: Any, div: int, mod: int, coef: int) -> None:
    text = f"a//{div}%{mod}*{coef}+b"
    assert parse_index(text, DIMS, 999, {}, {}).range(box) == brute_force(text, box, 999)


@given(ranges(), st.integers(1, 5), st.integers(1, 5))
def test_groups(box: Any, filters: int, channels: int) -> None:
    text = f"a//{filters}*{channels}+b"
    names = {"cg": filters, "kg": channels}
    assert parse_index("a//cg*kg+b", DIMS, 999, names, {}).range(box) == brute_force(text, box, 999)


@given(ranges(), st.integers(0, 20))
def test_constants_and_all(box: Any, at: int) -> None:
    assert parse_index(str(at), DIMS, 21, {}, {}).range(box) == (at, at + 1)
    assert parse_index(":", DIMS, 21, {}, {}).range(box) == (0, 21)


@given(ranges(), st.lists(st.integers(0, 30), min_size=15, max_size=15))
def test_table(box: Any, starts: list[int]) -> None:
    table = tuple((s, s + 1 + i % 3) for i, s in enumerate(starts))
    lo, hi = box[0]
    part = table[lo:hi]
    computed = parse_index("taps(a)", DIMS, 40, {}, {"taps": table}).range(box)
    assert computed == (min(s for s, _ in part), max(e for _, e in part))
