"""Adds the tasks of all-reduces: a ring starts when its last member is ready.

A ring is the list of devices (members) that all-reduce together. Each member of a ring is one task. All
tasks of a ring become ready together, have the same duration, and hold the member's links to the next
member. The duration is that of the fastest algorithm, which may be another than a ring
(costs/collectives.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np

from raddle.clusters import Cluster
from raddle.costs.collectives import all_reduce_bytes_by_device, all_reduce_seconds, hops
from raddle.costs.host_overhead import all_reduce_host_seconds, has_host_overhead
from raddle.program.program import Program, Reduce, reduced_bytes
from raddle.simulation.message_tasks import route_resources
from raddle.simulation.nanoseconds import nanoseconds
from raddle.simulation.task_table import NONE, Array, TaskTable


def ring_links(
    cluster: Cluster, ring: Sequence[int], link_offset: int
) -> tuple[list[int], list[int]]:
    """By member, its first and its second link (or -1), as resource numbers.

    link_offset: the resource number of the first link; resources are the devices, then the links.
    A hop goes from a member to the next. Where several hops use the same link, only the first of them holds
    it, so that the tasks of a ring do not wait for each other.
    """
    seen: set[int] = set()
    held = []  # two for each hop: its first and its second link
    for link in chain.from_iterable(
        route_resources(cluster, a, b, link_offset) for a, b in hops(ring)
    ):
        held.append(NONE if link in seen else link)
        seen.add(link)
    return held[::2], held[1::2]


class AllReduceTasks:
    """Adds the tasks of Reduce instructions; durations and links of rings are cached.

    overtaking: slices (ranges of rows of a parameter) are summed in the order of their urgency, instead of
    the program's order. urgency: by parameter that is cut into slices (tasks.slice_urgencies). Arguments of
    the methods: `number` is the number of the instruction.
    """

    def __init__(
        self, table: TaskTable, program: Program, cluster: Cluster, urgency: Mapping[str, int], *,
        overtaking: bool,
    ) -> None:  # fmt: skip
        self.table, self.program, self.cluster = table, program, cluster
        self.urgency = urgency if overtaking else {}
        # Whether all-reduces of slices start in the program's order.
        self.in_order = bool(program.slices) and not overtaking
        self.has_host_overhead = has_host_overhead(cluster)
        # (ring, bytes) -> see `_ring_columns`
        self.cache: dict[tuple[tuple[int, ...], int], tuple[Array, ...]] = {}

    def add_reduce(self, number: int, reduce: Reduce) -> None:
        """Adds the tasks of one Reduce: for each ring, a gate (all members are ready), then their tasks."""
        table, devices, ids = self.table, [], []
        urgency = self.urgency.get(reduce.parameters[0], 0)
        for members, nbytes in reduced_bytes(self.program, reduce).items():
            ring = np.array(members)
            gate = table.add_empty_tasks(number, ring[:1])  # the ring's tasks wait for it
            gates = np.repeat(gate, len(ring))
            table.wait_for_instructions(gates, reduce.deps, ring)
            duration, first, second, sent = self._ring_columns(members, nbytes)
            # The ring also waits for all that its members did before it in the program.
            if self.has_host_overhead or self.in_order:
                table.add_dependencies(gates, table.last_task[ring])
            if self.has_host_overhead:
                self._add_host_overhead(number, ring, nbytes, int(duration[0]))
            tasks = table.add_tasks(number, duration, first, second, ring, ring, sent, urgency)
            table.add_dependencies(tasks, gates)
            devices.append(ring)
            ids.append(tasks)
        table.end_with_messages(number, np.concatenate(devices), np.concatenate(ids))

    def _add_host_overhead(self, number: int, ring: Array, nbytes: int, duration: int) -> None:
        """Adds a task on each member that has host overhead, in the device's order.

        duration: nanoseconds of the all-reduce.
        """
        seconds = [
            all_reduce_host_seconds(self.cluster.devices[d], len(ring), nbytes, duration)
            for d in ring
        ]
        cost = nanoseconds(seconds, minimum=0)
        members, cost = ring[cost > 0], cost[cost > 0]
        if len(members):
            self.table.append_to_device_order(
                members, self.table.add_device_tasks(number, members, cost)
            )

    def _ring_columns(self, ring: tuple[int, ...], nbytes: int) -> tuple[Array, ...]:
        """Arrays over the members: nanoseconds, first link, second link, bytes that it sends."""
        if (ring, nbytes) not in self.cache:
            ns = nanoseconds([all_reduce_seconds(self.cluster, ring, nbytes)])
            links = ring_links(self.cluster, ring, self.program.plan.devices)
            sent = all_reduce_bytes_by_device(len(ring), nbytes)
            columns = (np.repeat(ns, len(ring)), *map(np.array, (*links, sent)))
            self.cache[ring, nbytes] = columns
        return self.cache[ring, nbytes]
