"""Fine partitions as cells, and partition files of other partitioners.

For random cells these agree: the traffic that cells.py counts, the connectivity (km1) of the explicit
hypergraph, and the bytes that the lowered program sends.
"""

from __future__ import annotations

import pathlib
from collections import Counter
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_models import small

from raddle.errors import InputError
from raddle.graph.graph import Graph
from raddle.plans.plan import Plan
from raddle.program.lower import lower
from raddle.program.program import Move, message_bytes
from raddle.searches.hypergraph import explicit, formats, naive
from raddle.searches.hypergraph.cells import (
    Cells,
    cell_tiles,
    cell_work,
    count_traffic,
    partition_from_vector,
)
from raddle.searches.hypergraph.counts import build_count_model
from raddle.searches.hypergraph.network import LayerNetwork, build_network

MODELS = ("lenet-tiny", "resnet110-tiny", "unet-tiny", "rnnlm-tiny")


@cache
def graph_and_network(name: str) -> tuple[Graph, LayerNetwork]:
    graph = small(name)[1]
    return graph, build_network(graph)


def random_cells(layer_network: LayerNetwork, parts: int, seed: int) -> Cells:
    """Returns 2 x 2 blocks of cells in random parts; the owner of a filter has one of its cells."""
    rng = np.random.default_rng(seed)
    cells, owners = [], []
    for l, layer in enumerate(layer_network.layers):
        shape = layer.units, explicit.channel_count(layer_network, l)
        grid = rng.integers(0, parts, [min(2, n) for n in shape])
        at = [
            np.minimum(np.arange(n) * len(g) // n, len(g) - 1)
            for n, g in zip(shape, (grid, grid[0]), strict=True)
        ]
        cells.append(grid[np.ix_(*at)])
        owners.append(cells[-1][np.arange(shape[0]), rng.integers(0, shape[1], shape[0])])
    return Cells(cells, owners)


def part_of_vertices(partition: Cells) -> np.ndarray:
    return np.concatenate(
        [*(layer_cells.ravel() for layer_cells in partition.cells), *partition.owners]
    )


@given(st.sampled_from(MODELS), st.integers(2, 4), st.integers(0, 10**6))
def test_cells_are_the_connectivity_of_the_explicit_hypergraph(
    name: str, parts: int, seed: int
) -> None:
    _, layer_network = graph_and_network(name)
    partition = random_cells(layer_network, parts, seed)
    sent = count_traffic(layer_network, partition, parts)
    m = build_count_model(layer_network)
    hypergraph = explicit.fine(layer_network, m)
    assert (
        explicit.km1(hypergraph, part_of_vertices(partition))
        == sum(sent.sent.values())
        == sent.received.sum()
    )
    weight = np.bincount(part_of_vertices(partition), weights=hypergraph.weight, minlength=parts)
    assert cell_work(layer_network, m.work, partition, parts) == pytest.approx(weight)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("parts", [2, 3])
def test_cells_are_the_bytes_of_the_lowered_program(name: str, parts: int) -> None:
    """Counts maps and partial sums, forward and backward; not the sums of losses and norms."""
    graph, layer_network = graph_and_network(name)
    partition = random_cells(layer_network, parts, seed=parts)
    tiles, sums = cell_tiles(graph, layer_network, partition)
    program = lower(graph, Plan(tiles, parts, bn="local", sums=sums))
    maps = {v.name for v in layer_network.maps}
    sums = {
        o
        for op in graph.ops
        for layer in layer_network.layers
        if op.name in layer.ops
        for o in op.outputs
    }
    sent: Counter[str] = Counter()
    for i in program.instructions:
        if isinstance(i, Move) and i.value in maps | sums:
            sent[i.kind] += sum(message_bytes(program, i, m) for m in i.messages)
    expected = sum(count_traffic(layer_network, partition, parts).sent.values()) * 8
    assert sent["activation"] + sent["partial"] == expected
    assert sent["gradient"] + sent["partial gradient"] == expected


def test_channels_in_order_are_a_fine_partition() -> None:
    _, layer_network = graph_and_network("lenet-tiny")
    m = build_count_model(layer_network)
    partition = naive.channel_incremental(layer_network, m, 3)
    work = cell_work(layer_network, m.work, partition, 3)
    assert work.sum() == pytest.approx(m.total_work)
    assert (work > 0).all()


@pytest.mark.parametrize("file_format", formats.FORMATS)
@pytest.mark.parametrize("grain", ["coarse", "fine"])
def test_hypergraphs_come_back_from_files(
    tmp_path: pathlib.Path, file_format: str, grain: str
) -> None:
    _, layer_network = graph_and_network("lenet-tiny")
    hypergraph = getattr(explicit, grain)(layer_network, build_count_model(layer_network))
    formats.write_hypergraph(hypergraph, tmp_path / "h", file_format)
    read = formats.read_hypergraph(tmp_path / "h")
    assert (read.cost == hypergraph.cost).all()
    assert (read.net_start == hypergraph.net_start).all()
    assert (read.pins == hypergraph.pins).all()
    assert read.weight / read.weight.sum() == pytest.approx(
        hypergraph.weight / hypergraph.weight.sum(), abs=1e-6
    )


def test_the_first_lines_are_those_of_the_formats(tmp_path: pathlib.Path) -> None:
    h = explicit.Hypergraph(np.array([3.0, 4.0]), np.array([9]), np.array([0, 2]), np.array([0, 1]))
    for file_format, text in {
        "patoh": "1 2 1 2 3\n9 1 2\n3 4\n",
        "hmetis": "1 2 11\n9 1 2\n3\n4\n",
    }.items():
        formats.write_hypergraph(h, tmp_path / file_format, file_format)
        assert (tmp_path / file_format).read_text() == text


def test_partition_files_are_of_filters_or_of_channels(tmp_path: pathlib.Path) -> None:
    _, layer_network = graph_and_network("lenet-tiny")
    partition = random_cells(layer_network, 3, 0)
    formats.write_partition(part_of_vertices(partition), tmp_path / "partition")
    back = partition_from_vector(layer_network, formats.read_partition(tmp_path / "partition"))
    assert isinstance(back, Cells)
    assert all((a == b).all() for a, b in zip(back.cells, partition.cells, strict=True))
    filters = partition_from_vector(
        layer_network, np.zeros(sum(layer.units for layer in layer_network.layers), int)
    )
    assert isinstance(filters, list)
    assert [len(owners) for owners in filters] == [layer.units for layer in layer_network.layers]
    assert partition_from_vector(layer_network, np.zeros(3, int)) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no hypergraph"),
        ("1 2 11\n", "damaged"),
        ("1 2 x", "other than numbers"),
        ("1 1 1\n", "no hyper"),
    ],
)
def test_damaged_hypergraphs(tmp_path: pathlib.Path, text: str, reason: str) -> None:
    (tmp_path / "h").write_text(text)
    with pytest.raises(InputError, match=reason):
        formats.read_hypergraph(tmp_path / "h")


@pytest.mark.parametrize(
    ("text", "reason"), [("", "no partition"), ("0 -1", "no partition"), ("a", "numbers")]
)
def test_damaged_partition_files(tmp_path: pathlib.Path, text: str, reason: str) -> None:
    (tmp_path / "p").write_text(text)
    with pytest.raises(InputError, match=reason):
        formats.read_partition(tmp_path / "p")
