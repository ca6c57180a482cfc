"""Seconds to synchronise the parameters of a group, under all of its configurations.

As OptCNN counts: every holder sends its gradients to a server that is none of the devices and gets the
parameters back, and all of that goes through one link.

As it is run: the devices that hold a share all-reduce it, all shares at the same time. Rings that share a
link take turns. Parameters are reduced in buckets, so a small one takes its part of a full bucket's time.
"""

# x: configuration, d: device, a: axis, u: a different set of rings

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from raddle.clusters import Cluster
from raddle.costs.collectives import all_reduce_seconds, hops, server_bytes
from raddle.plans.plan import BUCKET
from raddle.searches.optcnn.layouts import Layout, present
from raddle.searches.optcnn.ranges import Ranges, numbered, volume

Array = np.ndarray
Ring = tuple[int, ...]


class Read(NamedTuple):
    """A parameter that a member of a group reads."""

    layout: Layout
    operand: int
    width: float  # bytes of an element, divided by the groups that read it


class _Rings(NamedTuple):
    of: Array  # [x]: u
    sets: list[list[Ring]]  # [u]
    bucket: Array  # [u]: seconds of a full bucket


class Syncing:
    """Remembers rings and what they take."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.everyone = np.arange(len(cluster.devices))
        self.rings: dict[tuple[object, ...], _Rings] = {}
        self.sums: dict[tuple[tuple[Ring, ...], float], float] = {}
        self.seconds: dict[tuple[Ring, float], float] = {}
        self.links: dict[Ring, frozenset[int]] = {}

    # -- as it is run ----------------------------------------------------------------------------

    def all_reduced(self, reads: Sequence[Read]) -> Array:
        """[x]: every ring is taken to carry as much as the first device's, which has the largest share."""
        together: dict[tuple[object, ...], tuple[Read, Array]] = {}
        for read in reads:
            key = _sharing(read)
            more = together[key][1] if key in together else 0.0
            together[key] = read, read.width * _elements(read) + more
        total = np.zeros(len(reads[0].layout.present))
        for key, (read, nbytes) in together.items():
            if key not in self.rings:
                self.rings[key] = self._rings(read)
            total += self._reduced(self.rings[key], nbytes)
        return total

    def _reduced(self, rings: _Rings, nbytes: Array) -> Array:
        seconds = rings.bucket[rings.of] * (nbytes / BUCKET)
        for x in np.flatnonzero((nbytes > BUCKET) & (seconds > 0)):
            seconds[x] = self._longest(rings.sets[rings.of[x]], float(nbytes[x]))
        return np.asarray(seconds)

    def _rings(self, read: Read) -> _Rings:
        holders, devices = shares(read, self.everyone), self.everyone
        if read.layout.placing is None:
            devices = read.layout.lattice.devices
        known: dict[bytes, int] = {}
        sets: list[list[Ring]] = []
        of = np.zeros(len(holders), np.int64)
        for x, row in enumerate(holders):
            key = row.tobytes()
            if key not in known:
                known[key] = len(sets)
                sets.append(_equal(row, devices))
            of[x] = known[key]
        bucket = np.array([self._longest(rings, BUCKET) for rings in sets])
        return _Rings(of, sets, bucket)

    def _longest(self, rings: Sequence[Ring], nbytes: float) -> float:
        """Of the links, the time that the rings through it take."""
        key = (tuple(rings), nbytes)
        if key not in self.sums:
            load: dict[int, float] = {}
            for ring in rings:
                seconds = self._ring(ring, nbytes)
                for link in self._links(ring):
                    load[link] = load.get(link, 0.0) + seconds
            self.sums[key] = max(load.values(), default=0.0)
        return self.sums[key]

    def _ring(self, ring: Ring, nbytes: float) -> float:
        key = (ring, nbytes)
        if key not in self.seconds:
            self.seconds[key] = all_reduce_seconds(self.cluster, ring, nbytes)
        return self.seconds[key]

    def _links(self, ring: Ring) -> frozenset[int]:
        if ring not in self.links:
            self.links[ring] = frozenset(
                link for a, b in hops(ring) for link in self.cluster.route(a, b).resources
            )
        return self.links[ring]

    # -- as the paper counts ---------------------------------------------------------------------

    def served(self, reads: Sequence[Read]) -> Array:
        """[x]: through the link of the first node, or, where others take part, their NICs' slowest."""
        lattice = reads[0].layout.lattice
        nbytes = np.zeros(len(lattice.total))
        for layout, operand, width in reads:
            need = layout.needs[operand]
            held = np.where(need.present, volume(need.ranges, {}), 0.0).sum(axis=1)
            # What is not looked at is taken to hold as much as what is.
            seen = np.maximum(need.present.sum(axis=1), 1)
            count = (shares(Read(layout, operand, width), self.everyone) >= 0).sum(axis=1)
            nbytes += server_bytes(1, 1) * held * width * (count / seen)
        node = np.array([d.node for d in self.cluster.devices])[lattice.total - 1]
        rates = np.array([self._rate(int(last)) for last in range(self.cluster.nodes)])
        return np.asarray(nbytes * rates[node])

    def _rate(self, last: int) -> float:
        """Seconds a byte between devices of the nodes up to the last."""
        link, networks = self.cluster.node_links[0], self.cluster.node_networks[: last + 1]
        if last == 0 and link is not None:
            return 1 / link.bandwidth
        return max((1 / n.bandwidth for n in networks if n is not None), default=0.0)


def shares(read: Read, devices: Array) -> Array:
    """[x, d]: which share of a parameter a device holds, as a number; -1 where it holds none.

    Of what was written down, on the devices that are looked at.
    """
    layout, operand = read.layout, read.operand
    need, lattice = layout.needs[operand], layout.lattice
    if layout.placing is None:
        return np.where(need.present, numbered(need.ranges, need.present.shape), -1)
    number = np.zeros((len(lattice.parts), len(devices)), np.int64)
    for a in _axes(need.ranges):
        number = number * lattice.parts[:, a, None] + lattice.coordinate(a, devices)
    held = present(lattice, layout.placing, devices)
    for a in _origin(read):
        held &= lattice.coordinate(a, devices) == 0
    return np.where(held, number, -1)


def _elements(read: Read) -> Array:
    """[x]: of the first device's share."""
    layout = read.layout
    found = np.ones(len(layout.present))
    for r in layout.needs[read.operand].ranges:
        found *= (r.hi - r.lo)[0 if r.at is None else r.at[:, 0]]
    return found


def _axes(ranges: Sequence[Ranges]) -> tuple[int, ...]:
    return tuple(sorted({a for r in ranges for a in r.axes}))


def _origin(read: Read) -> tuple[int, ...]:
    """Axes whose first part alone reads the parameter: what is added once to a sum."""
    return read.layout.summed if read.layout.space.operands[read.operand].added_once else ()


def _sharing(read: Read) -> tuple[object, ...]:
    """What the holders of shares depend on."""
    layout = read.layout
    need = layout.needs[read.operand]
    if layout.placing is None:
        ids = tuple(id(r.at) for r in need.ranges if r.at is not None)
        return id(layout.lattice), ids, id(need.present)
    return id(layout.lattice), _axes(need.ranges), layout.placing, _origin(read)


def _equal(row: Array, devices: Array) -> list[Ring]:
    """Devices with equal numbers, where there are two or more of them."""
    order = np.argsort(row, kind="stable")
    rings = np.split(order, np.flatnonzero(np.diff(row[order])) + 1)
    return [tuple(devices[r].tolist()) for r in rings if len(r) > 1 and row[r[0]] >= 0]
