"""Adds the tasks of messages: each holds the links of its route; on CPUs it also takes device time.

A message is one task. It holds its links for bytes / bandwidth seconds and arrives a latency later
(costs/links.py). With host overhead (costs/host_overhead.py), sending and receiving take device time too. A
slice is a range of rows of a parameter that is sent on its own.
"""

# m: a message

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from raddle.clusters import Cluster, Route
from raddle.costs.host_overhead import has_host_overhead, message_host_seconds
from raddle.costs.links import occupied_seconds
from raddle.program.program import Move, Program, message_bytes
from raddle.simulation.nanoseconds import nanoseconds
from raddle.simulation.task_table import NONE, Array, TaskTable


def route_resources(
    cluster: Cluster, source: int, target: int, link_offset: int
) -> tuple[int, int]:
    """Returns the resource numbers of a route's two links; the second is -1 if the route has one link.

    link_offset: the number of the first link; resources are the devices, then the links.
    """
    first, second, *_ = (
        *(link_offset + r for r in cluster.route(source, target).resources),
        NONE,
        NONE,
    )
    return first, second


def flight_nanoseconds(route: Route) -> int:
    """Returns how long a message is in flight after it has released the links of its route."""
    return int(nanoseconds([route.latency], minimum=0)[0])


class MessageTasks:
    """Adds the tasks of Move instructions; durations and links are cached.

    urgency: by parameter that is cut into slices, see tasks.slice_urgencies. Arguments of the methods:
    `number` is the number of the instruction, `ids` are the numbers of tasks.
    """

    def __init__(
        self, table: TaskTable, program: Program, cluster: Cluster, urgency: Mapping[str, int]
    ) -> None:
        self.table, self.program, self.cluster, self.urgency = table, program, cluster, urgency
        self.has_host_overhead = has_host_overhead(cluster)
        self.cache: dict[object, tuple[Array, ...]] = {}  # see `_message_columns`

    def add_move(self, number: int, move: Move) -> None:
        """Adds the tasks of the messages of one Move."""
        # Moves of several micro-batches share one tuple of messages, so its id is part of the key.
        key = (move.value, move.kind, id(move.messages))
        if key not in self.cache:
            self.cache[key] = self._message_columns(move)
        duration, latency, first, second, source, target, nbytes = self.cache[key]
        urgency = self.urgency.get(move.value, 0) if move.kind.is_of_parameter else 0
        ids = self.table.add_tasks(
            number, duration, first, second, target, source, nbytes, urgency, latency
        )
        self.table.wait_for_instructions(ids, move.deps, source)
        if self.has_host_overhead and urgency:
            ids = self._send_unordered(number, move.deps, source, target, nbytes, ids)
        elif self.has_host_overhead:
            self._send_in_order(number, source, target, nbytes, ids)
        self.table.end_with_messages(number, target, ids)

    def _message_columns(self, move: Move) -> tuple[Array, ...]:
        """Returns 7 arrays over the messages: ns on links, ns in flight, 2 links, source, target, bytes."""
        rows = []
        for m in move.messages:
            route = self.cluster.route(m.source, m.target)
            nbytes = message_bytes(self.program, move, m)
            seconds, flight = occupied_seconds(route.bandwidth, nbytes), flight_nanoseconds(route)
            links = route_resources(self.cluster, m.source, m.target, self.program.plan.devices)
            rows.append((seconds, flight, *links, m.source, m.target, nbytes))
        times, *columns = zip(*rows, strict=True)
        return (nanoseconds(times), *(np.array(column) for column in columns))

    def _send_in_order(
        self, number: int, source: Array, target: Array, nbytes: Array, ids: Array
    ) -> None:
        """Adds host overhead in the devices' order: a source sends one message after the other.

        At the target, the time to receive is added to the first instruction that needs the message. ids:
        the tasks of the messages.
        """
        table = self.table
        for i, ns in enumerate(self._host_overhead(source, nbytes, sliced=False)):
            sender = source[i : i + 1]
            if ns:
                table.append_to_device_order(
                    sender, table.add_device_tasks(number, sender, np.array([ns]))
                )
            table.add_dependencies(ids[i : i + 1], table.last_task[sender])
        receiving = self._host_overhead(target, nbytes, sliced=False)
        table.receive_overhead[number] = np.bincount(target, receiving, table.devices).astype(
            np.int64
        )

    def _send_unordered(
        self, number: int, deps: Sequence[int], source: Array, target: Array, nbytes: Array,
        ids: Array,
    ) -> Array:  # fmt: skip
        """Adds host overhead of slices, outside of the devices' order; returns the tasks that receive them.

        ids: the tasks of the messages. In a run, separate threads send and receive slices, between the
        tasks that a device computes.
        """
        sending = self.table.add_device_tasks(
            number, source, np.maximum(1, self._host_overhead(source, nbytes, sliced=True))
        )
        self.table.wait_for_instructions(sending, deps, source)
        self.table.add_dependencies(ids, sending)
        receiving = self.table.add_device_tasks(
            number, target, np.maximum(1, self._host_overhead(target, nbytes, sliced=True))
        )
        self.table.add_dependencies(receiving, ids)
        return receiving

    def _host_overhead(self, devices: Array, nbytes: Array, *, sliced: bool) -> Array:
        """Returns by message the nanoseconds that it takes from its device; sliced: it carries a slice.

        devices: by message, the device at one end, source or target.
        """
        seconds = [
            message_host_seconds(self.cluster.devices[d], int(n), sliced=sliced)
            for d, n in zip(devices, nbytes, strict=True)
        ]
        return nanoseconds(seconds, minimum=0)
