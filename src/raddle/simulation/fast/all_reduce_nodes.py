"""Writes all-reduces as nodes and edges of a StepDag (arrays.py), JIT-compiled.

A ring is the devices that all-reduce together; it starts when its last member is ready. A set of rings has
one ring for each group of devices that hold the same part of a parameter (arrays.Rings).
"""

# g: set of rings, d: device, k: place in rings.ring, m: place in rings.member

from __future__ import annotations

import numpy as np
from numba import njit

from raddle.costs.collectives import fastest_seconds
from raddle.costs.host_overhead import all_reduce_bytes_per_member, all_reduce_device_seconds
from raddle.simulation.fast.arrays import Array, DeviceProgress, HostOverhead, Rings, StepDag
from raddle.simulation.fast.nodes import add_arrival, add_device_time, add_edge, add_node


@njit(cache=True)
def add_all_reduce(
    dag: StepDag, used: Array, rings: Rings, overhead: HostOverhead, g: int, predecessor: Array,
    delay: Array, amounts: Array, progress: DeviceProgress, arrival: Array,
) -> None:  # fmt: skip
    """Adds the all-reduce of a set of rings; amounts: by ring of the set, its bytes.

    The other arrays are by device. A member is ready `delay` after the node `predecessor` (-1: at once) or,
    with host overhead, after all that it has done. `arrival` receives the node with which the result is
    complete on each device. dag, used, progress: as in nodes.py.
    """
    progress.arrivals[:] = 0
    arrival[:] = -1
    load = progress.load
    for k in range(rings.set_at[g], rings.set_at[g + 1]):
        ring, nbytes = rings.ring[k], amounts[k - rings.set_at[g]]
        gate = add_node(dag, used, 0, -1, -1, -1, 0)  # waits for all members; holds nothing
        ns = max(1, int(np.rint(_all_reduce_seconds(rings, ring, nbytes) * 1e9)))
        begin, end = rings.member_at[ring], rings.member_at[ring + 1]
        for m in range(begin, end):
            d = rings.member[m]
            if progress.has_host_overhead:
                add_edge(dag, used, progress.stretch[d], gate, progress.offset[d])
                host_bytes = all_reduce_bytes_per_member(end - begin, nbytes)
                # overhead.sum: fixed seconds for an all-reduce
                seconds = all_reduce_device_seconds(
                    overhead.sum[d], overhead.byte[d], overhead.collective[d], host_bytes, ns
                )
                add_device_time(dag, used, d, int(np.rint(seconds * 1e9)), progress)
            elif predecessor[d] >= 0:
                add_edge(dag, used, predecessor[d], gate, delay[d])
        for m in range(begin, end):
            first, second = rings.first_link[m], rings.second_link[m]
            node = add_node(dag, used, ns, first, second, -1, 0)
            add_edge(dag, used, gate, node, 0)
            if first >= 0:
                load[first] += ns
            if second >= 0:
                load[second] += ns
            add_arrival(dag, used, rings.member[m], node, arrival, progress.arrivals)


@njit(cache=True)
def _all_reduce_seconds(rings: Rings, ring: int, nbytes: int) -> float:
    """Seconds of an all-reduce of `nbytes` on a ring: those of the fastest algorithm.

    fastest_seconds (costs/collectives.py) needs the columns of Rings.topology and the rings inside nodes.
    """
    topology, node_rings = (
        rings.topology[ring],
        rings.node_rings[rings.node_ring_at[ring] : rings.node_ring_at[ring + 1]],
    )
    return float(
        fastest_seconds(
            topology[0],
            topology[1],
            topology[2],
            topology[3],
            topology[4],
            topology[5],
            node_rings,
            nbytes,
        )
    )
