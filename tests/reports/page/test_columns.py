"""Columns are read as they were stored, and thinned curves keep their peak."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from raddle.reports.page.columns import Columns, read_column
from raddle.reports.page.curves import thin_curve

NUMBERS = st.lists(st.integers(-(2**45), 2**45) | st.integers(-3, 300), max_size=40)


@given(st.lists(st.tuples(NUMBERS, st.booleans()), min_size=1, max_size=6))
def test_columns_come_out_as_they_went_in(given: list[tuple[list[int], bool]]) -> None:
    columns = Columns()
    places = [columns.add(numbers, delta=delta) for numbers, delta in given]
    block = columns.tobytes()
    for (numbers, _), place in zip(given, places, strict=True):
        assert read_column(block, place).tolist() == numbers


def test_equal_columns_are_stored_once() -> None:
    columns = Columns()
    one, two = (columns.add(range(1000)) for _ in range(2))
    assert one == two
    assert len(columns.tobytes()) == 2000


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**9)), min_size=1, max_size=300),
    st.integers(1, 50),
)
def test_a_thinned_curve_hides_no_peak(points: list[tuple[int, int]], most: int) -> None:
    points = sorted(dict(points).items())
    times, levels = (np.array(column) for column in zip(*points, strict=True))
    few, high = thin_curve(times, levels, most)
    assert len(few) <= max(most, 1)
    assert few[0] == times[0]
    assert high.max() == levels.max()
    at = np.searchsorted(few, times, side="right") - 1
    assert (high[at] >= levels).all()
