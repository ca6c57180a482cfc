"""What OptCNN's search adds up: seconds of every group under every configuration, and of every pair.

OptCNN (Jia et al., arXiv 1802.04924), section 4, with its names:

    t_C   computing: the device that takes longest, forward and backward, and the merging of partial sums
    t_S   synchronising the parameters of a group
    t_X   moving a value from the devices that made it to those that read it, and its gradient back

Differs from the paper: a node is a group of operators (groups.py), and moves between members of a group
count as t_C. Any number of devices up to all is allowed; they are always the first ones, row by row. With
`paper`, t_S is a server's; else it is an all-reduce, of which the share `overlap` is exposed. A parameter
that several groups read is divided among them; what no group reads (placing.py) costs nothing. On clusters
of more than 64 devices, the longest time is that of a sample: nodes with about 64 devices, the first and
the last among them (transfers.looked_at). With `reduction`, all devices are looked at.
"""

# g: group, x: configuration

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from raddle.clusters import Cluster
from raddle.costs.compute import ComputeCosts
from raddle.costs.profile import Profile
from raddle.errors import InputError
from raddle.graph.gradients import active_values, trained_parameters
from raddle.graph.graph import Graph, Op
from raddle.program.merges import is_local_statistics
from raddle.searches.configurations import Configuration
from raddle.searches.groups import Group, find_groups, group_indices
from raddle.searches.optcnn.communication import Moves
from raddle.searches.optcnn.layouts import Atlas, Layout
from raddle.searches.optcnn.problem import Edge
from raddle.searches.optcnn.ranges import Ranges
from raddle.searches.optcnn.sync_times import Read, Syncing
from raddle.searches.optcnn.tile_times import TileTimes
from raddle.searches.optcnn.transfers import looked_at

Array = np.ndarray
Allowed = Callable[[Group, Configuration], bool]


@dataclass(frozen=True)
class Tables:
    """The search's problem, and the two parts of the nodes' costs."""

    groups: tuple[Group, ...]
    configurations: list[list[Configuration]]  # by group
    nodes: list[Array]  # t_C and the exposed part of t_S
    edges: list[Edge]  # t_X
    compute: list[Array]  # t_C
    sync: list[Array]  # all of t_S

    def overlapped(self, overlap: float) -> Tables:
        """With another part of t_S exposed; all else is shared."""
        nodes = [c + overlap * s for c, s in zip(self.compute, self.sync, strict=True)]
        return replace(self, nodes=nodes)


def tables(
    graph: Graph,
    cluster: Cluster,
    *,
    paper: bool = False,
    overlap: float = 1.0,
    powers: bool = True,
    reduction: bool = False,
    bn: str = "local",
    allowed: Allowed | None = None,
    profile: Profile | None = None,
    found_groups: Sequence[Group] | None = None,
) -> Tables:
    """The costs of all groups; `allowed` says which configurations a group may have."""
    found = tuple(find_groups(graph) if found_groups is None else found_groups)
    active, devices = active_values(graph), looked_at(cluster, every=reduction)
    atlas = Atlas(devices, len(cluster.devices), powers=powers, reduction=reduction)
    layouts = [atlas.layouts(group) for group in found]
    times = TileTimes(ComputeCosts(graph, active, profile, bn=bn), active, cluster, devices)
    moves = Moves(graph, active, cluster, devices, _by_operator(found, layouts), times.volumes)
    computing = Computing(found, layouts, times, moves, bn=bn)
    compute = [computing.seconds(g) for g in range(len(found))]
    syncing = Syncing(cluster)
    count = syncing.served if paper else syncing.all_reduced
    sync = _synchronising(graph, active, found, layouts, count)
    lists = [own[0].lattice.configurations for own in layouts]
    result = Tables(found, lists, [], _edges(graph, found, moves), compute, sync)
    if allowed is not None:
        result = _pinned(result, allowed)
    return result.overlapped(1.0 if paper else overlap)


def _pinned(tables: Tables, allowed: Allowed) -> Tables:
    keep = [
        np.array([x for x, c in enumerate(own) if allowed(group, c)], np.int64)
        for group, own in zip(tables.groups, tables.configurations, strict=True)
    ]
    for group, own in zip(tables.groups, keep, strict=True):
        if not len(own):
            raise InputError(f"no configuration of '{group.name}' is allowed: loosen what pins it.")
    cut: dict[tuple[int, bytes, bytes], Array] = {}  # tables that were shared stay so
    edges = []
    for g, h, cost in tables.edges:
        key = (id(cost), keep[g].tobytes(), keep[h].tobytes())
        if key not in cut:
            cut[key] = cost[np.ix_(keep[g], keep[h])]
        edges.append(Edge(g, h, cut[key]))
    return Tables(
        tables.groups,
        [[own[x] for x in k] for own, k in zip(tables.configurations, keep, strict=True)],
        [],
        edges,
        [c[k] for c, k in zip(tables.compute, keep, strict=True)],
        [s[k] for s, k in zip(tables.sync, keep, strict=True)],
    )


def _by_operator(found: Sequence[Group], layouts: Sequence[Sequence[Layout]]) -> dict[str, Layout]:
    return {
        m.op.name: layout
        for group, own in zip(found, layouts, strict=True)
        for m, layout in zip(group.members, own, strict=True)
    }


class Computing:
    """t_C of groups, with what moves between members of a group."""

    def __init__(
        self, found: Sequence[Group], layouts: Sequence[tuple[Layout, ...]], times: TileTimes,
        moves: Moves, *, bn: str,
    ) -> None:  # fmt: skip
        self.groups, self.layouts, self.times, self.moves, self.bn = (
            found, layouts, times, moves, bn,
        )  # fmt: skip
        self.place = {
            (g, output): (k, n)
            for g, group in enumerate(found)
            for k, m in enumerate(group.members)
            for n, output in enumerate(m.op.outputs)
        }
        self.known: dict[tuple[object, ...], Array] = {}

    def seconds(self, g: int) -> Array:
        """t_C; the same for groups that are alike."""
        alike = [
            (self.times.alike(m.op), *(self.place.get((g, name)) for name in m.op.inputs))
            for m in self.groups[g].members
        ]
        key = (id(self.layouts[g]), *alike)
        if key not in self.known:
            self.known[key] = self._compute(g)
        return self.known[key]

    def _compute(self, g: int) -> Array:
        total: Array | float = 0.0
        more: Array | float = 0.0
        for m, layout in zip(self.groups[g].members, self.layouts[g], strict=True):
            total = total + self.times.seconds(m.op, layout)
            if m.op.space.combine and layout.partial and not is_local_statistics(m.op, self.bn):
                more = more + self.moves.merged(m.op, layout, self._fetching(g, m.op, layout))
            for operand, name in enumerate(m.op.inputs):
                if (g, name) in self.place and not self._is_there(g, layout, operand, name):
                    more = more + self.moves.moved(
                        m.op, operand, *self._maker(g, name), between=False
                    )
        return np.asarray(np.asarray(total).max(axis=1) + more)

    def _is_there(self, g: int, layout: Layout, operand: int, name: str) -> bool:
        """Whether a member finds what it reads of another on its own device, as most do."""
        k, output = self.place[g, name]
        own, need = self.layouts[g][k], layout.needs[operand]
        return (
            own.outputs[output] == need.ranges
            and own.present is need.present
            and not (own.space.is_product and own.summed)
        )

    def _fetching(self, g: int, op: Op, layout: Layout) -> Array:
        """[x, d]: the devices of the group that read what an operator gives; without any, its own."""
        found = [
            reader.present
            for m, reader in zip(self.groups[g].members, self.layouts[g], strict=True)
            if set(m.op.inputs) & set(op.outputs)
        ]
        return np.logical_or.reduce(found) if found else layout.present

    def _maker(self, g: int, name: str) -> tuple[Op, int]:
        """The member of a group that makes a value, and which of its outputs that is."""
        k, output = self.place[g, name]
        return self.groups[g].members[k].op, output


def _synchronising(
    graph: Graph, active: frozenset[str], found: Sequence[Group],
    layouts: Sequence[tuple[Layout, ...]], count: Callable[[list[Read]], Array],
) -> list[Array]:  # fmt: skip
    """t_S of groups; the same for those that are alike."""
    readers = _parameter_readers(graph, active, group_indices(found))
    known: dict[tuple[object, ...], Array] = {}
    seconds = []
    for group, own in zip(found, layouts, strict=True):
        reads: dict[tuple[str, tuple[Ranges, ...]], Read] = {}
        for m, layout in zip(group.members, own, strict=True):
            for operand, name in enumerate(m.op.inputs):
                if name in readers:
                    width = graph.values[name].dtype.itemsize / readers[name]
                    reads[name, layout.needs[operand].ranges] = Read(layout, operand, width)
        each = list(reads.values())
        alike = tuple((id(layout), operand, width) for layout, operand, width in each)
        if alike and alike not in known:
            known[alike] = count(each)
        seconds.append(known[alike] if alike else np.zeros(len(own[0].present)))
    return seconds


def _parameter_readers(
    graph: Graph, active: frozenset[str], of: Mapping[str, int]
) -> dict[str, int]:
    """By parameter, how many groups read it."""
    found: dict[str, set[int]] = {}
    for op in graph.ops:
        if op.name in of:
            for name in trained_parameters(graph, op, active):
                found.setdefault(name, set()).add(of[op.name])
    return {name: len(own) for name, own in found.items()}


def _edges(graph: Graph, groups: Sequence[Group], moves: Moves) -> list[Edge]:
    """t_X; readers of one group that need the same of a value fetch it once."""
    of = group_indices(groups)
    made_by = {o: (op, k) for op in graph.ops for k, o in enumerate(op.outputs)}
    found: dict[tuple[object, ...], Edge] = {}
    for op in graph.ops:
        if op.name not in of:
            continue
        for operand, name in enumerate(op.inputs):
            maker, output = made_by.get(name, (op, 0))
            g, h = of.get(maker.name), of[op.name]
            if g is not None and g != h:
                cost = moves.moved(op, operand, maker, output, between=True)
                found.setdefault((name, h, id(cost)), Edge(g, h, cost))
    return list(found.values())
