"""Quantities with units, as in cluster files."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raddle.clusters.units import FRACTION, RATE, SIZE, SPEED, TIME, Quantity, parse


@pytest.mark.parametrize(
    ("value", "quantity", "number"),
    [
        (16, SIZE, 16),
        ("16 GiB", SIZE, 16 * 2**30),
        ("16GB", SIZE, 16e9),
        ("1.5 kB", SIZE, 1500),
        ("12.5e9", RATE, 12.5e9),  # YAML 1.1 reads a number without a point or a sign as text
        ("100 Gbit/s", RATE, 12.5e9),
        ("100 Gb/s", RATE, 12.5e9),
        ("100 Gbps", RATE, 12.5e9),
        ("100 GB/s", RATE, 100e9),
        ("2 GiB/s", RATE, 2 * 2**30),
        ("5e-6", TIME, 5e-6),
        ("5 us", TIME, 5e-6),
        ("5 µs", TIME, 5e-6),
        (0, TIME, 0),
        ("15 TFLOP/s", SPEED, 15e12),
        ("15.7 TFLOPS", SPEED, 15.7e12),
        ("1 PFLOP/s", SPEED, 1e15),
        ("60 %", FRACTION, 0.6),
        (1, FRACTION, 1),
    ],
)
def test_parse(value: object, quantity: Quantity, number: float) -> None:
    assert parse(value, quantity) == number


@pytest.mark.parametrize(
    "value",
    [0, -1, "-5 GB/s", True, None, [], "fast", "", "12 parsecs", "1e999", "1__0", f"1e{10**24} GB"],
)
@pytest.mark.parametrize("quantity", [SIZE, RATE, SPEED, FRACTION])
def test_no_quantity(value: object, quantity: Quantity) -> None:
    with pytest.raises(ValueError, match=r"write|unit"):
        parse(value, quantity)


@pytest.mark.parametrize(
    ("value", "quantity"),
    [
        ("16 Gb", SIZE),
        ("16 GB/s", SIZE),
        ("16 GB", RATE),
        ("5 m", TIME),
        ("-1 us", TIME),
        (1.01, FRACTION),
        (float("nan"), RATE),
        (float("inf"), RATE),
        (10**400, RATE),
        ("9e999999 GB/s", RATE),
    ],
)
def test_wrong_units_and_ranges(value: object, quantity: Quantity) -> None:
    with pytest.raises(ValueError, match=r"write|unit"):
        parse(value, quantity)


@given(st.floats(RATE.minimum, RATE.maximum))
def test_the_text_of_a_number_is_that_number(number: float) -> None:
    assert parse(repr(number), RATE) == parse(number, RATE) == number


@given(st.text() | st.from_regex(r"-?[0-9.]{1,5}(e-?[0-9]{1,9})? ?[A-Za-z/]{0,6}", fullmatch=True))
def test_any_text_is_a_number_or_a_sentence(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert 0 < parse(text, RATE) < math.inf
