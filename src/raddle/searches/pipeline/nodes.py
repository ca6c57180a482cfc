"""A captured graph as the layers that a pipeline is cut between, with what a micro-batch takes and holds.

A layer is an operator with weights together with all that follows from it alone (statistics, activations,
views): a cut between those would never carry less. What depends on no sample goes with the earliest of the
layers that read it. Layers are numbered so that each reads earlier ones alone: they cannot form a cycle.
"""

# v: a layer (a node of the partitioner's graph)

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from raddle.clusters import Cluster, Device
from raddle.costs.compute import Compute
from raddle.costs.saved_for_backward import kept
from raddle.graph.box import Box
from raddle.graph.gradients import active_values, has_backward
from raddle.graph.graph import Graph, Op
from raddle.searches.grids import batch_independent
from raddle.searches.pipeline.layers import Line, Work


@dataclass(frozen=True)
class Nodes:
    """The layers of a graph."""

    graph: Graph
    of: dict[str, int]  # by operator
    names: tuple[tuple[str, ...], ...]  # operators of each layer, in their order
    successors: tuple[tuple[int, ...], ...]


def nodes_of(graph: Graph) -> Nodes:
    """Joins operators that read one layer alone to it, unless they have weights."""
    fixed = batch_independent(graph)
    values, producer = graph.values, {o: op for op in graph.ops for o in op.outputs}
    of: dict[str, int] = {}
    count = 0
    for op in graph.ops:
        if op.name in fixed:
            continue
        read = {of[producer[i].name] for i in op.inputs if i in producer and producer[i].name in of}
        heavy = any(values[i].role == "parameter" for i in op.inputs) and op.space.product
        if len(read) == 1 and not heavy:
            of[op.name] = read.pop()
        else:
            of[op.name] = count
            count += 1
    _place_fixed(graph, fixed, of)
    count = max(count, 1)
    edges: list[set[int]] = [set() for _ in range(count)]
    for op in graph.ops:
        for i in op.inputs:
            if i in producer and of[producer[i].name] != of[op.name]:
                edges[of[producer[i].name]].add(of[op.name])
    names: list[list[str]] = [[] for _ in range(count)]
    for op in graph.ops:
        names[of[op.name]].append(op.name)
    return Nodes(graph, of, tuple(map(tuple, names)), tuple(tuple(sorted(own)) for own in edges))


def _place_fixed(graph: Graph, fixed: Collection[str], of: dict[str, int]) -> None:
    """Gives operators that depend on no sample the earliest layer that reads them, by way of others too.

    A buffer's next value counts as read by whoever reads the buffer: only within a stage does a
    micro-batch find what the one before has written.
    """
    buffers = {value: buffer for buffer, value in graph.updates.items()}
    waiting = [op for op in reversed(graph.ops) if op.name in fixed]
    changed = True
    while changed:
        changed = False
        for op in waiting:
            names = [*op.outputs, *(buffers[o] for o in op.outputs if o in buffers)]
            readers = [r.name for name in names for r in graph.readers.get(name, ())]
            first = min((of[r] for r in readers if r in of), default=None)
            if first is not None and first != of.get(op.name):
                of[op.name] = first
                changed = True
    of.update({op.name: 0 for op in waiting if op.name not in of})  # nobody reads these


def line_of(cluster: Cluster) -> Line:
    """The devices in their order; what they can use of their memory, and the links between neighbours."""
    kinds = kinds_of(cluster)
    routes = [cluster.route(d, d + 1) for d in range(len(cluster.devices) - 1)]
    return Line(
        tuple(kinds.index(d.kind) for d in cluster.devices),
        tuple(float(d.memory) for d in cluster.devices),
        tuple(r.bandwidth for r in routes),
        tuple(r.latency for r in routes),
    )


def kinds_of(cluster: Cluster) -> list[str]:
    return list(dict.fromkeys(d.kind for d in cluster.devices))


class Costs:
    """What layers take and hold, for micro-batches of any size."""

    def __init__(self, nodes: Nodes, cluster: Cluster, compute: Compute | None = None) -> None:
        self.nodes, self.graph = nodes, nodes.graph
        self.active = active_values(self.graph)
        self.compute = compute or Compute(self.graph, self.active)
        first = {d.kind: d for d in reversed(cluster.devices)}
        self.devices = [first[kind] for kind in kinds_of(cluster)]

    def work(self, size: int) -> Work:
        """Of micro-batches of so many samples."""
        return Work(
            tuple(self._seconds(device, size, "F") for device in self.devices),
            tuple(self._seconds(device, size, "B") for device in self.devices),
            self._leaving(size),
            self._kept(size),
            self._parameters(),
            self.nodes.successors,
        )

    def _seconds(self, device: Device, size: int, phase: str) -> tuple[float, ...]:
        total = [0.0] * len(self.nodes.names)
        for op in self.graph.ops:
            if phase == "F" or has_backward(op, self.active):
                box = micro_box(op, self.graph.batch, size)
                seconds = self.compute.seconds(op, box, phase, device)
                total[self.nodes.of[op.name]] += seconds
        return tuple(total)

    def _leaving(self, size: int) -> tuple[float, ...]:
        """Bytes that other layers read."""
        total = [0.0] * len(self.nodes.names)
        of = self.nodes.of
        for op in self.graph.ops:
            for o in op.outputs:
                readers = {of[r.name] for r in self.graph.readers.get(o, ())}
                if readers - {of[op.name]}:
                    total[of[op.name]] += self._nbytes(o, size)
        return tuple(total)

    def _kept(self, size: int) -> tuple[float, ...]:
        """Bytes that backwards need; of a view, what it looks at."""
        base = {
            op.outputs[0]: op.inputs[0] for op in self.graph.ops if op.traits.view
        }  # fmt: skip
        producer = {o: op for op in self.graph.ops for o in op.outputs}
        total = [0.0] * len(self.nodes.names)
        wanted: set[str] = set()
        for op in self.graph.ops:
            keeps = kept(self.graph, self.active, op)
            wanted |= keeps.inputs | (set(op.outputs) if keeps.output else set())
            value = self.graph.values[op.outputs[0]]
            elements = self._nbytes(op.outputs[0], size) / value.dtype.itemsize
            total[self.nodes.of[op.name]] += keeps.extra * elements
        seen: set[str] = set()
        for name in wanted:
            while name in base:
                name = base[name]
            if name in producer and name not in seen:
                seen.add(name)
                total[self.nodes.of[producer[name].name]] += self._nbytes(name, size)
        return tuple(total)

    def _parameters(self) -> tuple[float, ...]:
        total = [0.0] * len(self.nodes.names)
        seen: set[str] = set()
        for op in self.graph.ops:
            for name in op.inputs:
                if self.graph.values[name].role == "parameter" and name not in seen:
                    seen.add(name)
                    total[self.nodes.of[op.name]] += self.graph.values[name].nbytes
        return tuple(total)

    def _nbytes(self, name: str, size: int) -> float:
        value = self.graph.values[name]
        return value.nbytes * (size / self.graph.batch if "n" in value.letters else 1)


def micro_box(op: Op, batch: int, size: int) -> Box:
    """What an operator does for so many samples: a tile of what it does for all."""
    full = op.space.full
    hi = [
        dim.size // batch * size if dim.name == "n" and dim.size % batch == 0 else dim.size
        for dim in op.space.dims
    ]
    return Box(full.lo, tuple(hi))


def stage_names(nodes: Nodes, stages: Sequence[Sequence[int]]) -> tuple[tuple[str, ...], ...]:
    """The operators of stages of layers, in the graph's order."""
    at = {v: s for s, own in enumerate(stages) for v in own}
    found: list[list[str]] = [[] for _ in stages]
    for op in nodes.graph.ops:
        found[at[nodes.of[op.name]]].append(op.name)
    return tuple(tuple(own) for own in found)
