"""Turns the network of a cluster into arrays: routes between devices, rings of devices, host overhead.

This module is a part of the fast simulation, with which searches time thousands of plans a second
(evaluator.py).

A ring is the devices that all-reduce together, in order. A set of rings has one ring for each group of
devices that hold the same part of a parameter (arrays.Rings). Host overhead is device time that
communication takes.
"""

# s: source, t: target (devices)

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np

from raddle.clusters import Cluster
from raddle.costs.collectives import collective_lines
from raddle.costs.host_overhead import has_host_overhead, host_seconds
from raddle.costs.line import Line
from raddle.program.collective_kind import Collective
from raddle.simulation.collective_tasks import ring_links
from raddle.simulation.fast.arrays import HostOverhead, Rings
from raddle.simulation.message_tasks import flight_nanoseconds, route_resources

Array = np.ndarray


@dataclass(frozen=True)
class Routes:
    """The routes between all devices, as arrays [source, target].

    Links are resource numbers: resources are the devices, then the links.
    """

    latency: Array  # nanoseconds in which a message is in flight
    bandwidth: Array  # bytes/s
    first: Array  # first link
    second: Array  # second link, or -1


def build_routes(cluster: Cluster) -> Routes:
    """Returns the routes between all pairs of devices."""
    count = len(cluster.devices)
    latency, bandwidth = np.zeros((count, count), np.int64), np.ones((count, count))
    first, second = np.full((count, count), -1), np.full((count, count), -1)
    for s in range(count):
        for t in range(count):
            if s != t:
                route = cluster.route(s, t)
                latency[s, t], bandwidth[s, t] = flight_nanoseconds(route), route.bandwidth
                first[s, t], second[s, t] = route_resources(cluster, s, t, count)
    return Routes(latency, bandwidth, first, second)


def host_overhead_arrays(cluster: Cluster) -> HostOverhead:
    """Returns the host overhead of all devices (costs/host_overhead.py)."""
    seconds = {
        name: np.array([d.host_overhead[name] for d in cluster.devices])
        for name in ("message", "slice", "byte", "sum", "collective")  # "sum": per all-reduce
    }
    return HostOverhead(has_host_overhead(cluster), **seconds)


def message_host_nanoseconds(
    overhead: HostOverhead, devices: Array, nbytes: Array, *, sliced: bool = False
) -> Array:
    """Returns by message the host overhead at one end, in nanoseconds; devices: by message, that end.

    sliced: the messages carry slices of parameters.
    """
    fixed = overhead.slice if sliced else overhead.message
    seconds: Array = host_seconds(fixed[devices], overhead.byte[devices], nbytes)
    return np.rint(seconds * 1e9).astype(np.int64)


_Ring = tuple[Collective, tuple[int, ...]]  # kind of collective, devices
# Kind, devices of each ring, and a value that distinguishes sets with equal rings: see RingNumbers.
_RingSet = tuple[Collective, tuple[tuple[int, ...], ...], Hashable]


@dataclass
class RingNumbers:
    """Numbers rings of devices, and sets of rings, in the order of their first use.

    A set of rings is given by the kind of collective, the devices of each ring, and a key that tells
    otherwise equal sets apart: the block of sharded parameters, and who holds them.
    """

    cluster: Cluster
    rings: dict[_Ring, int] = field(default_factory=dict)  # ring -> number
    sets: dict[_RingSet, int] = field(default_factory=dict)  # set -> number
    _arrays: Rings | None = None
    _columns: dict[_Ring, tuple[list[int], list[int], list[Line]]] = field(default_factory=dict)

    def set_number(
        self, rings: tuple[tuple[int, ...], ...], kind: Collective = Collective.ALL_REDUCE,
        key: Hashable = None,
    ) -> int:  # fmt: skip
        """Returns the number of a set of rings, of which each is a tuple of devices.

        A new set gets the next number.
        """
        ring_set = kind, rings, key
        if ring_set not in self.sets:
            self.sets[ring_set] = len(self.sets)
            for ring in ((kind, devices) for devices in rings):
                if ring not in self.rings:
                    self.rings[ring] = len(self.rings)
                    self._columns[ring] = self._describe(*ring)
            self._arrays = None
        return self.sets[ring_set]

    def _describe(
        self, kind: Collective, ring: tuple[int, ...]
    ) -> tuple[list[int], list[int], list[Line]]:
        """Returns a ring's first links, second links, and algorithms (lines, costs/collectives.py)."""
        lines = collective_lines(self.cluster, kind, ring)
        return *ring_links(self.cluster, ring, len(self.cluster.devices)), lines

    def arrays(self) -> Rings:
        """Returns all rings and sets as arrays, in the order of the fields of Rings."""
        # r: ring, s: set of rings, c: the columns of a ring (see `_describe`)
        if self._arrays is None:
            rings = list(self.rings)  # (kind, devices)
            columns = [self._columns[ring] for ring in rings]
            self._arrays = Rings(
                _starts([len(devices) for _, devices, _ in self.sets]),
                np.array([self.rings[kind, r] for kind, s, _ in self.sets for r in s], np.int64),
                np.array([kind is Collective.ALL_REDUCE for kind, _ in rings], np.int64),
                _starts([len(r) for _, r in rings]),
                np.array([d for _, r in rings for d in r], np.int64),
                np.array([x for c in columns for x in c[0]], np.int64),
                np.array([x for c in columns for x in c[1]], np.int64),
                _starts([len(c[2]) for c in columns]),
                np.array([line for c in columns for line in c[2]], np.float64).reshape(-1, 2),
            )
        return self._arrays


def _starts(lengths: list[int]) -> Array:
    """Returns the start of each list if lists of these lengths are joined, and the end of the last one."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
