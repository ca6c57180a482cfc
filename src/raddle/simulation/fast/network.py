"""Routes between devices, rings of them, and what communication takes from them, as arrays."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from raddle.clusters import Cluster
from raddle.costs.collectives import all_reduce_topology
from raddle.costs.host_overhead import has_host_overhead, host_seconds
from raddle.simulation.all_reduce_tasks import ring_links
from raddle.simulation.fast.arrays import Handling, Rings
from raddle.simulation.message_tasks import route_resources

Array = np.ndarray


@dataclass(frozen=True)
class Routes:
    """By source and target; links are numbered after the devices, as resources are."""

    latency: Array
    bandwidth: Array
    first: Array
    second: Array


def routes(cluster: Cluster) -> Routes:
    count = len(cluster.devices)
    latency, bandwidth = np.zeros((count, count)), np.ones((count, count))
    first, second = np.full((count, count), -1), np.full((count, count), -1)
    for s in range(count):
        for t in range(count):
            if s != t:
                route = cluster.route(s, t)
                latency[s, t], bandwidth[s, t] = route.latency, route.bandwidth
                first[s, t], second[s, t] = route_resources(cluster, s, t, count)
    return Routes(latency, bandwidth, first, second)


def handling(cluster: Cluster) -> Handling:
    """costs/host_overhead.py by device."""
    figures = {
        name: np.array([d.host_overhead[name] for d in cluster.devices])
        for name in ("message", "slice", "byte", "sum")
    }
    return Handling(has_host_overhead(cluster), **figures)


def of_messages(own: Handling, devices: Array, nbytes: Array, *, sliced: bool = False) -> Array:
    """Nanoseconds of one end of each message, or of each slice of a parameter."""
    each = own.slice if sliced else own.message
    seconds: Array = host_seconds(each[devices], own.byte[devices], nbytes)
    return np.rint(seconds * 1e9).astype(np.int64)


@dataclass
class RingBook:
    """Rings and sets of rings, numbered as they are met."""

    cluster: Cluster
    rings: dict[tuple[int, ...], int] = field(default_factory=dict)
    sets: dict[tuple[tuple[int, ...], ...], int] = field(default_factory=dict)
    _arrays: Rings | None = None
    _columns: dict[tuple[int, ...], tuple[list[int], list[int], list[float], list[list[float]]]] = (
        field(default_factory=dict)
    )

    def number(self, together: tuple[tuple[int, ...], ...]) -> int:
        """Of a set of rings."""
        if together not in self.sets:
            self.sets[together] = len(self.sets)
            for ring in together:
                if ring not in self.rings:
                    self.rings[ring] = len(self.rings)
                    self._columns[ring] = self._describe(ring)
            self._arrays = None
        return self.sets[together]

    def _describe(
        self, ring: tuple[int, ...]
    ) -> tuple[list[int], list[int], list[float], list[list[float]]]:
        *figures, inner = all_reduce_topology(self.cluster, ring)
        links = ring_links(self.cluster, ring, len(self.cluster.devices))
        return *links, figures, [list(own) for own in inner]

    def arrays(self) -> Rings:
        if self._arrays is None:
            rings = list(self.rings)
            columns = [self._columns[ring] for ring in rings]
            inner = [row for c in columns for row in c[3]]
            self._arrays = Rings(
                _at([len(s) for s in self.sets]),
                np.array([self.rings[r] for s in self.sets for r in s], np.int64),
                _at([len(r) for r in rings]),
                np.array([d for r in rings for d in r], np.int64),
                np.array([x for c in columns for x in c[0]], np.int64),
                np.array([x for c in columns for x in c[1]], np.int64),
                np.array([c[2] for c in columns], np.float64).reshape(-1, 6),
                _at([len(c[3]) for c in columns]),
                np.array(inner, np.float64).reshape(-1, 3),
            )
        return self._arrays


def _at(lengths: list[int]) -> Array:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
