"""Messages are measured for what the link takes, and for what a rank that computes meanwhile loses."""

from __future__ import annotations

import pytest

from experiments.cost_models.local_cluster import call_ranks
from experiments.messages import SIZES, fit_link_with_burst
from raddle.errors import InputError
from raddle.lab.commands import check_system

BURST = 2**18  # bytes that a link of the lab lets through at once


def reason() -> str | None:
    try:
        check_system()
    except InputError as error:
        return str(error)
    return None


def test_what_passes_at_once_does_not_make_a_link_faster() -> None:
    bandwidth, latency = 2.5e8, 1e-4
    samples = [(n, latency + max(n / 5e9, (n - BURST) / bandwidth)) for n in SIZES]
    link = fit_link_with_burst(samples)
    assert link.bandwidth == pytest.approx(bandwidth, rel=0.01)
    assert link.latency == pytest.approx(latency, rel=0.1)


def test_noise_gives_a_link_all_the_same() -> None:
    link = fit_link_with_burst([(n, 1e-3) for n in SIZES])
    assert link.bandwidth > 0
    assert link.latency >= 0


@pytest.mark.skipif(reason() is not None, reason=str(reason()))
@pytest.mark.slow  # beside other work it measures that
def test_a_slow_link_is_not_taken_for_a_busy_core() -> None:
    """At 100 Mbit/s half a megabyte takes 40 ms, of which a core has a fraction."""
    link = call_ranks({"what": "messages", "repeats": 3}, 2, "100mbit")
    assert link["bandwidth"] == pytest.approx(12.5e6, rel=0.2)
    assert link["host_overhead"]["byte"] < 0.3 / 12.5e6
