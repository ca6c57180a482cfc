"""The algorithms of NCCL as lines: fixed seconds, and seconds per byte.

NCCL chooses an algorithm and a protocol by a model of its own (src/graph/tuning.cc, 2026); its tables are
used here. A protocol says how data pass from one GPU to the next: "Simple" waits for whole chunks; LL and
LL128 ("low latency") send flags along with the data, so they wait less and have less bandwidth.

ring         of all members, a ring for each adapter at once; the only one for all but all-reduces
tree         a chain inside each node, binary trees between the nodes, up and down
NVLS         the switches inside a node reduce and multicast; between nodes, trees (NVLSTree)
SHARP        the switches between nodes reduce as well
direct       all-to-all: a message to every peer

Differs from NCCL: the numbers below under "Fitted", because NCCL's model only has to rank algorithms.
"""

# P: members, N: nodes, k: members of a node (the mean)

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from raddle.clusters import Cluster
from raddle.costs.collective_groups import (
    all_rails_ring,
    by_node,
    direct_exchange,
    slowest_rate_inside,
    whole_ring,
)
from raddle.costs.line import Line
from raddle.program.collective_kind import Collective

US = 1e-6  # seconds


class Protocol(NamedTuple):
    """A protocol: the shares of the bandwidth that it reaches; latencies in microseconds (tuning.cc)."""

    ring_share: float
    tree_share: float
    tree_share_one_node: float
    base: float  # of any ring or tree
    nvlink: tuple[float, float]  # (tree, ring): of a step inside a node over NVLink
    pci: tuple[float, float]  # (tree, ring): of a step inside a node over PCIe
    net: tuple[float, float]  # (tree, ring): of a step between nodes
    net_overhead: float  # the least time of a ring's step if there are several nodes
    fills: bool  # whether its chunks are so large that it takes time until the levels of a tree are busy
    flushes: int  # how often the network's own latency counts in a step between nodes


PROTOCOLS = {
    "LL": Protocol(0.5, 1 / 3.8, 1 / 3.8, 6.7, (0.6, 0.6), (1.0, 1.0), (5.0, 2.7), 1.0, False, 1),
    "LL128": Protocol(
        0.92,
        0.92 * 120 / 128,
        0.92 * 7 / 9,
        14.0,
        (1.25, 1.9),
        (1.9, 2.5),
        (8.5, 4.0),
        1.0,
        True,
        1,
    ),
    "Simple": Protocol(1.0, 0.92, 0.92, 8.4, (4.0, 3.4), (4.0, 5.7), (14.0, 14.0), 3.0, True, 2),
}
NVLS_US = 25.0  # inside a node
NVLS_TREE_NET_US, SHARP_NET_US = 20.9, 18.0  # a step between nodes

# Fitted to measurements (bench/collectives says to which). The shares are of the bandwidth of NVLink; the
# times with _US are microseconds.
NVLS_SHARE = 0.742  # reached by an all-reduce with NVLS inside one node
NVLS_TREE_SHARE = 0.675  # reached by an all-reduce with NVLS and trees between nodes
NVLS_FILL_US = 50.0  # until the pipeline of NVLS is full, besides NVLS_US
NVLS_TREE_FILL_US = 120.0  # the same with trees between nodes
TREE_FILL_US = 45.0  # until a tree between nodes is full, for each of its levels
PEER_US = 5.5  # for each message of an all-to-all
DIRECT_SHARE = 0.94  # reached by the messages of an all-to-all inside a node


class _Group(NamedTuple):
    """The facts about a group of devices that the formulas below need."""

    P: int  # members
    N: int  # nodes
    pci: bool  # whether the devices of a node are joined by PCIe
    ring: float  # bytes/s of the rings
    inside: float  # bytes/s inside the nodes; if each node has one member, as between the nodes
    between: float  # bytes/s that all adapters of a node have together
    network: float  # microseconds: the latency of the network itself


def nccl_algorithms(cluster: Cluster, kind: Collective, devices: Sequence[int]) -> dict[str, Line]:
    """Returns, by name, the algorithms of NCCL for a collective among at least two devices."""
    nodes = by_node(cluster, devices)
    if kind is Collective.ALL_TO_ALL:
        exchange = direct_exchange(cluster, nodes, inside_share=DIRECT_SHARE)
        fixed = exchange.latency + (len(devices) - 1) * PEER_US * US
        return {"direct": Line(fixed, exchange.per_byte / len(devices))}
    group = _describe(cluster, nodes)
    lines = {f"ring {name}": _ring(kind, group, p) for name, p in PROTOCOLS.items()}
    if kind is Collective.ALL_REDUCE:
        lines |= {f"tree {name}": _tree(group, p) for name, p in PROTOCOLS.items()}
        if cluster.collectives.nvls and group.P > group.N:
            lines["NVLS"] = _nvls(group)
        if cluster.collectives.sharp and group.N > 1:
            lines["SHARP"] = _sharp(group, nvls=cluster.collectives.nvls)
    return lines


def _describe(cluster: Cluster, nodes: Sequence[Sequence[int]]) -> _Group:
    """Returns the facts about a group; nodes: its members on each node."""
    first = cluster.devices[nodes[0][0]].node
    link, network = cluster.node_links[first], cluster.node_networks[first]
    ring = whole_ring(cluster, nodes).bandwidth
    between = all_rails_ring(cluster, nodes).bandwidth if len(nodes) > 1 else math.inf
    inside = slowest_rate_inside(cluster, nodes)
    latency = network.latency / US if network is not None else 0.0
    return _Group(
        P=sum(map(len, nodes)),
        N=len(nodes),
        # A shared bus, switches, or NVLink bridges between pairs (Link.groups) mean that the node has PCIe.
        pci=link is not None and (link.shared or bool(link.groups)),
        ring=ring,
        inside=min(inside, between) if math.isinf(inside) else inside,
        between=between,
        network=latency,
    )


def _ring(kind: Collective, group: _Group, p: Protocol) -> Line:
    """Returns the time of a ring with a protocol; the data of a broadcast go around once, in a pipeline."""
    P, N = group.P, group.N
    rounds = 2 if kind is Collective.ALL_REDUCE else 1
    steps_inside, steps_between = rounds * (P - N), rounds * (N - 1)
    step = (p.pci if group.pci else p.nvlink)[1]  # [1]: of a ring
    if N > 1:
        step = max(step, p.net_overhead)
    step_between = p.net[1] + p.flushes * group.network
    fixed = p.base + steps_inside * step + steps_between * step_between
    passes = 1.0 if kind is Collective.BROADCAST else rounds * (P - 1) / P
    return Line(fixed * US, passes / (group.ring * p.ring_share))


def _tree(group: _Group, p: Protocol) -> Line:
    """Returns the time of an all-reduce by trees.

    On two nodes, each byte crosses the network once, not twice, so only the rate `group.inside` counts.
    """
    N = group.N
    # [0]: of a tree; inside, between: one way through the tree
    inside = (group.P / N - 1) * (p.pci if group.pci else p.nvlink)[0]
    between = math.log2(N) * (p.net[0] + p.flushes * group.network)
    if p.fills:
        between += math.log2(N) * TREE_FILL_US / 2  # half: both ways are added below
    share = p.tree_share if N > 1 else p.tree_share_one_node
    rate = group.inside if N <= 2 else min(group.inside, group.between)
    return Line((p.base + 2 * (inside + between)) * US, 2 / (rate * share))


def _nvls(group: _Group) -> Line:
    """Returns the time of an all-reduce in the switches inside the nodes, and by trees between nodes."""
    if group.N == 1:
        return Line((NVLS_US + NVLS_FILL_US) * US, 1 / (group.inside * NVLS_SHARE))
    between = 2 * math.log2(group.N) * (NVLS_TREE_NET_US + group.network)
    per_byte = 1 / (group.inside * NVLS_TREE_SHARE)
    passes = 1 if group.N == 2 else 2 * (group.P - 1) / group.P
    per_byte = max(per_byte, passes / group.between)
    return Line((NVLS_US + NVLS_TREE_FILL_US + between) * US, per_byte)


def _sharp(group: _Group, *, nvls: bool) -> Line:
    """Returns the time of an all-reduce in the switches between nodes: a byte crosses each adapter once."""
    k = group.P / group.N
    inside = 1 / (group.inside * NVLS_TREE_SHARE) if nvls else 2 * (k - 1) / k / group.inside
    fixed = NVLS_US + NVLS_TREE_FILL_US + SHARP_NET_US + group.network
    return Line(fixed * US, max(inside, 1 / group.between))
