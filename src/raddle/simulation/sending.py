"""Tasks of messages: each holds the links of its route, and takes time from hosts that send themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from raddle.clusters import Cluster
from raddle.costs.host_overhead import has_host_overhead, message_host_seconds
from raddle.costs.links import transfer_seconds
from raddle.program.program import Move, Program, message_bytes
from raddle.simulation.nanoseconds import nanoseconds
from raddle.simulation.rows import NONE, Array, Rows


def links_held(cluster: Cluster, source: int, target: int, base: int) -> tuple[int, int]:
    """The links of a route as resources, which are numbered from `base` on; -1 where there is one."""
    first, second, *_ = (*(base + r for r in cluster.route(source, target).resources), NONE, NONE)
    return first, second


class Sending:
    """Tasks of moves; routes are worked out once for all repetitions."""

    def __init__(
        self, rows: Rows, program: Program, cluster: Cluster, urgency: Mapping[str, int]
    ) -> None:
        self.rows, self.program, self.cluster, self.urgency = rows, program, cluster, urgency
        self.handles = has_host_overhead(cluster)
        self.known: dict[object, tuple[Array, ...]] = {}

    def move(self, number: int, move: Move) -> None:
        key = (move.value, move.kind, id(move.messages))
        if key not in self.known:
            self.known[key] = self._messages(move)
        duration, first, second, source, target, nbytes = self.known[key]
        urgency = self.urgency.get(move.value, 0) if move.kind.is_of_parameter else 0
        ids = self.rows.block(number, duration, first, second, target, source, nbytes, urgency)
        self.rows.after(ids, move.deps, source)
        if self.handles and urgency:
            ids = self._sent_apart(number, move.deps, source, target, nbytes, ids)
        elif self.handles:
            self._sent_in_order(number, source, target, nbytes, ids)
        self.rows.join(number, target, ids)

    def _messages(self, move: Move) -> tuple[Array, ...]:
        found = []
        for m in move.messages:
            route = self.cluster.route(m.source, m.target)
            nbytes = message_bytes(self.program, move, m)
            seconds = transfer_seconds(route.latency, route.bandwidth, nbytes)
            links = links_held(self.cluster, m.source, m.target, self.program.plan.devices)
            found.append((seconds, *links, m.source, m.target, nbytes))
        times, *rest = zip(*found, strict=True)
        return (nanoseconds(times), *(np.array(column) for column in rest))

    def _sent_in_order(
        self, number: int, source: Array, target: Array, nbytes: Array, ids: Array
    ) -> None:
        """A source sends one message after the other, after all that it did before."""
        rows = self.rows
        for i, ns in enumerate(self._overhead(source, nbytes, sliced=False)):
            own = source[i : i + 1]
            if ns:
                rows.follow(own, rows.on(number, own, np.array([ns])))
            rows.wait(ids[i : i + 1], rows.last[own])
        taken = self._overhead(target, nbytes, sliced=False)
        rows.due[number] = np.bincount(target, taken, rows.devices).astype(np.int64)

    def _sent_apart(
        self, number: int, deps: Sequence[int], source: Array, target: Array, nbytes: Array,
        ids: Array,
    ) -> Array:  # fmt: skip
        """Slices are sent and taken in by threads of their own, between what their devices compute."""
        sent = self.rows.on(
            number, source, np.maximum(1, self._overhead(source, nbytes, sliced=True))
        )
        self.rows.after(sent, deps, source)
        self.rows.wait(ids, sent)
        taken = self.rows.on(
            number, target, np.maximum(1, self._overhead(target, nbytes, sliced=True))
        )
        self.rows.wait(taken, ids)
        return taken

    def _overhead(self, devices: Array, nbytes: Array, *, sliced: bool) -> Array:
        """Nanoseconds of one end of each message."""
        seconds = [
            message_host_seconds(self.cluster.devices[d], int(n), sliced=sliced)
            for d, n in zip(devices, nbytes, strict=True)
        ]
        return nanoseconds(seconds, least=0)
