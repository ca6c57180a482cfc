"""Costs of all collectives: monotone in bytes, the fastest algorithm counts, bytes add up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raddle.clusters import cluster
from raddle.costs.collective_algorithms import algorithms
from raddle.costs.collectives import (
    collective_bytes,
    collective_bytes_by_device,
    collective_lines,
    collective_seconds,
)
from raddle.program.collective_kind import Collective

NAMES = ["h100:8", "h100:3x8", "a100:5x2", "p100:4x4", "k80:2x4", "skylake-opa:3", "local:5"]
kinds = st.sampled_from(list(Collective))


@given(st.sampled_from(NAMES), kinds, st.data())
def test_the_fastest_algorithm_counts_and_more_bytes_take_longer(
    name: str, kind: Collective, data: st.DataObject
) -> None:
    on = cluster(name)
    devices = data.draw(st.lists(st.integers(0, len(on.devices) - 1), min_size=2, unique=True))
    few, many = sorted(data.draw(st.tuples(*[st.integers(0, 2**40)] * 2)))
    lines = algorithms(on, kind, devices).values()
    for nbytes in (few, many):
        oracle = min(line.fixed + line.per_byte * nbytes for line in lines)
        assert collective_seconds(on, kind, devices, nbytes) == pytest.approx(oracle, rel=1e-12)
    assert collective_seconds(on, kind, devices, few) <= collective_seconds(on, kind, devices, many)
    order = data.draw(st.permutations(devices))
    assert collective_lines(on, kind, order) == collective_lines(on, kind, devices)


@given(kinds, st.integers(1, 40), st.integers(0, 10**6))
def test_the_members_bytes_add_up(kind: Collective, members: int, nbytes: int) -> None:
    by_device = collective_bytes_by_device(kind, members, nbytes)
    assert len(by_device) == members
    assert sum(by_device) == collective_bytes(kind, members, nbytes)
    if kind is not Collective.BROADCAST:
        assert max(by_device) - min(by_device) <= 1


def test_one_member_needs_no_time() -> None:
    for kind in Collective:
        assert collective_seconds(cluster("h100:8"), kind, [3], 10**9) == 0.0
