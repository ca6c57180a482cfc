"""The layer network and the counts of coarse partitions, for random partitions of filters.

These agree: the volume of the counts, the connectivity (km1) of the explicit hypergraph, and the bytes
that the lowered program sends.
"""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_models import small

from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.plans.plan import Plan
from raddle.program.lower import lower
from raddle.program.program import Move, message_bytes
from raddle.searches.hypergraph import explicit
from raddle.searches.hypergraph.counts import CountModel, build_count_model, volume
from raddle.searches.hypergraph.filter_layouts import layouts_of_counts, place_operators
from raddle.searches.hypergraph.network import LayerNetwork, build_network

# Chains, residual adds, concatenations, skip connections, recurrent layers.
MODELS = ("vgg16-tiny", "resnet110-tiny", "inception_v3-tiny", "unet-tiny", "rnnlm-tiny")


class Case:
    def __init__(self, name: str) -> None:
        self.graph: Graph = small(name)[1]
        self.network: LayerNetwork = build_network(self.graph)
        self.model: CountModel = build_count_model(self.network)


@cache
def case(name: str) -> Case:
    return Case(name)


def random_counts(m: CountModel, parts: int, seed: int) -> np.ndarray:
    """Returns random counts [layer, part]: even, uneven, or nearly all in one part."""
    rng = np.random.default_rng(seed)
    x = np.zeros((m.num_layers, parts), np.int64)
    for l in range(m.num_layers):
        x[l] = rng.multinomial(m.units[l], rng.dirichlet(np.full(parts, rng.choice([0.1, 1, 9]))))
    return x


def part_of_filters(case: Case, x: np.ndarray) -> np.ndarray:
    """Returns the part of each vertex of the coarse hypergraph, as in the plan."""
    return np.concatenate(
        [
            np.repeat(layout.parts, np.diff(layout.cuts))
            for layout in layouts_of_counts(case.network, x)
        ]
    )


@given(st.sampled_from(MODELS), st.integers(2, 5), st.integers(0, 10**6))
def test_counts_are_the_connectivity_of_the_explicit_hypergraph(
    name: str, parts: int, seed: int
) -> None:
    example = case(name)
    x = random_counts(example.model, parts, seed)
    hypergraph = explicit.coarse(example.network, example.model)
    assert explicit.km1(hypergraph, part_of_filters(example, x)) == volume(example.model, x)
    assert hypergraph.weight.sum() == pytest.approx(example.model.total_work)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("parts", [2, 3, 4])
def test_counts_are_the_bytes_of_the_lowered_program(name: str, parts: int) -> None:
    """Counts maps, forward and backward; not the sums of losses and norms."""
    example = case(name)
    x = random_counts(example.model, parts, seed=parts)
    tiles = place_operators(example.graph, example.network, layouts_of_counts(example.network, x))
    program = lower(example.graph, Plan(tiles, parts, bn="local"))
    sent: Counter[str] = Counter()
    maps = {v.name for v in example.network.maps}
    for i in program.instructions:
        if isinstance(i, Move) and i.value in maps:
            sent[i.kind] += sum(message_bytes(program, i, m) for m in i.messages)
    width = example.graph.values[example.network.maps[0].name].dtype.itemsize
    expected = volume(example.model, x) * width
    assert sent == Counter({"activation": expected, "gradient": expected})


@given(st.integers(0, 10**6), st.integers(2, 4))
def test_a_coarse_partition_is_a_fine_one(seed: int, parts: int) -> None:
    """All cells of a filter, and its sum, are in the part of the filter."""
    example = case("resnet110-tiny")
    x = random_counts(example.model, parts, seed)
    filters = [
        np.repeat(layout.parts, np.diff(layout.cuts))
        for layout in layouts_of_counts(example.network, x)
    ]
    cells = [
        np.repeat(owners, explicit.channel_count(example.network, l))
        for l, owners in enumerate(filters)
    ]
    hypergraph = explicit.fine(example.network, example.model)
    assert explicit.km1(hypergraph, np.concatenate([*cells, *filters])) == volume(example.model, x)
    assert hypergraph.weight.sum() == pytest.approx(example.model.total_work)


def test_connectivity_by_hand() -> None:
    """Two nets over three vertices in two parts."""
    h = explicit.Hypergraph(
        np.ones(3), np.array([5, 7]), np.array([0, 2, 5]), np.array([0, 1, 0, 1, 2])
    )
    assert explicit.km1(h, np.array([0, 0, 1])) == 7
    assert explicit.km1(h, np.array([0, 1, 2])) == 5 + 2 * 7
    assert explicit.km1(h, np.array([1, 1, 1])) == 0


def test_the_published_cuts_of_vgg16() -> None:
    """The thesis's layer-wise volumes in Mi elements: one cut in block 3; each layer in its own part."""
    import torch

    from raddle import zoo

    workload = zoo.load("vgg16", batch=32, dtype=torch.float32)
    counts = build_count_model(
        build_network(capture(workload.model, workload.batch, workload.loss, name=workload.name))
    )
    cut = np.zeros((16, 2), np.int64)
    cut[:6, 0], cut[6:, 1] = counts.units[:6], counts.units[6:]
    assert volume(counts, cut) / 2**20 == 24.5
    assert volume(counts, np.diag(counts.units)) / 2**20 == pytest.approx(273.58, abs=0.01)
