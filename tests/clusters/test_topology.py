"""The links that routes hold, for every pair of devices of many clusters; other properties of clusters."""

from __future__ import annotations

import json
import pickle
from itertools import permutations
from typing import Any

import pytest
from drawn_clusters import KINDS, drawn_clusters
from hypothesis import given

from raddle.clusters import Cluster, Device, Link, Network, cluster, topology
from raddle.clusters.devices import EFFICIENCY
from raddle.clusters.topology import Route, build_cluster
from raddle.errors import InputError


def held_links(c: Cluster, source: int, target: int) -> set[str]:
    return {c.links[resource] for resource in c.route(source, target).resources}


def expected_links(c: Cluster, source: int, target: int) -> set[str]:
    """The links by the table in topology.py, case by case."""
    a, b = c.devices[source].node, c.devices[target].node
    i, j = source - c.members(a)[0], target - c.members(b)[0]
    link = c.node_links[a]
    if a == b and link is not None:
        g = link.groups
        if g is not None and i // g.size == j // g.size:
            port = "" if g.uplink else " bridge"
            return both(f"node{a}.device{i}{port}", f"node{a}.device{j}{port}", duplex=g.duplex)
        if g is not None and g.uplink:
            first, second = f"node{a}.switch{i // g.size}", f"node{a}.switch{j // g.size}"
            return both(first, second, duplex=link.duplex)
        if link.shared:
            return {f"node{a} bus {'up' if i < j else 'down'}" if link.duplex else f"node{a} bus"}
        return both(f"node{a}.device{i}", f"node{a}.device{j}", duplex=link.duplex)
    names = set()
    for node, local, way in ((a, i, "out"), (b, j, "in")):
        network = c.node_networks[node]
        assert network is not None
        if network.leaf and a // network.leaf != b // network.leaf and network.oversubscription > 1:
            owner, duplex = lane(c, node, local)
        else:
            owner, duplex = nic(c, node, local), network.duplex
        names.add(f"{owner} {way}" if duplex else owner)
    return names


def both(first: str, second: str, *, duplex: bool) -> set[str]:
    return {f"{first} out", f"{second} in"} if duplex else {first, second}


def nic(c: Cluster, node: int, local: int) -> str:
    """The name of a device's NIC: consecutive devices share one, in nearly equal shares."""
    network, count = c.node_networks[node], len(c.members(node))
    assert network is not None
    if network.per_device:
        return f"node{node}.device{local} nic"
    if min(network.adapters, count) == 1:
        return f"node{node} nic"
    return f"node{node} nic{local * min(network.adapters, count) // count}"


def lane(c: Cluster, node: int, local: int) -> tuple[str, bool]:
    """The name of a device's lane, and whether it is duplex: the leaf's NICs are dealt to lanes in turn."""
    network = c.node_networks[node]
    assert network is not None
    leaf = node // network.leaf
    nodes = range(leaf * network.leaf, min((leaf + 1) * network.leaf, c.nodes))
    nics = list(dict.fromkeys(nic(c, a, d) for a in nodes for d in range(len(c.members(a)))))
    lanes = -(-len(nics) // network.oversubscription)
    head = c.node_networks[nodes[0]]
    assert head is not None
    return f"leaf{leaf}.lane{nics.index(nic(c, node, local)) % lanes}", head.duplex


@given(drawn_clusters())
def test_routes(c: Cluster) -> None:
    used = set()
    for source, target in permutations(range(len(c.devices)), 2):
        there, back = c.route(source, target), c.route(target, source)
        assert held_links(c, source, target) == expected_links(c, source, target)
        assert len(there.resources) == len(set(there.resources)) <= 2
        assert (there.latency, there.bandwidth) == (back.latency, back.bandwidth)
        used |= set(there.resources)
    assert used == set(range(len(c.links)))  # every link belongs to some route
    assert len(set(c.links)) == len(c.links)


@given(drawn_clusters())
def test_disjoint_pairs_share_a_link_only_where_it_is_shared(c: Cluster) -> None:
    devices = range(min(6, len(c.devices)))
    for s, t, u, v in permutations(devices, 4):
        common = held_links(c, s, t) & held_links(c, u, v)
        assert all(
            any(word in name for word in ("bus", "switch", "lane"))
            or ("nic" in name and "device" not in name)
            for name in common
        )


@given(drawn_clusters())
def test_duplex_links_carry_both_ways_at_once(c: Cluster) -> None:
    duplex = all(
        link is None or (link.duplex and (link.groups is None or link.groups.duplex))
        for link in c.node_links
    )
    duplex &= all(network is None or network.duplex for network in c.node_networks)
    for s, t in permutations(range(len(c.devices)), 2):
        if duplex:
            assert not held_links(c, s, t) & held_links(c, t, s)


@given(drawn_clusters())
def test_plain_data_round_trip(c: Cluster) -> None:
    data = json.loads(json.dumps(c.to_dict()))
    again = Cluster.from_dict(data)
    assert again == c
    assert again.fingerprint() == c.fingerprint()
    assert pickle.loads(pickle.dumps(c)) == c
    # Devices are hashable, and the two copies of a device are equal.
    assert len({*c.devices, *again.devices}) <= len(c.devices)


def test_the_slower_end_counts_between_nodes() -> None:
    fast, slow = Network(12.5e9, 5e-6), Network(1.25e9, 30e-6)
    c = build_cluster("mixed", [([KINDS[0]], None, fast), ([KINDS[1]], None, slow)])
    assert c.route(0, 1).bandwidth == c.route(1, 0).bandwidth == 1.25e9
    assert c.route(0, 1).latency == 30e-6
    assert not c.homogeneous


def test_the_name_does_not_enter_the_fingerprint_but_figures_do() -> None:
    assert cluster("p100").fingerprint() == cluster("p100:4x4").fingerprint()
    prints = [cluster(spec).fingerprint() for spec in ("p100:4x4", "p100:2x8", "v100:4x4", "h100")]
    assert len(set(prints)) == 4


def test_a_thousand_devices_have_the_routes_that_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Routes of all pairs would be a million, and take seconds; `bench/start` measures the time of this."""
    made: list[Route] = []

    def count(*fields: Any) -> Route:
        made.append(Route(*fields))
        return made[-1]

    monkeypatch.setattr(topology, "Route", count)
    c = cluster("h100:1024")
    assert (len(c.devices), c.nodes) == (1024, 128)
    for source in range(1023):
        c.route(source, source + 1)
    assert len(made) == 1023
    assert len(c.links) <= 4 * 1024  # a few for each device, none for each pair


def test_peaks_of_other_types() -> None:
    assert KINDS[0].peak("float64") == 5e12
    assert KINDS[1].peak("float64") == 3e11
    assert KINDS[0].peak("bfloat16") == 1e13
    assert KINDS[1].efficiency == {**EFFICIENCY, "conv": 0.2}


@pytest.mark.parametrize(
    ("devices", "inside", "between", "sentence"),
    [
        ([], [], [], "has no devices"),
        ([(0, 1e12), (0, 1e12)], [None], [None], "no link on node 0"),
        ([(0, 1e12), (1, 1e12)], [None, None], [None, None], "no network on node 0"),
        ([(1, 1e12)], [None], [None], "on nodes [1]"),
        ([(0, 1e12), (1, 1e12), (0, 1e12)], [None] * 3, [None] * 3, "on nodes [0, 1, 0]"),
        ([(0, 1e12)], [], [None], "1 nodes, 0 links"),
        ([(0, 1e12), (0, 2e12)], [Link(1, 0)], [None], "two different kinds of device 'd'"),
    ],
)
def test_what_makes_no_cluster(
    devices: list[tuple[int, float]],
    inside: list[Link | None],
    between: list[Network | None],
    sentence: str,
) -> None:
    made = tuple(Device("d", node, {"float32": flops}, 1, 1.0) for node, flops in devices)
    with pytest.raises(InputError) as caught:
        Cluster("bad", made, tuple(inside), tuple(between))
    assert sentence in str(caught.value)


@pytest.mark.parametrize("count", [1, 3, 4, 6, 16])
def test_the_first_devices_keep_their_links(count: int) -> None:
    every = cluster("p100:4x4")
    few = every.first_devices(count)
    assert few.devices == every.devices[:count]
    assert few.nodes == few.devices[-1].node + 1
    assert Cluster.from_dict(few.to_dict()) == few
    for d in range(1, count):
        assert few.route(0, d).bandwidth == every.route(0, d).bandwidth
