"""Writes a sum of gradients as nodes and edges, compiled: each ring starts with its last member."""

# g: set of rings, d: device

from __future__ import annotations

import numpy as np
from numba import njit

from raddle.costs.collectives import fastest_seconds
from raddle.costs.host_overhead import all_reduce_bytes_per_member, host_seconds
from raddle.simulation.fast.arrays import Array, Handling, Lane, Rings, Space
from raddle.simulation.fast.nodes import arrive, edge, node_of, spend


@njit(cache=True)
def all_reduce(
    space: Space, at: Array, rings: Rings, handling: Handling, g: int, since: Array, after: Array,
    amounts: Array, lane: Lane, arrival: Array,
) -> None:  # fmt: skip
    """`amounts` are the bytes by ring; members wait for `since`, or for all that they have done."""
    lane.several[:] = 0
    arrival[:] = -1
    load = lane.load
    for k in range(rings.set_at[g], rings.set_at[g + 1]):
        ring, nbytes = rings.ring[k], amounts[k - rings.set_at[g]]
        gate = node_of(space, at, 0, -1, -1, -1, 0)
        ns = max(1, int(np.rint(_all_reduce_seconds(rings, ring, nbytes) * 1e9)))
        begin, end = rings.member_at[ring], rings.member_at[ring + 1]
        for m in range(begin, end):
            d = rings.member[m]
            if lane.handles:
                edge(space, at, lane.stretch[d], gate, lane.offset[d])
                handled = all_reduce_bytes_per_member(end - begin, nbytes)
                own = host_seconds(handling.sum[d], handling.byte[d], handled)
                spend(space, at, d, int(np.rint(own * 1e9)), lane)
            elif since[d] >= 0:
                edge(space, at, since[d], gate, after[d])
        for m in range(begin, end):
            first, second = rings.first[m], rings.second[m]
            node = node_of(space, at, ns, first, second, -1, 0)
            edge(space, at, gate, node, 0)
            if first >= 0:
                load[first] += ns
            if second >= 0:
                load[second] += ns
            arrive(space, at, rings.member[m], node, arrival, lane.several)


@njit(cache=True)
def _all_reduce_seconds(rings: Rings, ring: int, nbytes: int) -> float:
    """costs/collectives.py, with what depends on the cluster in figures."""
    f, inner = rings.figures[ring], rings.inner[rings.inner_at[ring] : rings.inner_at[ring + 1]]
    return float(fastest_seconds(f[0], f[1], f[2], f[3], f[4], f[5], inner, nbytes))
