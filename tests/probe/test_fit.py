"""Latency and bandwidth are fitted to the times of messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raddle.probe.fit import fit

SIZES = [2**10, 2**14, 2**17, 2**20, 2**24]


@given(st.floats(1e-6, 1e-2), st.floats(1e7, 1e11))
def test_exact_times_give_what_made_them(latency: float, bandwidth: float) -> None:
    link = fit([(nbytes, latency + nbytes / bandwidth) for nbytes in SIZES])
    for nbytes in SIZES:
        again = link.latency + nbytes / link.bandwidth
        assert again == pytest.approx(latency + nbytes / bandwidth, rel=1e-4)


@given(st.lists(st.floats(1e-6, 1.0), min_size=5, max_size=5))
def test_any_times_give_a_link(times: list[float]) -> None:
    link = fit(list(zip(SIZES, times, strict=True)))
    assert link.latency >= 0
    assert 0 < link.bandwidth < float("inf")


def test_small_messages_count_as_much_as_large_ones() -> None:
    """An error of 10 % in the time of the largest message must not change the latency much."""
    times = [(nbytes, 1e-4 + nbytes / 1e9) for nbytes in SIZES]
    times[-1] = (SIZES[-1], times[-1][1] * 1.1)
    assert fit(times).latency == pytest.approx(1e-4, rel=0.2)
