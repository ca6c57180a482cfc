"""The cost tables of OptCNN: seconds of every group in every configuration, and of every pair of groups.

OptCNN (Jia et al., arXiv 1802.04924), section 4, with its names:

    t_C   compute: the slowest device's forward and backward, and the merging of partial sums
    t_S   synchronisation of the parameters of a group
    t_X   transfer of a value from the devices that made it to those that read it, and of its gradient back

Differs from the paper: a node is a group of operators (groups.py), and transfers between members of a group
count as t_C. A group may use any number of devices; they are always the first ones, in row-major order.
With `paper`, t_S is that of a parameter server; else it is an all-reduce, of which only the fraction
`exposed` counts: the remainder is hidden behind the backward. If several groups read a parameter, each
counts an equal part of its t_S. Batch-independent operators (grids.py) cost nothing. On clusters of more
than 64 devices, the times of a sample of about 64 devices are computed (transfers.sampled_devices); with
`reduction`, those of all devices.
"""

# g, h: indices of groups, x: index of a configuration, k: index of a member of a group, d: sampled device.
# Layout: the tiles of a member (an operator of a group) on each d in each x; its `needs` are the parts of
# the operands that they read, its `present` [x, d] whether there is a tile (layouts.py).

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
from raddle.searches.optcnn.communication import CommunicationTimes
from raddle.searches.optcnn.layouts import LayoutBuilder, MemberLayout
from raddle.searches.optcnn.problem import Edge
from raddle.searches.optcnn.ranges import Ranges
from raddle.searches.optcnn.sync_times import ParameterRead, SyncTimes
from raddle.searches.optcnn.tile_times import TileTimes
from raddle.searches.optcnn.transfers import sampled_devices

Array = np.ndarray
Allowed = Callable[[Group, Configuration], bool]  # whether a group may have a configuration


@dataclass(frozen=True)
class Tables:
    """The problem to solve (nodes and edges, see problem.py), and the two parts of the nodes' costs.

    Lists have one entry for each group; its array has the seconds of each configuration.
    """

    groups: tuple[Group, ...]
    configurations: list[list[Configuration]]
    nodes: list[Array]  # t_C + exposed share * t_S
    edges: list[Edge]  # t_X
    compute: list[Array]  # t_C
    sync: list[Array]  # t_S

    def with_exposed(self, exposed: float) -> Tables:
        """Returns the same tables for another exposed fraction of t_S; the other arrays are shared."""
        nodes = [c + exposed * s for c, s in zip(self.compute, self.sync, strict=True)]
        return replace(self, nodes=nodes)


def build_tables(
    graph: Graph,
    cluster: Cluster,
    *,
    paper: bool = False,
    exposed: float = 1.0,
    powers_of_two: bool = True,
    reduction: bool = False,
    bn: str = "local",
    allowed: Allowed | None = None,
    profile: Profile | None = None,
    groups: Sequence[Group] | None = None,
    look: Callable[[], None] = lambda: None,
) -> Tables:
    """Returns the cost tables of a graph on a cluster.

    paper: t_S of a parameter server, as in the paper. exposed: the fraction of t_S that counts.
    powers_of_two, reduction: see Settings. allowed: which configurations a group may have; None: all.
    bn, profile: see Settings. groups: the groups of the graph; None: they are computed. look: is called for
    every group and edge; a search looks at its clock there.
    """
    all_groups = tuple(find_groups(graph) if groups is None else groups)
    active, devices = active_values(graph), sampled_devices(cluster, all_devices=reduction)
    builder = LayoutBuilder(
        devices, len(cluster.devices), powers_of_two=powers_of_two, reduction=reduction
    )
    layouts = []
    for group in all_groups:
        look()
        layouts.append(builder.layouts(group))
    tile_times = TileTimes(ComputeCosts(graph, active, profile, bn=bn), active, cluster, devices)
    communication = CommunicationTimes(
        graph,
        active,
        cluster,
        devices,
        _layout_of_operator(all_groups, layouts),
        tile_times.volumes,
    )
    compute_times = ComputeTimes(all_groups, layouts, tile_times, communication, bn=bn)
    compute = []
    for g in range(len(all_groups)):
        look()
        compute.append(compute_times.seconds(g))
    sync_times = SyncTimes(cluster)
    seconds_of = sync_times.server_times if paper else sync_times.all_reduce_times
    sync = _sync_seconds(graph, active, all_groups, layouts, seconds_of)
    look()
    configurations = [group_layouts[0].lattice.configurations for group_layouts in layouts]
    result = Tables(
        all_groups,
        configurations,
        [],
        _edges(graph, all_groups, communication, look),
        compute,
        sync,
    )
    if allowed is not None:
        result = _only_allowed(result, allowed)
    return result.with_exposed(1.0 if paper else exposed)


def _only_allowed(tables: Tables, allowed: Allowed) -> Tables:
    """Returns the tables without the configurations that are not allowed."""
    kept = [
        np.array([x for x, c in enumerate(configurations) if allowed(group, c)], np.int64)
        for group, configurations in zip(tables.groups, tables.configurations, strict=True)
    ]
    for group, indices in zip(tables.groups, kept, strict=True):
        if not len(indices):
            raise InputError(
                f"no configuration of '{group.name}' is allowed: change or remove its pin."
            )
    shared: dict[tuple[int, bytes, bytes], Array] = {}  # edges that share a table share it again
    edges = []
    for g, h, cost in tables.edges:
        key = (id(cost), kept[g].tobytes(), kept[h].tobytes())
        if key not in shared:
            shared[key] = cost[np.ix_(kept[g], kept[h])]
        edges.append(Edge(g, h, shared[key]))
    return Tables(
        tables.groups,
        [
            [group_configurations[x] for x in k]
            for group_configurations, k in zip(tables.configurations, kept, strict=True)
        ],
        [],
        edges,
        [c[k] for c, k in zip(tables.compute, kept, strict=True)],
        [s[k] for s, k in zip(tables.sync, kept, strict=True)],
    )


def _layout_of_operator(
    groups: Sequence[Group], layouts: Sequence[Sequence[MemberLayout]]
) -> dict[str, MemberLayout]:
    """Returns the layout of each operator, by name."""
    return {
        m.op.name: layout
        for group, group_layouts in zip(groups, layouts, strict=True)
        for m, layout in zip(group.members, group_layouts, strict=True)
    }


class ComputeTimes:
    """Computes t_C of groups: compute, merging of partial sums, and transfers inside of a group."""

    def __init__(
        self, groups: Sequence[Group], layouts: Sequence[tuple[MemberLayout, ...]], tile_times: TileTimes,
        communication: CommunicationTimes, *, bn: str,
    ) -> None:  # fmt: skip
        self.groups, self.layouts, self.tile_times, self.communication, self.bn = (
            groups, layouts, tile_times, communication, bn,
        )  # fmt: skip
        self.position_of = {  # (group, value) -> (member that makes it, which of its outputs)
            (g, output): (k, n)
            for g, group in enumerate(groups)
            for k, m in enumerate(group.members)
            for n, output in enumerate(m.op.outputs)
        }
        self.cache: dict[tuple[object, ...], Array] = {}

    def seconds(self, g: int) -> Array:
        """Returns [x]: t_C of a group; the same array for groups of equal structure and costs."""
        member_keys = [
            (
                self.tile_times.cost_key(m.op),
                # which member of the group makes each operand; None: none of them
                *(self.position_of.get((g, name)) for name in m.op.inputs),
            )
            for m in self.groups[g].members
        ]
        key = (id(self.layouts[g]), *member_keys)
        if key not in self.cache:
            self.cache[key] = self._compute(g)
        return self.cache[key]

    def _compute(self, g: int) -> Array:
        """Returns [x]: the slowest device's compute time, plus merges and transfers inside of the group."""
        total: Array | float = 0.0  # [x, d]
        exchange_seconds: Array | float = 0.0  # [x]: merges and transfers
        for m, layout in zip(self.groups[g].members, self.layouts[g], strict=True):
            total = total + self.tile_times.seconds(m.op, layout)
            if (
                m.op.space.combine  # how partial results are combined; "": the operator has none
                and layout.has_partial_sums
                and not is_local_statistics(m.op, self.bn)  # batch norm of each device's samples
            ):
                exchange_seconds = exchange_seconds + self.communication.merge_seconds(
                    m.op, layout, self._reading_devices(g, m.op, layout)
                )
            for operand, name in enumerate(m.op.inputs):
                if (g, name) in self.position_of and not self._is_local(g, layout, operand, name):
                    exchange_seconds = exchange_seconds + self.communication.transfer_seconds(
                        m.op, operand, *self._producer(g, name), two_groups=False
                    )
        return np.asarray(np.asarray(total).max(axis=1) + exchange_seconds)

    def _is_local(self, g: int, layout: MemberLayout, operand: int, name: str) -> bool:
        """Returns whether the reading device always has an operand that another member makes."""
        k, output = self.position_of[g, name]
        producer, need = self.layouts[g][k], layout.needs[operand]
        return (
            producer.outputs[output] == need.ranges
            and producer.present is need.present
            # merged partial sums stay in slices on several devices
            and not (producer.space.is_product and producer.summed)
        )

    def _reading_devices(self, g: int, op: Op, layout: MemberLayout) -> Array:
        """Returns [x, d]: whether a device reads the operator's result inside of the group.

        If no member reads the result: whether the device has a tile of the operator.
        """
        present = [
            reader.present
            for m, reader in zip(self.groups[g].members, self.layouts[g], strict=True)
            if set(m.op.inputs) & set(op.outputs)
        ]
        return np.logical_or.reduce(present) if present else layout.present

    def _producer(self, g: int, name: str) -> tuple[Op, int]:
        """Returns the operator of a group that makes a value, and which of its outputs the value is."""
        k, output = self.position_of[g, name]
        return self.groups[g].members[k].op, output


def _sync_seconds(
    graph: Graph, active: frozenset[str], groups: Sequence[Group],
    layouts: Sequence[tuple[MemberLayout, ...]], seconds_of: Callable[[list[ParameterRead]], Array],
) -> list[Array]:  # fmt: skip
    """Returns for each group t_S of its configurations; groups with equal reads share the array.

    seconds_of: gives t_S of a list of parameter reads. active: names of the values that need a gradient.
    """
    readers = _parameter_readers(graph, active, group_indices(groups))
    cache: dict[tuple[object, ...], Array] = {}
    seconds = []
    for group, group_layouts in zip(groups, layouts, strict=True):
        reads: dict[tuple[str, tuple[Ranges, ...]], ParameterRead] = {}
        for m, layout in zip(group.members, group_layouts, strict=True):
            for operand, name in enumerate(m.op.inputs):
                if name in readers:
                    element_bytes = graph.values[name].dtype.itemsize / readers[name]
                    reads[name, layout.needs[operand].ranges] = ParameterRead(
                        layout, operand, element_bytes
                    )
        group_reads = list(reads.values())
        key = tuple(
            (id(layout), operand, element_bytes) for layout, operand, element_bytes in group_reads
        )
        if key and key not in cache:
            cache[key] = seconds_of(group_reads)
        seconds.append(cache[key] if key else np.zeros(len(group_layouts[0].present)))
    return seconds


def _parameter_readers(
    graph: Graph, active: frozenset[str], group_of: Mapping[str, int]
) -> dict[str, int]:
    """Returns for each trained parameter how many groups read it."""
    readers: dict[str, set[int]] = {}
    for op in graph.ops:
        if op.name in group_of:
            for name in trained_parameters(graph, op, active):
                readers.setdefault(name, set()).add(group_of[op.name])
    return {name: len(reading_groups) for name, reading_groups in readers.items()}


def _edges(
    graph: Graph,
    groups: Sequence[Group],
    communication: CommunicationTimes,
    look: Callable[[], None],
) -> list[Edge]:
    """Returns t_X as edges between groups; members that need the same part of a value fetch it once."""
    group_of = group_indices(groups)
    made_by = {o: (op, k) for op in graph.ops for k, o in enumerate(op.outputs)}
    edges: dict[tuple[object, ...], Edge] = {}
    for op in graph.ops:
        if op.name not in group_of:
            continue
        look()
        for operand, name in enumerate(op.inputs):
            # A value that no operator makes counts as made by the reader itself: it has no edge.
            producer, output = made_by.get(name, (op, 0))
            g, h = group_of.get(producer.name), group_of[op.name]
            if g is not None and g != h:
                cost = communication.transfer_seconds(
                    op, operand, producer, output, two_groups=True
                )
                edges.setdefault((name, h, id(cost)), Edge(g, h, cost))
    return list(edges.values())
