"""Bytes of lowered plans against the formulas of the papers."""

from __future__ import annotations

import dataclasses
from functools import cache

import pytest

from raddle import zoo
from raddle.clusters import cluster
from raddle.costs.collectives import server_bytes
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.plans.plan import Plan
from raddle.plans.tiling import Grid, even_cuts, whole_tiling
from raddle.program.lower import lower
from raddle.program.program import Move, Program
from raddle.simulation.timeline import simulate

MI = 2**20


@cache
def captured(name: str, batch: int) -> Graph:
    work = zoo.load(name, batch=batch)
    return capture(work.model, work.batch, work.loss, name=name)


def data_parallel_plan(graph: Graph, count: int) -> Plan:
    """Data parallelism by samples; operators after the sums of the loss are on device 0."""
    devices, tiles = tuple(range(count)), {}
    for op in graph.ops:
        names = [dim.name for dim in op.space.dims]
        shape = [dim.size for dim in op.space.dims]
        if "n" in names:
            cuts = tuple(
                even_cuts(s, count) if n == "n" else (0, s)
                for n, s in zip(names, shape, strict=True)
            )
            tiles[op.name] = Grid(cuts, devices)
        else:
            tiles[op.name] = whole_tiling(shape, [0])
    return Plan(tiles, count, bn="local")


def loss_bytes(count: int) -> int:
    """Each device sends its sums of losses and of counts, and gets one gradient back."""
    return 3 * 4 * (count - 1)


@pytest.mark.parametrize("count", [2, 4, 16])
@pytest.mark.parametrize("name", ["alexnet", "vgg16"])
def test_data_parallel(name: str, count: int) -> None:
    graph = captured(name, 16)
    weights = sum(p.nbytes for p in graph.parameters)
    plan = data_parallel_plan(graph, count)
    machine = cluster(f"p100:{count + 1}x1")

    def sent_bytes(plan: Plan) -> int:
        return simulate(lower(graph, plan), machine).comm_bytes - loss_bytes(count)

    ring = sent_bytes(plan)
    assert ring / count == pytest.approx(2 * (count - 1) / count * weights, abs=1)
    sums = sent_bytes(dataclasses.replace(plan, sync="p3:collective"))
    assert sums / count == pytest.approx(2 * (count - 1) / count * weights, rel=1e-4)  # of slices
    assert sent_bytes(dataclasses.replace(plan, sync="server")) == 2 * (count - 1) * weights
    separate_server = dataclasses.replace(plan, sync=f"server:{count}", devices=count + 1)
    assert sent_bytes(separate_server) == 2 * count * weights == server_bytes(count, weights)


def forward_elements(program: Program) -> int:
    """Activations that cross devices in the forward of one step, losses left out."""
    moves = [i for i in program.instructions if isinstance(i, Move) and i.kind == "activation"]
    return sum(m.elements for move in moves for m in move.messages if m.elements > 1)


def layerwise_plan(graph: Graph, first: list[str]) -> Plan:
    """Operators are not split; the next device begins at each operator in `first`."""
    device, tiles = 0, {}
    for op in graph.ops:
        if op.name in first:
            device = first.index(op.name)
        tiles[op.name] = whole_tiling([dim.size for dim in op.space.dims], [device])
    return Plan(tiles, len(first))


def test_every_weighted_layer_of_vgg16_on_its_own() -> None:
    """The thesis's layer-wise partition: 273.58 Mi elements at batch 32."""
    graph = captured("vgg16", 32)
    weighted = [op.name for op in graph.ops if op.kind in ("conv2d", "linear")]
    assert len(weighted) == 16
    elements = forward_elements(lower(graph, layerwise_plan(graph, weighted)))
    assert elements / MI == pytest.approx(273.58, abs=0.005)


def test_one_cut_of_vgg16() -> None:
    """Between two convolutions of the third block: 24.5 Mi elements."""
    graph = captured("vgg16", 32)
    plan = layerwise_plan(graph, ["features.0", "features.12"])
    assert forward_elements(lower(graph, plan)) == 32 * 256 * 56 * 56 == 24.5 * MI
