"""Adds the tasks of all-reduces, reduce-scatters and all-gathers.

The devices (members) that take part in a collective together are listed as a ring. Each member is one task,
which holds the links from this member to the next. All tasks of a ring become ready together, when its last
member is ready, and have the same duration: that of the fastest algorithm, which may be another than a ring
(costs/collectives.py). A member is ready when all instructions that the collective waits for have ended on
it: its gradients are complete or, for an all-reduce over replicas of shards (HSDP), the sums of the
reduce-scatter are there. It must also have done everything before the collective in the program. There is
one exception: an all-reduce of gradients (not over replicas) waits only for its gradients, if communication
takes no device time (host overhead) and all-reduces of slices may leave the program's order.
"""

# a, b: neighbours in a ring; d: a device

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np

from raddle.clusters import Cluster
from raddle.costs.collective_groups import hops
from raddle.costs.collectives import collective_bytes_by_device, collective_seconds
from raddle.costs.host_overhead import collective_host_seconds, has_host_overhead
from raddle.program.collective_kind import Collective
from raddle.program.program import Gather, Program, Reduce, buffer_bytes
from raddle.simulation.message_tasks import route_resources
from raddle.simulation.nanoseconds import nanoseconds
from raddle.simulation.task_table import NONE, Array, TaskTable


def ring_links(
    cluster: Cluster, ring: Sequence[int], link_offset: int
) -> tuple[list[int], list[int]]:
    """Returns by member its first link, and by member its second link (or -1), as resource numbers.

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


class CollectiveTasks:
    """Adds the tasks of Reduce and Gather instructions; durations and links of rings are cached.

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
        # See `_ring_columns`.
        self.cache: dict[tuple[Collective, tuple[int, ...], int], tuple[Array, ...]] = {}

    def add_collective(self, number: int, instruction: Reduce | Gather) -> None:
        """Adds the tasks of an instruction: for each ring a gate, then a task for each member.

        The gate is an empty task that ends when all members are ready.
        """
        table, devices, ids = self.table, [], []
        urgency, kind = self.urgency.get(instruction.parameters[0], 0), instruction.collective
        in_order = (
            self.has_host_overhead
            or self.in_order
            or kind is not Collective.ALL_REDUCE
            or self.program.sums_replicas(instruction)
        )
        for members, nbytes in buffer_bytes(self.program, instruction).items():
            ring = np.array(members)
            gate = table.add_empty_tasks(number, ring[:1])  # the ring's tasks wait for it
            gates = np.repeat(gate, len(ring))
            table.wait_for_instructions(gates, instruction.deps, ring)
            duration, first, second, sent = self._ring_columns(kind, members, nbytes)
            # The ring also waits for everything that its members do before it in the program.
            if in_order:
                table.add_dependencies(gates, table.last_task[ring])
            if self.has_host_overhead:
                self._add_host_overhead(number, kind, ring, nbytes, int(duration[0]))
            tasks = table.add_tasks(number, duration, first, second, ring, ring, sent, urgency)
            table.add_dependencies(tasks, gates)
            devices.append(ring)
            ids.append(tasks)
        # On each member, the instruction ends when its task of the collective has ended.
        table.end_with_messages(number, np.concatenate(devices), np.concatenate(ids))

    def _add_host_overhead(
        self, number: int, kind: Collective, ring: Array, nbytes: int, duration: int
    ) -> None:
        """Adds a task on each member that has host overhead, in the device's order.

        duration: nanoseconds of the collective.
        """
        seconds = [
            collective_host_seconds(self.cluster.devices[d], kind, len(ring), nbytes, duration)
            for d in ring
        ]
        cost = nanoseconds(seconds, minimum=0)
        members, cost = ring[cost > 0], cost[cost > 0]
        if len(members):
            self.table.append_to_device_order(
                members, self.table.add_device_tasks(number, members, cost)
            )

    def _ring_columns(
        self, kind: Collective, ring: tuple[int, ...], nbytes: int
    ) -> tuple[Array, ...]:
        """Returns 4 arrays over the members: nanoseconds, first link, second link, bytes that it sends."""
        key = kind, ring, nbytes
        if key not in self.cache:
            ns = nanoseconds([collective_seconds(self.cluster, kind, ring, nbytes)])
            links = ring_links(self.cluster, ring, self.program.plan.devices)
            sent = collective_bytes_by_device(kind, len(ring), nbytes)
            self.cache[key] = (np.repeat(ns, len(ring)), *map(np.array, (*links, sent)))
        return self.cache[key]
