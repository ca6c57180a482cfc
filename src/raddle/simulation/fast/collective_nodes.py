"""Writes collectives as nodes and edges of a StepDag (arrays.py), JIT-compiled.

This module is a part of the fast simulation, with which searches time thousands of plans a second
(evaluator.py).

A ring is the devices that take part together; a collective starts when its last member is ready. A set of
rings has one ring for each group of devices that hold the same part of a parameter (arrays.Rings).
"""

# g: set of rings, d: device, k: place in rings.ring, m: place in rings.member

from __future__ import annotations

import numpy as np

from raddle.costs.collectives import fastest_seconds
from raddle.costs.host_overhead import collective_member_seconds
from raddle.simulation.fast.arrays import (
    AWAITED,
    Array,
    DeviceProgress,
    HostOverhead,
    Rings,
    StepDag,
)
from raddle.simulation.fast.nodes import add_arrival, add_device_time, add_edge, add_node
from raddle.simulation.heaps import allocates_nothing


@allocates_nothing
def add_collective(
    dag: StepDag, used: Array, rings: Rings, overhead: HostOverhead, g: int, predecessor: Array,
    delay: Array, amounts: Array, progress: DeviceProgress, arrival: Array, after_row: int,
) -> None:  # fmt: skip
    """Adds the collective of a set of rings; amounts: by ring of the set, the bytes of its full buffer.

    The other arrays are by device. A member is ready after all that it has done. In an all-reduce without
    host overhead it is ready `delay` after the node `predecessor` (-1: at once). If the collective waits
    for a row of the step script (after_row; -1: for none), a member is ready after all that it has done,
    when the result of the row has arrived. `arrival` receives by device the node that ends when the result
    is complete. dag, used, progress: as in nodes.py.
    """
    progress.arrivals[:] = 0
    arrival[:] = -1
    load = progress.load
    for k in range(rings.set_at[g], rings.set_at[g + 1]):
        ring, nbytes = rings.ring[k], amounts[k - rings.set_at[g]]
        gate = add_node(dag, used, 0, -1, -1, -1, 0)  # waits for all members; holds nothing
        lines = rings.lines[rings.line_at[ring] : rings.line_at[ring + 1]]
        ns = max(1, int(np.rint(fastest_seconds(lines, nbytes) * 1e9)))
        in_order = progress.has_host_overhead or rings.all_reduces[ring] == 0 or after_row >= 0
        begin, end = rings.member_at[ring], rings.member_at[ring + 1]
        for m in range(begin, end):
            d = rings.member[m]
            if in_order:
                add_edge(dag, used, progress.stretch[d], gate, progress.offset[d])
                dag.nodes[progress.stretch[d], AWAITED] = 1
            elif predecessor[d] >= 0:
                add_edge(dag, used, predecessor[d], gate, delay[d])
            if after_row >= 0 and dag.sync_arrival[after_row, d] >= 0:
                add_edge(dag, used, dag.sync_arrival[after_row, d], gate, 0)
            if progress.has_host_overhead:
                seconds = collective_member_seconds(
                    rings.all_reduces[ring], overhead.sum[d], overhead.message[d], overhead.byte[d],
                    overhead.collective[d], end - begin, nbytes, ns,
                )  # fmt: skip
                add_device_time(dag, used, d, int(np.rint(seconds * 1e9)), progress)
        for m in range(begin, end):
            first, second = rings.first_link[m], rings.second_link[m]
            node = add_node(dag, used, ns, first, second, -1, 0)
            add_edge(dag, used, gate, node, 0)
            if first >= 0:
                load[first] += ns
            if second >= 0:
                load[second] += ns
            add_arrival(dag, used, rings.member[m], node, arrival, progress.arrivals)
