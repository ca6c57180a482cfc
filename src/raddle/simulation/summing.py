"""Tasks of sums: a ring starts with its last member, and then each member holds its part of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np

from raddle.clusters import Cluster
from raddle.costs.collectives import all_reduce_bytes_by_device, all_reduce_seconds, hops
from raddle.costs.host_overhead import all_reduce_host_seconds, has_host_overhead
from raddle.program.program import Program, Reduce, reduced_bytes
from raddle.simulation.nanoseconds import nanoseconds
from raddle.simulation.rows import NONE, Array, Rows
from raddle.simulation.sending import links_held


def ring_links(cluster: Cluster, ring: Sequence[int], base: int) -> tuple[list[int], list[int]]:
    """By member, the links that it holds. Hops that share a link use it together: the first holds it."""
    seen: set[int] = set()
    held = []
    for link in chain.from_iterable(links_held(cluster, a, b, base) for a, b in hops(ring)):
        held.append(NONE if link in seen else link)
        seen.add(link)
    return held[::2], held[1::2]


class Summing:
    """Tasks of reduces; rings are worked out once for all repetitions.

    `overtaking`: sums of slices do not leave in the program's order, but the most urgent first.
    """

    def __init__(
        self, rows: Rows, program: Program, cluster: Cluster, urgency: Mapping[str, int], *,
        overtaking: bool,
    ) -> None:  # fmt: skip
        self.rows, self.program, self.cluster = rows, program, cluster
        self.urgency = urgency if overtaking else {}
        self.in_order = bool(program.slices) and not overtaking
        self.handles = has_host_overhead(cluster)
        self.known: dict[tuple[tuple[int, ...], int], tuple[Array, ...]] = {}

    def reduce(self, number: int, reduce: Reduce) -> None:
        rows, devices, ids = self.rows, [], []
        urgency = self.urgency.get(reduce.parameters[0], 0)
        for members, nbytes in reduced_bytes(self.program, reduce).items():
            ring = np.array(members)
            gate = rows.point(number, ring[:1])
            gates = np.repeat(gate, len(ring))
            rows.after(gates, reduce.deps, ring)
            if self.handles or self.in_order:  # leaves where the program has it, not before
                rows.wait(gates, rows.last[ring])
            if self.handles:
                self._take_part(number, ring, nbytes)
            duration, first, second, sent = self._ring(members, nbytes)
            tasks = rows.block(number, duration, first, second, ring, ring, sent, urgency)
            rows.wait(tasks, gates)
            devices.append(ring)
            ids.append(tasks)
        rows.join(number, np.concatenate(devices), np.concatenate(ids))

    def _take_part(self, number: int, ring: Array, nbytes: int) -> None:
        """A sum takes time from each member as it goes."""
        seconds = [
            all_reduce_host_seconds(self.cluster.devices[d], len(ring), nbytes) for d in ring
        ]
        cost = nanoseconds(seconds, least=0)
        own, cost = ring[cost > 0], cost[cost > 0]
        if len(own):
            self.rows.follow(own, self.rows.on(number, own, cost))

    def _ring(self, ring: tuple[int, ...], nbytes: int) -> tuple[Array, ...]:
        """By member: nanoseconds, its two links, and the bytes that it sends."""
        if (ring, nbytes) not in self.known:
            ns = nanoseconds([all_reduce_seconds(self.cluster, ring, nbytes)])
            links = ring_links(self.cluster, ring, self.program.plan.devices)
            sent = all_reduce_bytes_by_device(len(ring), nbytes)
            each = (np.repeat(ns, len(ring)), *map(np.array, (*links, sent)))
            self.known[ring, nbytes] = each
        return self.known[ring, nbytes]
