"""Fine partitions: their volume, the programs lowered from them, and their solver.

The volume equals the connectivity of nets that the test builds itself, and what the lowered program sends.
A fine partition trains like the plain module.
"""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_plans import train_plain
from torch import Tensor, nn

from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.graph.supervised import supervised
from raddle.plans.plan import Plan
from raddle.program.checks.check import check
from raddle.program.lower import lower
from raddle.program.program import Move, Program, message_bytes
from raddle.runtime.threads import run_threads
from raddle.searches.hypergraph import fine
from raddle.searches.hypergraph.cells import Cells, cell_tiles, count_traffic
from raddle.searches.hypergraph.counts import CountModel, build_count_model, volume
from raddle.searches.hypergraph.explicit import channel_count
from raddle.searches.hypergraph.filter_layouts import layout_of_owners
from raddle.searches.hypergraph.fine_annealing import anneal
from raddle.searches.hypergraph.fine_chains import chain_rows
from raddle.searches.hypergraph.fine_partition import (
    ComputeBlock,
    FineLayer,
    FinePartition,
    is_complete,
    ranges,
    single_input_map,
)
from raddle.searches.hypergraph.fine_rows import (
    FineRows,
    apportion,
    assign_indices,
    assign_to_windows,
    rows_of_counts,
)
from raddle.searches.hypergraph.fine_walk import (
    BEST_VOLUME,
    VOLUME,
    build_fine_problem,
    count_volume,
    start_walk,
)
from raddle.searches.hypergraph.network import (
    ChannelPiece,
    FeatureMap,
    LayerNetwork,
    NetworkLayer,
    build_network,
)


class Chain(nn.Module):
    """Like VGG: convolutions, pools, and linear layers after a flatten."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 8, 3, padding=1)
        self.conv3 = nn.Conv2d(8, 5, 3, padding=1)
        self.fc1, self.fc2 = nn.Linear(20, 7), nn.Linear(7, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.conv2(torch.relu(self.conv1(x))))
        x = torch.relu(self.conv3(nn.functional.max_pool2d(x, 2)))
        x = nn.functional.max_pool2d(x, 2).flatten(1)
        return self.fc2(torch.relu(self.fc1(x)))


class Residual(nn.Module):
    """Two residual adds, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.convs = nn.ModuleList(nn.Conv2d(6, 6, 3, padding=1) for _ in range(4))
        self.fc = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        x = torch.relu(self.convs[1](torch.relu(self.convs[0](x))) + x)
        x = torch.relu(self.convs[3](torch.relu(self.convs[2](x))) + x)
        return self.fc(x.mean((2, 3)))


class Branches(nn.Module):
    """Three branches that are concatenated; two layers read the result."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.a, self.b = nn.Conv2d(4, 3, 1), nn.Conv2d(4, 5, 3, padding=1)
        self.left, self.right = nn.Conv2d(12, 4, 1), nn.Conv2d(12, 4, 3, padding=1)
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        x = torch.relu(torch.cat([self.a(x), self.b(x), x], 1))
        return self.fc((self.left(x) * self.right(x)).mean((2, 3)))


NETS = {"chain": Chain, "residual": Residual, "branches": Branches}


class Case:
    def __init__(self, name: str) -> None:
        torch.manual_seed(0)
        self.module = NETS[name]().double()
        self.x, self.target = torch.randn(4, 3, 8, 8).double(), torch.arange(4) % 4
        self.loss = nn.functional.cross_entropy
        self.graph: Graph = capture(self.module, (self.x, self.target), supervised(self.loss))
        self.network: LayerNetwork = build_network(self.graph)
        self.model: CountModel = build_count_model(self.network)


@cache
def case(name: str) -> Case:
    return Case(name)


def random_rows(layer_network: LayerNetwork, parts: int, seed: int) -> FineRows:
    """Returns random parts in random rows for each layer; one that cannot be split has all channels."""
    rng = np.random.default_rng(seed)
    shape = len(layer_network.layers), parts
    result = FineRows(np.zeros(shape, int), np.full(shape, -1), np.zeros(shape, int))
    for l, layer in enumerate(layer_network.layers):
        channels = channel_count(layer_network, l)
        splittable = single_input_map(layer_network, l) is not None
        members = rng.permutation(parts)[: rng.integers(1, parts + 1)]
        rows = (
            rng.integers(0, len(members), len(members)) if splittable else np.arange(len(members))
        )
        there = np.unique(rows)
        for i, height in zip(there, apportion(layer.units, rng.random(len(there)), 1), strict=True):
            inside = members[rows == i]
            result.row[l, inside] = i
            result.width[l, inside] = apportion(channels, rng.random(len(inside)), 1)
            result.owned[l, inside] = apportion(height, rng.random(len(inside)), 0)
    return result


# -- the volume ----------------------------------------------------------------------------------

# Layers 0 --> 1 --> 2 --> 3. Layer 2's output is added to layer 0's output; layer 3 reads cat(2, 1).
SMALL = LayerNetwork(
    (
        NetworkLayer("a", ("a",), 4, 3, 60, 12, unit_elements=8),
        NetworkLayer("b", ("b",), 3, 4, 70, 12, unit_elements=4),
        NetworkLayer("c", ("c",), 4, 3, 90, 12, unit_elements=2),
        NetworkLayer("d", ("d",), 2, 7, 50, 14, unit_elements=1),
    ),
    (
        FeatureMap("a", (ChannelPiece(0, 4),), 2, (1,), ((ChannelPiece(2, 4),),)),
        FeatureMap("b", (ChannelPiece(1, 3),), 3, (2,), ()),
        FeatureMap("cb", (ChannelPiece(2, 4), ChannelPiece(1, 3)), 1, (3,), ()),
    ),
    {},
)


def random_partition(layer_network: LayerNetwork, parts: int, seed: int) -> FinePartition:
    """Returns cells and owners in random parts; a part has one block of each filter."""
    rng = np.random.default_rng(seed)
    layers = []
    for l, layer in enumerate(layer_network.layers):
        cells = rng.integers(0, parts, (layer.units, channel_count(layer_network, l)))
        blocks = [
            ComputeBlock(p, ((j, j + 1),), ranges(row == p))
            for j, row in enumerate(cells)
            for p in set(row.tolist())
        ]
        layers.append(
            FineLayer(tuple(blocks), layout_of_owners(rng.integers(0, parts, layer.units)))
        )
    return FinePartition(parts, tuple(layers))


@given(st.integers(2, 4), st.integers(0, 10**6))
def test_the_volume_is_the_connectivity_of_nets_that_are_spelt_out(parts: int, seed: int) -> None:
    partition = random_partition(SMALL, parts, seed)
    where = {}  # vertex -> part
    for l, layer in enumerate(partition.layers):
        for part, filters, read in layer.blocks:
            for j in (j for a, b in filters for j in range(a, b)):
                where.update({(l, j, k): part for a, b in read for k in range(a, b)})
        for j, part in enumerate(fine.to_cells(SMALL, partition).owners[l]):
            where[l, j] = int(part)
    nets = []  # (cost, vertices)
    for j in range(4):  # layer 1 reads all units of layer 0's map, layer 2 reads it elementwise
        nets.append((2, [(0, j), (2, j), *((1, i, j) for i in range(3))]))
    for j in range(3):
        nets.append((3, [(1, j), *((2, i, j) for i in range(4))]))
    for k, vertex in enumerate([(2, 0), (2, 1), (2, 2), (2, 3), (1, 0), (1, 1), (1, 2)]):
        nets.append((1, [vertex, *((3, i, k) for i in range(2))]))
    for l, (made, units, every) in enumerate([(8, 4, 3), (4, 3, 4), (2, 4, 3), (1, 2, 7)]):
        for j in range(units):
            nets.append((made, [(l, j), *((l, j, k) for k in range(every))]))
    km1 = sum(cost * (len({where[v] for v in net}) - 1) for cost, net in nets)

    assert is_complete(SMALL, partition)
    assert fine.fine_volume(SMALL, partition) == km1
    work = fine.fine_work(SMALL, partition, [60, 70, 90, 50])
    pairs = Counter(part for vertex, part in where.items() if len(vertex) == 3 and vertex[0] == 0)
    assert work.sum() == pytest.approx(270)
    layer_0_work = fine.fine_work(SMALL, partition, [60, 0, 0, 0])
    assert layer_0_work == pytest.approx([5 * pairs[p] for p in range(parts)])


def test_an_aligned_grid() -> None:
    """Two rows of two parts, owners in their windows: one map and its partial results are sent once."""
    two = LayerNetwork(
        (
            NetworkLayer("a", ("a",), 4, 3, 1, 1, unit_elements=5),
            NetworkLayer("b", ("b",), 4, 4, 1, 1, unit_elements=7),
        ),
        (FeatureMap("a", (ChannelPiece(0, 4),), 3, (1,), ()),),
        {},
    )
    rows = FineRows(
        np.array([[1, 1, 1, 1], [1, 1, 1, 1]]),
        np.array([[0, 1, 2, 3], [0, 0, 1, 1]]),
        np.array([[3, 3, 3, 3], [2, 2, 2, 2]]),
    )
    partition = assign_indices(two, rows)
    assert is_complete(two, partition)
    assert fine.fine_volume(two, partition) == 4 * 3 + 4 * 7


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("seed", range(4))
def test_index_sets_have_the_counts_of_rows(name: str, seed: int) -> None:
    example = case(name)
    rows = random_rows(example.network, 4, seed)
    partition = assign_indices(example.network, rows)
    assert is_complete(example.network, partition)
    for l, layer in enumerate(partition.layers):
        owners = np.repeat(layer.owners.parts, np.diff(layer.owners.cuts))
        assert (np.bincount(owners, minlength=4) == rows.owned[l]).all()
    cells = fine.to_cells(example.network, partition)
    assert fine.fine_volume(example.network, partition) == sum(
        count_traffic(example.network, cells, 4).sent.values()
    )


@given(st.integers(1, 4), st.integers(0, 10**6))
def test_as_many_units_as_possible_lie_in_windows(parts: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    units = int(rng.integers(1, 7))
    counts = rng.multinomial(units, rng.dirichlet(np.ones(parts)))
    begin = rng.integers(0, units, parts)
    end = begin + rng.integers(0, units, parts)
    owner, left = np.full(units, -1), counts.copy()
    assign_to_windows(owner, left, begin, end)

    @cache
    def most(unit: int, left: tuple[int, ...]) -> int:
        if unit == units:
            return 0
        taken = [
            1 + most(unit + 1, (*left[:p], left[p] - 1, *left[p + 1 :]))
            for p in range(parts)
            if left[p] and begin[p] <= unit < end[p]
        ]
        return max([most(unit + 1, left), *taken])

    assert (owner >= 0).sum() == most(0, tuple(counts.tolist()))
    assert (np.bincount(owner[owner >= 0], minlength=parts) + left == counts).all()


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("seed", range(6))
def test_coarse_partitions_are_fine_ones(name: str, seed: int) -> None:
    example, rng = case(name), np.random.default_rng(seed)
    x = np.stack([rng.multinomial(n, rng.dirichlet(np.ones(3))) for n in example.model.units])
    rows = rows_of_counts(example.network, x)
    assert fine.fine_volume(example.network, assign_indices(example.network, rows)) == volume(
        example.model, x
    )
    pb = build_fine_problem(example.network, example.model)
    w = start_walk(pb, rows, np.full(3, example.model.total_work), 0)
    assert w.totals[VOLUME] == volume(example.model, x)


# -- the program ---------------------------------------------------------------------------------


def lower_cells(example: Case, cells: Cells, parts: int) -> Program:
    tiles, sums = cell_tiles(example.graph, example.network, cells)
    return lower(example.graph, Plan(tiles, parts, sums=sums, bucket=0))


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_the_volume_is_what_the_lowered_program_sends(name: str, parts: int, seed: int) -> None:
    example = case(name)
    partition = assign_indices(example.network, random_rows(example.network, parts, seed))
    program = lower_cells(example, fine.to_cells(example.network, partition), parts)
    layers = {name for layer in example.network.layers for name in layer.ops}
    values = {o for op in example.graph.ops if op.name in layers for o in op.outputs}
    values |= {v.name for v in example.network.maps}  # not the sums of the loss
    sent = Counter[str]()
    for i in program.instructions:
        if isinstance(i, Move) and i.value in values:
            sent[i.kind] += sum(message_bytes(program, i, m) for m in i.messages)
    assert sent["activation"] + sent["partial"] == 8 * fine.fine_volume(example.network, partition)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("parts", [2, 3])
def test_a_fine_partition_trains_as_the_module(name: str, parts: int) -> None:
    example = case(name)
    partition = assign_indices(example.network, random_rows(example.network, parts, seed=parts))
    program = lower_cells(example, fine.to_cells(example.network, partition), parts)
    check(program)
    batch = dict(zip(example.graph.inputs, [example.x, example.target], strict=True))

    def optimizer(parameters: list[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.05)

    result = run_threads(
        program, dict(example.module.named_parameters()), optimizer, lambda key: batch
    )
    losses, state = train_plain(
        example.module, example.loss, [[([example.x], [example.target])]], optimizer
    )
    assert result.losses == pytest.approx(losses, rel=1e-9)
    for key, tensor in result.state.items():
        torch.testing.assert_close(tensor, state[key], rtol=1e-9, atol=1e-9)


# -- the search ----------------------------------------------------------------------------------


def even(m: CountModel, parts: int) -> np.ndarray:
    return np.diff(m.units[:, None] * np.arange(parts + 1) // parts, axis=1)


@pytest.mark.parametrize("name", NETS)
def test_the_walk_keeps_its_count(name: str) -> None:
    example = case(name)
    pb = build_fine_problem(example.network, example.model)
    capacity = np.full(4, example.model.total_work / 4 * 1.3)
    w = start_walk(pb, random_rows(example.network, 4, 1), capacity, 5)
    anneal(pb, w, capacity, 3000, 50.0, 1.0, 1e4)
    updated = w.totals.copy(), w.work.copy(), w.received.copy()
    count_volume(pb, w)
    assert w.totals[VOLUME] == updated[0][VOLUME]
    assert w.work == pytest.approx(updated[1])
    assert (w.received == updated[2]).all()
    assert start_walk(pb, w.best, capacity, 0).totals[VOLUME] == w.totals[BEST_VOLUME]
    assert is_complete(example.network, assign_indices(example.network, w.best))


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("parts", [2, 5])
def test_a_solution_is_within_the_balance_and_no_worse_than_a_start(name: str, parts: int) -> None:
    example = case(name)
    steps: list[object] = []
    start = even(example.model, parts)
    solution = fine.solve(
        example.network, example.model, parts, epsilon=0.5, iterations=20_000, starts=[start],
        on_progress=steps.append,
    )  # fmt: skip
    assert solution.volume == fine.fine_volume(example.network, solution.partition)
    assert solution.volume <= volume(example.model, start)
    assert is_complete(example.network, solution.partition)
    assert solution.feasible
    work = fine.fine_work(
        example.network, solution.partition, example.model.work * example.model.units
    )
    assert work.max() <= 1.5 * example.model.total_work / parts * (1 + 1e-9)
    assert steps


def test_a_start_is_kept_where_the_walk_loses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    example = case("chain")
    single_part = np.zeros((example.model.num_layers, 3), np.int64)
    single_part[:, 0] = example.model.units
    lost = rows_of_counts(example.network, even(example.model, 3))
    monkeypatch.setattr(
        fine, "_anneal_candidate", lambda pb, candidate, *others: candidate._replace(rows=lost)
    )
    solution = fine.solve(
        example.network, example.model, 3, epsilon=2.0, starts=[single_part], iterations=0
    )
    assert (solution.volume, solution.start) == (0, "coarse 0")


def test_so_many_moves_give_the_same_again() -> None:
    example = case("residual")
    partitions = [
        fine.solve(example.network, example.model, 4, iterations=20_000, seed=3).partition
        for _ in range(2)
    ]
    assert partitions[0] == partitions[1]


def test_shares_of_the_work() -> None:
    example = case("chain")
    solution = fine.solve(
        example.network, example.model, 3, epsilon=0.2, iterations=40_000, shares=[2.0, 1.0, 1.0]
    )
    work = fine.fine_work(
        example.network, solution.partition, example.model.work * example.model.units
    )
    assert (work <= example.model.total_work * np.array([0.6, 0.3, 0.3]) * (1 + 1e-9)).all()
    assert solution.feasible


def test_without_time_a_start_comes_back() -> None:
    example = case("chain")
    solution = fine.solve(
        example.network, example.model, 2, budget=0.0, starts=[even(example.model, 2)]
    )
    assert is_complete(example.network, solution.partition)
    assert solution.volume <= volume(example.model, even(example.model, 2))


@settings(max_examples=20)
@given(st.sampled_from(sorted(NETS)), st.integers(2, 40))
def test_chains_are_partitions(name: str, parts: int) -> None:
    example = case(name)
    pb = build_fine_problem(example.network, example.model)
    rows = chain_rows(example.network, pb, parts, example.model.total_work / parts * 1.3)
    if rows is not None:
        assert is_complete(example.network, assign_indices(example.network, rows))
