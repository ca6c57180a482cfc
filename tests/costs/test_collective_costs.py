"""Costs of all collectives: monotone in bytes, the fastest algorithm counts, bytes add up."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import permutations

import pytest
from drawn_clusters import drawn_clusters
from hypothesis import given
from hypothesis import strategies as st

from raddle.clusters import Cluster, cluster
from raddle.clusters.devices import PLAIN
from raddle.costs.collective_algorithms import algorithms
from raddle.costs.collective_groups import device_ring
from raddle.costs.collectives import (
    collective_bytes,
    collective_bytes_by_device,
    collective_lines,
    collective_seconds,
)
from raddle.program.collective_kind import Collective

kinds = st.sampled_from(list(Collective))


@st.composite
def groups(draw: st.DrawFn) -> tuple[Cluster, list[int]]:
    """A cluster, and two or more of its devices in any order."""
    on = draw(drawn_clusters().filter(lambda c: len(c.devices) > 1))
    return on, draw(st.lists(st.integers(0, len(on.devices) - 1), min_size=2, unique=True))


@given(groups(), kinds, st.data())
def test_the_fastest_algorithm_counts_and_more_bytes_take_longer(
    group: tuple[Cluster, list[int]], kind: Collective, data: st.DataObject
) -> None:
    on, devices = group
    few, many = sorted(data.draw(st.tuples(*[st.integers(0, 2**40)] * 2)))
    lines = algorithms(on, kind, devices).values()
    assert all(line.fixed >= 0 and 0 < line.per_byte < math.inf for line in lines)
    for nbytes in (few, many):
        oracle = min(line.fixed + line.per_byte * nbytes for line in lines)
        assert collective_seconds(on, kind, devices, nbytes) == pytest.approx(oracle, rel=1e-12)
    assert collective_seconds(on, kind, devices, few) <= collective_seconds(on, kind, devices, many)
    order = data.draw(st.permutations(devices))
    assert collective_lines(on, kind, order) == collective_lines(on, kind, devices)


def link_seconds(on: Cluster, messages: Iterable[tuple[int, int]], nbytes: float) -> float:
    """Seconds for which the busiest link is in use, if each message has nbytes."""
    load: dict[int, float] = {}
    for source, target in messages:
        route = on.route(source, target)
        for link in set(route.resources):
            load[link] = load.get(link, 0.0) + nbytes / route.bandwidth
    return max(load.values())


@given(groups())
def test_an_all_to_all_takes_as_long_as_its_messages_keep_the_busiest_link(
    group: tuple[Cluster, list[int]],
) -> None:
    on, devices = replace(group[0], collectives=PLAIN), group[1]
    share = 2**30 / len(devices)
    latency = max(on.route(a, b).latency for a, b in permutations(devices, 2))
    expected = latency + link_seconds(on, permutations(devices, 2), share)
    seconds = collective_seconds(on, Collective.ALL_TO_ALL, devices, 2**30)
    assert seconds == pytest.approx(expected, rel=1e-9)


@given(groups())
def test_a_ring_lies_between_its_busiest_link_and_its_steps_one_by_one(
    group: tuple[Cluster, list[int]],
) -> None:
    on, devices = replace(group[0], collectives=PLAIN), sorted(group[1])
    ring = list(zip(devices, [*devices[1:], devices[0]], strict=True))
    share, steps = 2**30 / len(devices), len(devices) - 1
    busy = steps * link_seconds(on, ring, share)
    slowest = max(on.route(a, b).latency for a, b in ring)
    one_ring = device_ring(on, devices)
    passes = steps / len(devices)
    seconds = passes * one_ring.latency + passes * 2**30 / one_ring.bandwidth
    assert busy * (1 - 1e-9) <= seconds <= (busy + steps * slowest) * (1 + 1e-9)


@given(groups())
def test_no_all_gather_is_faster_than_the_adapters(group: tuple[Cluster, list[int]]) -> None:
    on, devices = group
    seconds = collective_seconds(on, Collective.ALL_GATHER, devices, 2**30)
    for node in {on.devices[d].node for d in devices}:
        inside = [d for d in devices if on.devices[d].node == node]
        if len(inside) == len(devices):
            continue
        outside = next(d for d in devices if d not in inside)
        rates = {}
        for d in inside:
            route = on.route(outside, d)
            rates[route.resources[-1]] = max(
                on.route(e, d).bandwidth for e in devices if e not in inside
            )
        arriving = 2**30 * (len(devices) - len(inside)) / len(devices)
        assert seconds >= arriving / sum(rates.values()) * (1 - 1e-9)


def test_an_all_to_all_between_nodes_gets_about_one_adapters_rate() -> None:
    on = cluster("h100:16x8")
    for nbytes in (2**30, 2**33):
        seconds = collective_seconds(on, Collective.ALL_TO_ALL, range(128), nbytes)
        rate = 127 / 128 * nbytes / seconds
        assert 0.9 < rate / on.route(0, 8).bandwidth < 1.1


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
