"""All-reduces use all adapters of a node, whatever the order in which the devices are given."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from raddle.clusters import cluster
from raddle.clusters.devices import PLAIN
from raddle.costs.collectives import all_reduce_seconds

GIB = 2**30


def bus_bandwidth(spec: str, nbytes: int) -> float:
    """GB/s as nccl-tests count them: what a link would need in a ring without latency."""
    on = cluster(spec)
    count = len(on.devices)
    seconds = all_reduce_seconds(on, range(count), nbytes)
    return 2 * (count - 1) / count * nbytes / seconds / 1e9


@pytest.mark.parametrize("nodes", [4, 16])
def test_large_all_reduces_are_as_fast_as_all_adapters_together(nodes: int) -> None:
    # a100: 8 adapters of 25 GB/s a node, 24 GB/s for data: slower together than the links inside it.
    assert bus_bandwidth(f"a100:{nodes}x8", 64 * GIB) == pytest.approx(192, rel=0.01)
    # p100: one adapter of 12.5 GB/s a node.
    assert bus_bandwidth(f"p100:{nodes}x4", 64 * GIB) == pytest.approx(12.5, rel=0.01)


def test_links_inside_a_node_bound_them_too() -> None:
    # Without switches that reduce, and without trees that cross the network once, as NCCL has on two nodes
    on = replace(cluster("h100:2x8"), collectives=PLAIN)
    inside, between = on.route(0, 1).bandwidth, on.route(0, 8).bandwidth
    seconds = all_reduce_seconds(on, range(16), 64 * GIB)
    assert 2 * 15 / 16 * 64 * GIB / seconds <= min(inside, 8 * between)


def test_the_order_of_the_devices_does_not_matter() -> None:
    on, devices = cluster("h100:2x8"), list(range(16))
    expected = all_reduce_seconds(on, devices, GIB)
    for seed in range(5):
        random.Random(seed).shuffle(devices)
        assert all_reduce_seconds(on, devices, GIB) == pytest.approx(expected)


def test_some_devices_of_a_node_have_only_their_adapters() -> None:
    on = cluster("h100:4x8")
    one, two = (
        all_reduce_seconds(on, [8 * node + d for node in range(4) for d in range(per_node)], GIB)
        for per_node in (1, 2)
    )
    assert 1.5 < one / two < 2  # twice the adapters, but the links inside the nodes take time too
