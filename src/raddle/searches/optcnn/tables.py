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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from raddle.clusters import Cluster
from raddle.costs.compute import Compute
from raddle.costs.profile import Profile
from raddle.errors import InputError
from raddle.graph.gradients import active_values, gives_gradient, has_backward, trained_parameters
from raddle.graph.graph import Graph, Op
from raddle.program.closing import SMALL
from raddle.program.merging import is_local_statistics
from raddle.searches.configurations import Configuration
from raddle.searches.groups import Group, group_of, groups
from raddle.searches.optcnn.layouts import Atlas, Layout
from raddle.searches.optcnn.partners import partners
from raddle.searches.optcnn.problem import Edge
from raddle.searches.optcnn.ranges import Ranges, volume
from raddle.searches.optcnn.syncing import Read, Syncing
from raddle.searches.optcnn.tiletimes import TileTimes
from raddle.searches.optcnn.transfers import (
    Held,
    Received,
    boxes,
    diagonal,
    held,
    looked_at,
    matrix,
    received,
    sliced,
    wires,
)

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
    found = tuple(groups(graph) if found_groups is None else found_groups)
    builder = _Builder(
        graph, cluster, found, powers=powers, reduction=reduction, bn=bn, profile=profile
    )
    compute = [builder.compute(g) for g in range(len(found))]
    sync = [builder.sync(g, paper=paper) for g in range(len(found))]
    lists = [layouts[0].lattice.configurations for layouts in builder.layouts]
    result = Tables(found, lists, [], builder.edges(), compute, sync)
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


class _Builder:
    """What the costs of all groups share."""

    def __init__(
        self, graph: Graph, cluster: Cluster, found: tuple[Group, ...], *, powers: bool,
        reduction: bool, bn: str, profile: Profile | None,
    ) -> None:  # fmt: skip
        devices = looked_at(cluster, every=reduction)
        self.graph, self.groups, self.bn = graph, found, bn
        self.active = active_values(graph)
        self.atlas = Atlas(devices, len(cluster.devices), powers=powers, reduction=reduction)
        self.wires = wires(cluster, devices)
        self.node = np.repeat(np.arange(len(self.wires.start) - 1), np.diff(self.wires.start))
        compute = Compute(graph, self.active, profile, bn=bn)
        self.times = TileTimes(compute, self.active, cluster, devices)
        self.syncing = Syncing(cluster)
        self.layouts = [self.atlas.layouts(group) for group in found]
        self.of = group_of(found)
        self.layout: dict[str, Layout] = {
            m.op.name: layout
            for group, layouts in zip(found, self.layouts, strict=True)
            for m, layout in zip(group.members, layouts, strict=True)
        }
        self.made_by = {o: (op, k) for op in graph.ops for k, o in enumerate(op.outputs)}
        self.place = {
            (g, output): (k, n)
            for g, group in enumerate(found)
            for k, m in enumerate(group.members)
            for n, output in enumerate(m.op.outputs)
        }
        self.readers = self._parameter_readers()
        self.known: dict[tuple[object, ...], Array] = {}
        self.owned: dict[tuple[object, ...], Held] = {}

    # -- nodes -----------------------------------------------------------------------------------

    def compute(self, g: int) -> Array:
        """t_C; the same for groups that are alike."""
        alike = [
            (self.times.alike(m.op), *(self.place.get((g, name)) for name in m.op.inputs))
            for m in self.groups[g].members
        ]
        key = ("compute", id(self.layouts[g]), *alike)
        if key not in self.known:
            self.known[key] = self._compute(g)
        return self.known[key]

    def _compute(self, g: int) -> Array:
        total: Array | float = 0.0
        more: Array | float = 0.0
        for m, layout in zip(self.groups[g].members, self.layouts[g], strict=True):
            total = total + self.times.seconds(m.op, layout)
            if m.op.space.combine and layout.partial and not is_local_statistics(m.op, self.bn):
                more = more + self._merged(m.op, layout, self._fetching(g, m.op, layout))
            for operand, name in enumerate(m.op.inputs):
                if (g, name) in self.place and not self._is_there(g, layout, operand, name):
                    more = more + self._moved(m.op, operand, *self.made_by[name], between=False)
        return np.asarray(np.asarray(total).max(axis=1) + more)

    def _is_there(self, g: int, layout: Layout, operand: int, name: str) -> bool:
        """Whether a member finds what it reads of another on its own device, as most do."""
        k, output = self.place[g, name]
        own, need = self.layouts[g][k], layout.needs[operand]
        return (
            own.outputs[output] == need.ranges
            and own.present is need.present
            and not (own.space.product and own.summed)
        )

    def _fetching(self, g: int, op: Op, layout: Layout) -> Array:
        """[x, d]: the devices of the group that read what an operator gives; without any, its own."""
        found = [
            reader.present
            for m, reader in zip(self.groups[g].members, self.layouts[g], strict=True)
            if set(m.op.inputs) & set(op.outputs)
        ]
        return np.logical_or.reduce(found) if found else layout.present

    def _merged(self, op: Op, layout: Layout, readers: Array) -> Array:
        """What it takes to merge partial sums, and for their gradients to come back (merging.py).

        Large results are divided among those that have parts of them. Of small ones, every device that
        reads any gets all parts, so that messages are many.
        """
        found = partners(layout, self.node)
        nbytes: Array | float = 0.0  # of a part
        for name, output in zip(op.outputs, layout.outputs, strict=True):
            width = self.graph.values[name].dtype.itemsize
            nbytes = nbytes + volume(output, self.times.volumes) * width
        small = nbytes <= SMALL
        near = np.where(small, found.parts_near - found.counts, found.near - 1)
        far = np.where(small, found.parts - found.parts_near, found.number - found.near)
        here = np.where(small, readers, layout.present) & (found.number > 1)
        tensors = 2 if op.space.combine == "lse" else 1  # a log-sum-exp travels as a pair
        each = tensors * nbytes / np.where(small, 1, found.number)
        inside, outside = (
            Received(np.where(here, n, 0.0), np.where(here, n * each, 0.0)) for n in (near, far)
        )
        times = 2 if has_backward(op, self.active) else 1
        times += not _stays_divided(op) and not np.all(small)  # the result is gathered, too
        return times * received(self.wires, inside, outside)

    def _parameter_readers(self) -> dict[str, int]:
        """By parameter, how many groups read it."""
        found: dict[str, set[int]] = {}
        for op in self.graph.ops:
            if op.name in self.of:
                for name in trained_parameters(self.graph, op, self.active):
                    found.setdefault(name, set()).add(self.of[op.name])
        return {name: len(own) for name, own in found.items()}

    def sync(self, g: int, *, paper: bool) -> Array:
        """t_S."""
        reads: dict[tuple[str, tuple[Ranges, ...]], Read] = {}
        for m, layout in zip(self.groups[g].members, self.layouts[g], strict=True):
            for operand, name in enumerate(m.op.inputs):
                if name in self.readers:
                    width = self.graph.values[name].dtype.itemsize / self.readers[name]
                    key = (name, layout.needs[operand].ranges)
                    reads[key] = Read(layout, operand, width)
        if not reads:
            return np.zeros(len(self.layouts[g][0].present))
        each = list(reads.values())
        alike = ("sync", *((id(layout), operand, width) for layout, operand, width in each))
        if alike not in self.known:
            count = self.syncing.served if paper else self.syncing.all_reduced
            self.known[alike] = count(each)
        return self.known[alike]

    # -- edges -----------------------------------------------------------------------------------

    def edges(self) -> list[Edge]:
        """t_X; readers of one group that need the same of a value fetch it once."""
        found: dict[tuple[object, ...], Edge] = {}
        for op in self.graph.ops:
            if op.name not in self.of:
                continue
            for operand, name in enumerate(op.inputs):
                maker, output = self.made_by.get(name, (op, 0))
                g, h = self.of.get(maker.name), self.of[op.name]
                if g is not None and g != h:
                    cost = self._moved(op, operand, maker, output, between=True)
                    found.setdefault((name, h, id(cost)), Edge(g, h, cost))
        return list(found.values())

    def _moved(self, op: Op, operand: int, maker: Op, output: int, *, between: bool) -> Array:
        """Seconds to bring what an operator reads: by two configurations, or of one group, by one."""
        need, name = self.layout[op.name].needs[operand], maker.outputs[output]
        width = self.graph.values[name].dtype.itemsize
        twice = 2 if gives_gradient(op, name, self.active) else 1
        wanted = (tuple(map(id, need.ranges)), id(need.present))
        own = self._held(maker, output)
        key = ("move", id(own), wanted, width, twice, between)
        if key not in self.known:
            bring = matrix if between else diagonal
            to = boxes(need.ranges, need.present)
            self.known[key] = twice * bring(self.wires, own, to, width)
        return self.known[key]

    def _held(self, op: Op, output: int) -> Held:
        """Where an output is, after partial sums are merged."""
        layout = self.layout[op.name]
        ranges, present = layout.outputs[output], layout.present
        merged = bool(layout.summed) and _stays_divided(op)
        key = (tuple(map(id, ranges)), id(present), id(layout) if merged else None)
        if key not in self.owned:
            own = boxes(ranges, present)
            if merged:
                found = partners(layout, self.node)
                own = sliced(own, found.rank, found.number)
            self.owned[key] = held(self.wires, own)
        return self.owned[key]


def _stays_divided(op: Op) -> bool:
    """Whether what is merged is divided among those that merge it: see configurations.py."""
    return op.space.product and bool(op.space.outputs[0])
