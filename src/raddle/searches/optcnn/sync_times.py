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
from raddle.plans.plan import DEFAULT_BUCKET
from raddle.searches.optcnn.layouts import MemberLayout, devices_with_tile
from raddle.searches.optcnn.ranges import Ranges, combination_ids, volume

Array = np.ndarray
Ring = tuple[int, ...]


class ParameterRead(NamedTuple):
    """A parameter that a member of a group reads."""

    layout: MemberLayout
    operand: int
    width: float  # bytes of an element, divided by the groups that read it


class _Rings(NamedTuple):
    set_of: Array  # [x]: u
    sets: list[list[Ring]]  # [u]
    bucket: Array  # [u]: seconds of a full bucket


class SyncTimes:
    """Remembers rings and what they take."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.all_devices = np.arange(len(cluster.devices))
        self.rings: dict[tuple[object, ...], _Rings] = {}
        self.sums: dict[tuple[tuple[Ring, ...], float], float] = {}
        self.seconds: dict[tuple[Ring, float], float] = {}
        self.links: dict[Ring, frozenset[int]] = {}

    # -- as it is run ----------------------------------------------------------------------------

    def all_reduce_times(self, reads: Sequence[ParameterRead]) -> Array:
        """[x]: every ring is taken to carry as much as the first device's, which has the largest share."""
        by_holders: dict[tuple[object, ...], tuple[ParameterRead, Array]] = {}
        for read in reads:
            key = _holders_key(read)
            more = by_holders[key][1] if key in by_holders else 0.0
            by_holders[key] = read, read.width * _elements(read) + more
        total = np.zeros(len(reads[0].layout.present))
        for key, (read, nbytes) in by_holders.items():
            if key not in self.rings:
                self.rings[key] = self._rings(read)
            total += self._bucketed_seconds(self.rings[key], nbytes)
        return total

    def _bucketed_seconds(self, rings: _Rings, nbytes: Array) -> Array:
        seconds = rings.bucket[rings.set_of] * (nbytes / DEFAULT_BUCKET)
        for x in np.flatnonzero((nbytes > DEFAULT_BUCKET) & (seconds > 0)):
            seconds[x] = self._busiest_link_seconds(rings.sets[rings.set_of[x]], float(nbytes[x]))
        return np.asarray(seconds)

    def _rings(self, read: ParameterRead) -> _Rings:
        holders, devices = share_numbers(read, self.all_devices), self.all_devices
        if read.layout.placement is None:
            devices = read.layout.lattice.devices
        set_numbers: dict[bytes, int] = {}
        sets: list[list[Ring]] = []
        set_of = np.zeros(len(holders), np.int64)
        for x, row in enumerate(holders):
            key = row.tobytes()
            if key not in set_numbers:
                set_numbers[key] = len(sets)
                sets.append(_rings_of(row, devices))
            set_of[x] = set_numbers[key]
        bucket = np.array([self._busiest_link_seconds(rings, DEFAULT_BUCKET) for rings in sets])
        return _Rings(set_of, sets, bucket)

    def _busiest_link_seconds(self, rings: Sequence[Ring], nbytes: float) -> float:
        """Of the links, the time that the rings through it take."""
        key = (tuple(rings), nbytes)
        if key not in self.sums:
            load: dict[int, float] = {}
            for ring in rings:
                seconds = self._ring_seconds(ring, nbytes)
                for link in self._links_of(ring):
                    load[link] = load.get(link, 0.0) + seconds
            self.sums[key] = max(load.values(), default=0.0)
        return self.sums[key]

    def _ring_seconds(self, ring: Ring, nbytes: float) -> float:
        key = (ring, nbytes)
        if key not in self.seconds:
            self.seconds[key] = all_reduce_seconds(self.cluster, ring, nbytes)
        return self.seconds[key]

    def _links_of(self, ring: Ring) -> frozenset[int]:
        if ring not in self.links:
            self.links[ring] = frozenset(
                link for a, b in hops(ring) for link in self.cluster.route(a, b).resources
            )
        return self.links[ring]

    # -- as the paper counts ---------------------------------------------------------------------

    def server_times(self, reads: Sequence[ParameterRead]) -> Array:
        """[x]: through the link of the first node, or, where others take part, their NICs' slowest."""
        lattice = reads[0].layout.lattice
        nbytes = np.zeros(len(lattice.total))
        for layout, operand, width in reads:
            need = layout.needs[operand]
            elements = np.where(need.present, volume(need.ranges, {}), 0.0).sum(axis=1)
            # What is not looked at is taken to hold as much as what is.
            sampled = np.maximum(need.present.sum(axis=1), 1)
            count = (
                share_numbers(ParameterRead(layout, operand, width), self.all_devices) >= 0
            ).sum(axis=1)
            nbytes += server_bytes(1, 1) * elements * width * (count / sampled)
        node = np.array([d.node for d in self.cluster.devices])[lattice.total - 1]
        rates = np.array([self._rate(int(last)) for last in range(self.cluster.nodes)])
        return np.asarray(nbytes * rates[node])

    def _rate(self, last: int) -> float:
        """Seconds a byte between devices of the nodes up to the last."""
        link, networks = self.cluster.node_links[0], self.cluster.node_networks[: last + 1]
        if last == 0 and link is not None:
            return 1 / link.bandwidth
        return max((1 / n.bandwidth for n in networks if n is not None), default=0.0)


def share_numbers(read: ParameterRead, devices: Array) -> Array:
    """[x, d]: which share of a parameter a device holds, as a number; -1 where it holds none.

    Of what was written down, on the devices that are looked at.
    """
    layout, operand = read.layout, read.operand
    need, lattice = layout.needs[operand], layout.lattice
    if layout.placement is None:
        return np.where(need.present, combination_ids(need.ranges, need.present.shape), -1)
    number = np.zeros((len(lattice.parts), len(devices)), np.int64)
    for a in _axes(need.ranges):
        number = number * lattice.parts[:, a, None] + lattice.coordinate(a, devices)
    has_share = devices_with_tile(lattice, layout.placement, devices)
    for a in _first_part_axes(read):
        has_share &= lattice.coordinate(a, devices) == 0
    return np.where(has_share, number, -1)


def _elements(read: ParameterRead) -> Array:
    """[x]: of the first device's share."""
    layout = read.layout
    elements = np.ones(len(layout.present))
    for r in layout.needs[read.operand].ranges:
        elements *= (r.hi - r.lo)[0 if r.index is None else r.index[:, 0]]
    return elements


def _axes(ranges: Sequence[Ranges]) -> tuple[int, ...]:
    return tuple(sorted({a for r in ranges for a in r.axes}))


def _first_part_axes(read: ParameterRead) -> tuple[int, ...]:
    """Axes whose first part alone reads the parameter: what is added once to a sum."""
    return read.layout.summed if read.layout.space.operands[read.operand].added_once else ()


def _holders_key(read: ParameterRead) -> tuple[object, ...]:
    """What the holders of shares depend on."""
    layout = read.layout
    need = layout.needs[read.operand]
    if layout.placement is None:
        ids = tuple(id(r.index) for r in need.ranges if r.index is not None)
        return id(layout.lattice), ids, id(need.present)
    return id(layout.lattice), _axes(need.ranges), layout.placement, _first_part_axes(read)


def _rings_of(row: Array, devices: Array) -> list[Ring]:
    """Devices with equal numbers, where there are two or more of them."""
    order = np.argsort(row, kind="stable")
    rings = np.split(order, np.flatnonzero(np.diff(row[order])) + 1)
    return [tuple(devices[r].tolist()) for r in rings if len(r) > 1 and row[r[0]] >= 0]
