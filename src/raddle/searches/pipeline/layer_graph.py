"""Groups the operators of a captured graph into layers, and estimates the costs of each layer.

A pipeline is cut only between layers. A layer is an operator with weights (a convolution, a matrix product)
together with the operators after it that read no other layer: norms, activation functions, views. A cut
inside a layer would not send less than a cut after it. An operator that reads several layers, such as the
addition of a residual connection, starts a layer too. Operators that depend on no sample, such as a causal
mask, belong to the first layer that reads them. A layer only reads layers with lower numbers, so the graph
of layers has no cycle.
"""

# v: a layer (a node of the partitioner's graph), s: a stage, d: a device
# i, o: names of values that an operator reads and writes, r: a reader of a value, or a route

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from raddle.clusters import Cluster, Device
from raddle.costs.compute import ComputeCosts
from raddle.costs.saved_for_backward import saved_for_backward
from raddle.graph.box import Box
from raddle.graph.gradients import active_values, has_backward
from raddle.graph.graph import Graph, Op
from raddle.searches.grids import batch_independent
from raddle.searches.pipeline.layers import DeviceChain, LayerCosts


@dataclass(frozen=True)
class LayerGraph:
    """The layers of a graph, numbered from 0."""

    graph: Graph
    layer_of: dict[str, int]  # by operator name, the number of its layer
    op_names: tuple[tuple[str, ...], ...]  # by layer, its operators in the graph's order
    successors: tuple[tuple[int, ...], ...]  # by layer, the layers that read it


def build_layer_graph(graph: Graph) -> LayerGraph:
    """Assign every operator to a layer and return the graph of layers.

    An operator without weights that reads a single layer joins this layer.
    """
    independent_ops = batch_independent(graph)
    values, producer = graph.values, {o: op for op in graph.ops for o in op.outputs}
    layer_of: dict[str, int] = {}
    count = 0
    for op in graph.ops:
        if op.name in independent_ops:
            continue
        read_layers = {
            layer_of[producer[i].name]
            for i in op.inputs
            if i in producer and producer[i].name in layer_of
        }
        # is_product: a convolution or matrix product; a norm, which only scales by its weights, is none.
        has_weights = any(values[i].role == "parameter" for i in op.inputs) and op.space.is_product
        if len(read_layers) == 1 and not has_weights:
            layer_of[op.name] = read_layers.pop()
        else:
            layer_of[op.name] = count
            count += 1
    _place_batch_independent(graph, independent_ops, layer_of)
    count = max(count, 1)  # if no operator depends on a sample, all are in layer 0
    edges: list[set[int]] = [set() for _ in range(count)]
    for op in graph.ops:
        for i in op.inputs:
            if i in producer and layer_of[producer[i].name] != layer_of[op.name]:
                edges[layer_of[producer[i].name]].add(layer_of[op.name])
    op_names: list[list[str]] = [[] for _ in range(count)]
    for op in graph.ops:
        op_names[layer_of[op.name]].append(op.name)
    return LayerGraph(
        graph,
        layer_of,
        tuple(map(tuple, op_names)),
        tuple(tuple(sorted(readers)) for readers in edges),
    )


def _place_batch_independent(
    graph: Graph, independent_ops: Collection[str], layer_of: dict[str, int]
) -> None:
    """Assign each operator that depends on no sample to the first layer that reads it, also indirectly.

    An operator that computes the next value of a buffer counts as read by the readers of the buffer: the
    new value stays on the devices of the operator's stage, and the next micro-batch reads it there.
    """
    # For each name of the new value of a buffer, the name of the buffer.
    buffers = {value: buffer for buffer, value in graph.updates.items()}
    waiting = [op for op in reversed(graph.ops) if op.name in independent_ops]
    changed = True
    while changed:
        changed = False
        for op in waiting:
            value_names = [*op.outputs, *(buffers[o] for o in op.outputs if o in buffers)]
            readers = [r.name for name in value_names for r in graph.readers.get(name, ())]
            first_layer = min((layer_of[r] for r in readers if r in layer_of), default=None)
            if first_layer is not None and first_layer != layer_of.get(op.name):
                layer_of[op.name] = first_layer
                changed = True
    # Operators that no layer reads belong to layer 0.
    layer_of.update({op.name: 0 for op in waiting if op.name not in layer_of})


def build_device_chain(cluster: Cluster) -> DeviceChain:
    """Return the devices in the cluster's order, with their memory and the links between neighbours."""
    kinds = device_kinds(cluster)
    routes = [cluster.route(d, d + 1) for d in range(len(cluster.devices) - 1)]
    return DeviceChain(
        tuple(kinds.index(d.kind) for d in cluster.devices),
        tuple(float(d.memory) for d in cluster.devices),
        tuple(r.bandwidth for r in routes),
        tuple(r.latency for r in routes),
    )


def device_kinds(cluster: Cluster) -> list[str]:
    """Return the names of the kinds of devices, each once; its index is the number of the kind."""
    return list(dict.fromkeys(d.kind for d in cluster.devices))


class LayerCostModel:
    """Estimates times and sizes of layers for micro-batches of any size.

    compute: estimates the seconds of a box of an operator; None: from the devices' rates.
    """

    def __init__(
        self, layer_graph: LayerGraph, cluster: Cluster, compute: ComputeCosts | None = None
    ) -> None:
        self.layer_graph, self.graph = layer_graph, layer_graph.graph
        self.active = active_values(self.graph)  # the values that have a gradient
        self.compute = compute or ComputeCosts(self.graph, self.active)
        first_of_kind = {d.kind: d for d in reversed(cluster.devices)}
        self.one_of_each_kind = [first_of_kind[kind] for kind in device_kinds(cluster)]

    def micro_batch_costs(self, samples: int) -> LayerCosts:
        """Return the costs of all layers for a micro-batch of this many samples."""
        return LayerCosts(
            tuple(self._seconds(device, samples, "F") for device in self.one_of_each_kind),
            tuple(self._seconds(device, samples, "B") for device in self.one_of_each_kind),
            self._output_bytes(samples),
            self._saved_bytes(samples),
            self._parameter_bytes(),
            self.layer_graph.successors,
        )

    def _seconds(self, device: Device, samples: int, phase: str) -> tuple[float, ...]:
        """Return, for each layer, the seconds of a phase on a device; phase: "F" forward, "B" backward."""
        total = [0.0] * len(self.layer_graph.op_names)
        for op in self.graph.ops:
            if phase == "F" or has_backward(op, self.active):
                box = micro_batch_box(op, self.graph.batch, samples)
                seconds = self.compute.seconds(op, box, phase, device)
                total[self.layer_graph.layer_of[op.name]] += seconds
        return tuple(total)

    def _output_bytes(self, samples: int) -> tuple[float, ...]:
        """Return, for each layer, the bytes of its values that other layers read."""
        total = [0.0] * len(self.layer_graph.op_names)
        layer_of = self.layer_graph.layer_of
        for op in self.graph.ops:
            for o in op.outputs:
                readers = {layer_of[r.name] for r in self.graph.readers.get(o, ())}
                if readers - {layer_of[op.name]}:
                    total[layer_of[op.name]] += self._nbytes(o, samples)
        return tuple(total)

    def _saved_bytes(self, samples: int) -> tuple[float, ...]:
        """Return, for each layer, the bytes of activations saved for the backward.

        Each value counts once. A saved view counts as the value that it is a view of.
        """
        viewed = {
            op.outputs[0]: op.inputs[0] for op in self.graph.ops if op.traits.is_view
        }  # fmt: skip
        producer = {o: op for op in self.graph.ops for o in op.outputs}
        total = [0.0] * len(self.layer_graph.op_names)
        saved_values: set[str] = set()
        for op in self.graph.ops:
            saved = saved_for_backward(self.graph, self.active, op)
            saved_values |= (
                saved.inputs | saved.copies | (set(op.outputs) if saved.output else set())
            )
            value = self.graph.values[op.outputs[0]]
            elements = self._nbytes(op.outputs[0], samples) / value.dtype.itemsize
            # extra: bytes for each element of the output, such as a dropout mask.
            total[self.layer_graph.layer_of[op.name]] += float(saved.extra) * elements
        seen: set[str] = set()
        for name in saved_values:
            while name in viewed:
                name = viewed[name]
            if name in producer and name not in seen:
                seen.add(name)
                total[self.layer_graph.layer_of[producer[name].name]] += self._nbytes(name, samples)
        return tuple(total)

    def _parameter_bytes(self) -> tuple[float, ...]:
        """Return, for each layer, the bytes of its parameters; a shared one counts in the first layer."""
        total = [0.0] * len(self.layer_graph.op_names)
        seen: set[str] = set()
        for op in self.graph.ops:
            for name in op.inputs:
                if self.graph.values[name].role == "parameter" and name not in seen:
                    seen.add(name)
                    total[self.layer_graph.layer_of[op.name]] += self.graph.values[name].nbytes
        return tuple(total)

    def _nbytes(self, name: str, samples: int) -> float:
        """Return the bytes of a value for this many samples."""
        value = self.graph.values[name]
        return value.nbytes * (samples / self.graph.batch if "n" in value.letters else 1)


def micro_batch_box(op: Op, batch: int, samples: int) -> Box:
    """Return the part of the operator's iteration space that belongs to the first `samples` samples.

    batch: the number of samples in the whole graph. The size of dimension "n" may also be a multiple of
    it, such as samples times tokens.
    """
    full = op.space.full
    hi = [
        dim.size // batch * samples if dim.name == "n" and dim.size % batch == 0 else dim.size
        for dim in op.space.dims
    ]
    return Box(full.lo, tuple(hi))


def stage_op_names(
    layer_graph: LayerGraph, stages: Sequence[Sequence[int]]
) -> tuple[tuple[str, ...], ...]:
    """Return, for each stage, the names of its operators in the graph's order.

    stages: the layers of each stage.
    """
    stage_of = {v: s for s, layers in enumerate(stages) for v in layers}
    op_names: list[list[str]] = [[] for _ in stages]
    for op in layer_graph.graph.ops:
        op_names[stage_of[layer_graph.layer_of[op.name]]].append(op.name)
    return tuple(tuple(stage_ops) for stage_ops in op_names)
