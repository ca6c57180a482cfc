"""Least squares on log ratios: recovers numbers, and says which are not determined."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raddle.calibration.least_squares import Array, determined, fit, flat_directions

LOW, HIGH = np.full(2, np.log(1e-3)), np.full(2, np.log(1e3))
# Work in two units, for each measurement: its seconds are the sum of both, over the numbers.
WORK = np.array([[1.0, 0.0], [3.0, 1.0], [1.0, 9.0], [0.2, 0.4]])


def seconds(x: Array) -> Array:
    return WORK @ np.exp(-x)


@given(st.tuples(st.floats(0.02, 50), st.floats(0.02, 50)))
def test_recovers_the_numbers_that_made_the_measurements(true: tuple[float, float]) -> None:
    measured = seconds(np.log(true))
    result = fit(lambda x: np.log(seconds(x) / measured), np.zeros(2), LOW, HIGH)
    assert np.exp(result.x) == pytest.approx(true, rel=0.01)
    assert not result.flat


@given(true=st.floats(0.03, 0.3), start=st.floats(-0.7, 0.7))
def test_a_number_without_effect_nearby_is_tried_at_distant_values(
    true: float, start: float
) -> None:
    """A link that is hidden behind 2 s of computing has no derivative until it is slow."""

    def hidden(x: Array) -> Array:
        return np.maximum([2.0, 2.0], [0.1, 0.5] / np.exp(x))

    measured = hidden(np.log([true]))
    result = fit(lambda x: np.log(hidden(x) / measured), np.array([start]), LOW[:1], HIGH[:1])
    assert result.residuals == pytest.approx([0, 0], abs=1e-2)


def test_bounds_are_kept() -> None:
    measured = seconds(np.log([1e9, 1.0]))
    result = fit(lambda x: np.log(seconds(x) / measured), np.zeros(2), LOW, HIGH)
    assert result.x[0] == pytest.approx(HIGH[0])


def test_flat_directions() -> None:
    both = flat_directions(np.array([[0.5, -0.5]]))  # only the difference counts
    assert len(both) == 1
    assert both[0] @ [1, -1] == pytest.approx(0, abs=1e-9)
    assert not flat_directions(np.eye(3))
    assert len(flat_directions(np.zeros((4, 2)))) == 2


def test_determined_takes_no_two_numbers_with_the_same_effect() -> None:
    j = np.array([[0.5, 1.0, 0.0, 0.01], [0.5, 1.0, 0.0, 0.0], [0.1, 0.0, 0.0, 0.0]])
    assert determined(j) == [1, 0]
    assert determined(j[:, [1, 1]]) == [0]
    assert determined(np.zeros((2, 2))) == []
