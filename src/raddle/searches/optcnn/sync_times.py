"""t_S of OptCNN's costs: seconds to synchronise the parameters of a group, in all its configurations.

A group is a set of operators that are split together. There are two models of the synchronisation:

server_times, as in the paper: every holder sends its gradients to a server, which is none of the devices,
and receives the parameters. All of this goes through one link.

all_reduce_times, as raddle runs it: a share is the box of a parameter that a device reads and so holds. The
devices that hold the same share all-reduce it in a ring; all rings run at the same time, and rings on the
same link take turns. Parameters are reduced in buckets, so that a small parameter takes its part of a full
bucket's time.

A layout has the tiles of a member (an operator of the group) on each device in all configurations; its
`needs` are the parts of the operands that they read. Its placement decides which devices have a tile; it is
None if the tiles were computed configuration by configuration, for sampled devices only (layouts.py). These
are all devices or, on large clusters, about 64 of them (transfers.sampled_devices). Its lattice has the
group's configurations, with the coordinates of devices in them (ranges.py).
"""

# x: configuration of a group, d: device, a: axis (position of a letter), u: number of a set of rings

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from raddle.clusters import Cluster
from raddle.costs.collective_groups import hops
from raddle.costs.collectives import all_reduce_seconds, server_bytes
from raddle.plans.plan import DEFAULT_BUCKET
from raddle.searches.optcnn.layouts import MemberLayout, devices_with_tile
from raddle.searches.optcnn.ranges import Ranges, combination_ids, volume

Array = np.ndarray
Ring = tuple[int, ...]  # devices


class ParameterRead(NamedTuple):
    """A parameter that a member of a group reads."""

    layout: MemberLayout  # of the member
    operand: int  # which operand of the member it is
    # Bytes of an element, divided by the number of groups that read the parameter: each counts its part.
    element_bytes: float


class _Rings(NamedTuple):
    """The rings of a parameter in all configurations. Many configurations have the same set of rings."""

    set_of: Array  # [x]: number u of the set
    sets: list[list[Ring]]  # [u]: the rings of the set
    bucket_seconds: Array  # [u]: seconds to all-reduce a full bucket


class SyncTimes:
    """Computes t_S of groups; rings and their times are cached."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.all_devices = np.arange(len(cluster.devices))
        self.rings_cache: dict[tuple[object, ...], _Rings] = {}  # by _holders_key
        # Seconds, by rings or ring and by bytes.
        self.set_cache: dict[tuple[tuple[Ring, ...], float], float] = {}
        self.ring_cache: dict[tuple[Ring, float], float] = {}
        self.links_cache: dict[Ring, frozenset[int]] = {}

    # -- as raddle runs it -----------------------------------------------------------------------

    def all_reduce_times(self, reads: Sequence[ParameterRead]) -> Array:
        """Returns [x]: seconds to all-reduce the parameters.

        Every ring counts the bytes of the first device's share, which is the largest.
        """
        by_holders: dict[tuple[object, ...], tuple[ParameterRead, Array]] = {}
        for read in reads:
            key = _holders_key(read)
            earlier_bytes = by_holders[key][1] if key in by_holders else 0.0
            by_holders[key] = read, read.element_bytes * _elements(read) + earlier_bytes
        total = np.zeros(len(reads[0].layout.present))
        for key, (read, nbytes) in by_holders.items():
            if key not in self.rings_cache:
                self.rings_cache[key] = self._rings(read)
            total += self._bucketed_seconds(self.rings_cache[key], nbytes)
        return total

    def _bucketed_seconds(self, rings: _Rings, nbytes: Array) -> Array:
        """Returns [x]: seconds to all-reduce `nbytes` [x].

        Fewer bytes than a bucket take a proportional part of a bucket's time.
        """
        seconds = rings.bucket_seconds[rings.set_of] * (nbytes / DEFAULT_BUCKET)
        for x in np.flatnonzero((nbytes > DEFAULT_BUCKET) & (seconds > 0)):
            seconds[x] = self._busiest_link_seconds(rings.sets[rings.set_of[x]], float(nbytes[x]))
        return np.asarray(seconds)

    def _rings(self, read: ParameterRead) -> _Rings:
        """Returns the rings that all-reduce a parameter, in all configurations."""
        shares, devices = share_numbers(read, self.all_devices), self.all_devices
        if read.layout.placement is None:
            devices = read.layout.lattice.devices
        set_numbers: dict[bytes, int] = {}
        sets: list[list[Ring]] = []
        set_of = np.zeros(len(shares), np.int64)
        for x, row in enumerate(shares):
            key = row.tobytes()
            if key not in set_numbers:
                set_numbers[key] = len(sets)
                sets.append(_rings_of(row, devices))
            set_of[x] = set_numbers[key]
        bucket_seconds = np.array(
            [self._busiest_link_seconds(rings, DEFAULT_BUCKET) for rings in sets]
        )
        return _Rings(set_of, sets, bucket_seconds)

    def _busiest_link_seconds(self, rings: Sequence[Ring], nbytes: float) -> float:
        """Returns seconds until the busiest link has served all rings that use it."""
        key = (tuple(rings), nbytes)
        if key not in self.set_cache:
            load: dict[int, float] = {}
            for ring in rings:
                seconds = self._ring_seconds(ring, nbytes)
                for link in self._links_of(ring):
                    load[link] = load.get(link, 0.0) + seconds
            self.set_cache[key] = max(load.values(), default=0.0)
        return self.set_cache[key]

    def _ring_seconds(self, ring: Ring, nbytes: float) -> float:
        """Returns the seconds of one ring's all-reduce, as if no other ring used its links."""
        key = (ring, nbytes)
        if key not in self.ring_cache:
            self.ring_cache[key] = all_reduce_seconds(self.cluster, ring, nbytes)
        return self.ring_cache[key]

    def _links_of(self, ring: Ring) -> frozenset[int]:
        """Returns the links between neighbours of a ring; hops gives these pairs of devices."""
        if ring not in self.links_cache:
            self.links_cache[ring] = frozenset(
                link for a, b in hops(ring) for link in self.cluster.route(a, b).resources
            )
        return self.links_cache[ring]

    # -- as in the paper -------------------------------------------------------------------------

    def server_times(self, reads: Sequence[ParameterRead]) -> Array:
        """Returns [x]: seconds to send all gradients to a server and get the parameters, over one link.

        The link is that of the first node or, if more nodes take part, the slowest network card of them.
        """
        lattice = reads[0].layout.lattice
        nbytes = np.zeros(len(lattice.total))
        for layout, operand, element_bytes in reads:
            need = layout.needs[operand]
            elements = np.where(need.present, volume(need.ranges, {}), 0.0).sum(axis=1)
            # Devices outside of the sample count as much as sampled ones.
            sampled = np.maximum(need.present.sum(axis=1), 1)
            count = (
                share_numbers(ParameterRead(layout, operand, element_bytes), self.all_devices) >= 0
            ).sum(axis=1)
            # server_bytes(1, 1): for one device and one byte
            nbytes += server_bytes(1, 1) * elements * element_bytes * (count / sampled)
        # [x]: the node of the last device
        node = np.array([d.node for d in self.cluster.devices])[lattice.total - 1]
        seconds_per_byte = np.array([self._rate(int(last)) for last in range(self.cluster.nodes)])
        return np.asarray(nbytes * seconds_per_byte[node])

    def _rate(self, last: int) -> float:
        """Returns seconds per byte (1 / bytes per second) between devices of the nodes 0 to `last`."""
        link, networks = self.cluster.node_links[0], self.cluster.node_networks[: last + 1]
        if last == 0 and link is not None:
            return 1 / link.rate
        return max((1 / n.rate for n in networks if n is not None), default=0.0)


def share_numbers(read: ParameterRead, devices: Array) -> Array:
    """Returns [x, d]: the number of the share of a parameter that a device holds; -1 if it holds none.

    Layouts without a placement have tiles for the sampled devices only; then d is a sampled device.
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
    """Returns [x]: elements of the first device's share."""
    layout = read.layout
    elements = np.ones(len(layout.present))
    for r in layout.needs[read.operand].ranges:
        elements *= (r.hi - r.lo)[0 if r.index is None else r.index[:, 0]]
    return elements


def _axes(ranges: Sequence[Ranges]) -> tuple[int, ...]:
    """Returns the axes that split any of the dimensions."""
    return tuple(sorted({a for r in ranges for a in r.axes}))


def _first_part_axes(read: ParameterRead) -> tuple[int, ...]:
    """Returns the axes of which only the first part reads the parameter: a bias is added once to a sum."""
    return read.layout.summed if read.layout.space.operands[read.operand].added_once else ()


def _holders_key(read: ParameterRead) -> tuple[object, ...]:
    """Returns a cache key with everything that decides which devices hold which share."""
    layout = read.layout
    need = layout.needs[read.operand]
    if layout.placement is None:
        ids = tuple(id(r.index) for r in need.ranges if r.index is not None)
        return id(layout.lattice), ids, id(need.present)
    return id(layout.lattice), _axes(need.ranges), layout.placement, _first_part_axes(read)


def _rings_of(row: Array, devices: Array) -> list[Ring]:
    """Returns the rings: devices that hold the same share, if there are two or more of them.

    row: [d], the share numbers of the devices in one configuration; -1: the device holds none.
    """
    order = np.argsort(row, kind="stable")
    rings = np.split(order, np.flatnonzero(np.diff(row[order])) + 1)
    return [tuple(devices[r].tolist()) for r in rings if len(r) > 1 and row[r[0]] >= 0]
