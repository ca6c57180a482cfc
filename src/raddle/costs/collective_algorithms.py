"""The textbook algorithms of collectives as lines: fixed seconds, and seconds per byte.

A line gives the time of an algorithm for any number of bytes; collectives.py takes the fastest one. P
members are on N nodes, k of them on a node; latency is counted hop by hop along the longest way of a byte.

ring           P - 1 steps (twice that for an all-reduce or a broadcast), each of a P-th of the bytes on
               every hop
tree           log2(P) messages of all bytes one after the other (down; for an all-reduce also up)
hierarchical   inside each node, then a ring of the leaders (the first member of each node), then inside
               each node again
rail-wise      if all nodes have equally many members: a reduce-scatter inside each node leaves a k-th of
               the bytes to each member, which exchanges it with its peers on the other nodes, on all
               adapters at once; then an all-gather inside each node
direct         all-to-all: a message with a P-th of the bytes from every member to every other one, all at
               once

A ring between nodes runs once for each adapter (*rail*) of a node, with its share of the bytes. Only the
ring of the leaders uses one adapter of each node.
"""

# P, N, k: as above; lines are in seconds and seconds per byte

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from numba.extending import register_jitable

from raddle.clusters import Cluster
from raddle.clusters.devices import Library
from raddle.costs.collective_groups import (
    Ring,
    all_rails_ring,
    by_node,
    device_ring,
    direct_exchange,
    whole_ring,
)
from raddle.costs.line import Line
from raddle.costs.links import transfer_seconds
from raddle.costs.nccl import nccl_algorithms
from raddle.program.collective_kind import Collective


def algorithms(cluster: Cluster, kind: Collective, devices: Sequence[int]) -> dict[str, Line]:
    """Returns, by name, the algorithms of the cluster's library for a collective of two or more devices."""
    if cluster.collectives.library is Library.NCCL:
        return nccl_algorithms(cluster, kind, devices)
    nodes = by_node(cluster, devices)
    P, N = len(devices), len(nodes)
    if kind is Collective.ALL_TO_ALL:
        exchange = direct_exchange(cluster, nodes)
        # per_byte: seconds if each message has one byte; here it has a P-th of the bytes.
        return {"direct": Line(exchange.latency, exchange.per_byte / P)}
    ring = _pass(whole_ring(cluster, nodes))
    # An all-reduce is a reduce-scatter and an all-gather; a broadcast is a scatter and an all-gather.
    passes = 2 if kind in (Collective.ALL_REDUCE, Collective.BROADCAST) else 1
    lines = {"ring": _times(passes, ring)}
    if passes == 2:
        # A message of the tree takes the highest latency and the lowest bandwidth of the hops of this ring,
        # which uses one adapter of each node.
        single = device_ring(cluster, [d for local in nodes for d in local])
        # An all-reduce goes up the tree and down again, a broadcast only down.
        ways = 2 if kind is Collective.ALL_REDUCE else 1
        messages = ways * math.ceil(math.log2(P))  # one after the other
        lines["tree"] = Line(messages * single.longest, messages / single.bandwidth)
    if 1 < N < P:
        inside = _slowest(_pass(device_ring(cluster, local)) for local in nodes)
        leaders = _pass(device_ring(cluster, [local[0] for local in nodes]))
        # Inside a node the passes are run twice: first the leader collects the data of its node, and in the
        # end it sends the result to the other members.
        lines["hierarchical"] = _sum(_times(2 * passes, inside), _times(passes, leaders))
        if len({len(local) for local in nodes}) == 1:
            across = _pass(all_rails_ring(cluster, nodes))
            lines["rail-wise"] = _sum(_times(passes, inside), _times(passes, across))
    return lines


def _pass(ring: Ring) -> Line:
    """Returns the time of an all-gather or reduce-scatter by a ring: P - 1 steps of a P-th of the bytes."""
    # ring.latency is that of all P hops, a step's bytes are a P-th: both have the factor (P - 1) / P.
    fraction = (ring.size - 1) / ring.size
    return Line(fraction * ring.latency, fraction / ring.bandwidth)


def _times(count: int, line: Line) -> Line:
    return Line(count * line.fixed, count * line.per_byte)


def _sum(*lines: Line) -> Line:
    """Returns the time of algorithms that run one after the other."""
    return Line(sum(line.fixed for line in lines), sum(line.per_byte for line in lines))


def _slowest(lines: Iterable[Line]) -> Line:
    """Returns a line that is at least as long as all of these, which run at the same time."""
    fixed, per_byte = zip(*lines, strict=True)
    return Line(max(fixed), max(per_byte))


@register_jitable
def ring_seconds(size: Any, bandwidth: Any, latency: Any, nbytes: Any) -> Any:
    """Returns the seconds of a ring all-reduce; size: devices; bandwidth, latency: of the slowest hop."""
    return 2 * (size - 1) * transfer_seconds(latency, bandwidth, nbytes / size)
