"""Shows the weights of VGG-16's layers from three sources, and the sizes of its hypergraphs.

A weight of a layer is its work, which partitions balance. In chapter 5 of the thesis (B. Eserol,
docs/papers.md) a profiler's seconds of forward and backward, and the FLOPs, give a layer's weight.
Differs from the thesis: it does not say how it combines both (here: the mean of the shares of seconds and
of FLOPs), and it does not print its weights.
A PaToH file describes a hypergraph: vertices, nets (sets of vertices) and pins (members of nets).
*Coarse* and *fine* are the grains of a hypergraph: a vertex is a filter, or an input channel of a filter.
"""

from __future__ import annotations

import os
import pathlib
import tempfile

import numpy as np

from experiments.thesis.printed import RECONSTRUCTED
from raddle.api.clusters import cluster
from raddle.api.costs import ComputeCosts, measure
from raddle.api.loading import capture_model
from raddle.api.models import Graph
from raddle.api.partitioning import GRAINS, Partitioner, hypergraph, layer_work, write_hypergraph
from raddle.api.programs import active_values
from raddle.api.results import Cell, Column, Table

Array = np.ndarray
THIS_MACHINE = "local:1"


def profiled_weights(batch: int, repeats: int) -> Array:
    """Returns the weight of each layer: the mean of its shares of FLOPs and of measured seconds."""
    graph = capture_model("vgg16", batch)
    network, device = Partitioner(graph).network, cluster(THIS_MACHINE).devices[0]
    layers = {name for layer in network.layers for name in layer.ops}
    # each operator whole
    boxes = [(op, op.space.full) for op in graph.ops if op.name in layers]
    profile = measure(graph, boxes, _grad_operands(graph), device.kind, repeats=repeats)
    # "both": FLOPs and seconds
    return layer_work(graph, network, "both", device, profile)


def _grad_operands(graph: Graph) -> dict[str, tuple[int, ...]]:
    """Returns, by operator, the operands whose gradients are computed."""
    compute = ComputeCosts(graph, frozenset(active_values(graph)))
    return {op.name: tuple(compute.grad_operands[op.name, "B"]) for op in graph.ops}


def weight_table(plain: Partitioner, measured: Array, batch: int) -> Table:
    """Returns a table of each layer's share of all work, in percent, by source.

    plain: a partitioner whose layers have all filters or neurons as units (connected_as_one makes each
    fully connected layer a single unit). measured: the weights of `profiled_weights`, at this batch.
    """
    # l: number of a layer
    flops = np.array([layer.flops for layer in plain.network.layers], float)
    reconstructed = np.array(RECONSTRUCTED, float)
    shares = [100 * w / w.sum() for w in (reconstructed, flops, measured)]
    names = [layer.name for layer in plain.network.layers]
    # Column: name, source of its numbers ("counted": from a plan alone), digits after the point
    columns = [
        Column("layer"), Column("filters", "counted"),
        Column("reconstructed, %", "counted", 1), Column("FLOPs, %", "counted", 1),
        Column("profiled here, %", "measured", 1),
    ]  # fmt: skip
    rows: list[list[Cell]] = [
        [name, layer.units, *(float(share[l]) for share in shares)]
        for l, (name, layer) in enumerate(zip(names, plain.network.layers, strict=True))
    ]
    note = (
        "The thesis does not print its weights; the reconstruction is from its Tables 5.1 and 5.5. "
        f"Profiled: the mean of the shares of FLOPs and of seconds at batch {batch} on this machine."
    )
    return Table("Weights of layers", columns, rows, note)


def hypergraph_table(partitioner: Partitioner) -> Table:
    """Returns a table of the sizes of both hypergraphs and of their PaToH files."""
    rows: list[list[Cell]] = []
    with tempfile.TemporaryDirectory() as folder:
        for grain in GRAINS:
            layer_hypergraph = hypergraph(partitioner, grain)
            path = pathlib.Path(folder) / f"vgg16.{grain}.patoh"
            write_hypergraph(layer_hypergraph, path, "patoh")
            size = os.path.getsize(path) / 2**20
            rows.append(
                [
                    grain,
                    len(layer_hypergraph.weight),
                    len(layer_hypergraph.cost),
                    len(layer_hypergraph.pins),
                    size,
                ]
            )
    columns = [
        Column("grain"), Column("vertices", "counted"), Column("nets", "counted"),
        Column("pins", "counted"), Column("file, MiB", "measured", 1),
    ]  # fmt: skip
    note = (
        "`raddle export vgg16 --to patoh --connected-as-one` writes such files. In the fine hypergraph a "
        "vertex is an input channel of a filter, in the coarse one a filter."
    )
    return Table("Hypergraphs, each fully connected layer as one vertex", columns, rows, note)
