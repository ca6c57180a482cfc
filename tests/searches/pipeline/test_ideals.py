"""Ideals and the bytes at their cuts are what their definitions say (pipeline_reference.py)."""

from __future__ import annotations

import numpy as np
import pipeline_reference as reference
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raddle.searches.pipeline.cuts import antichain_bytes, crossing_bytes
from raddle.searches.pipeline.ideals import Ideals, ideals_of, prefix_ideals
from raddle.searches.pipeline.layers import DeviceChain, Layers, predecessors, topological_order


def sets(ideals: Ideals) -> list[frozenset[int]]:
    return [frozenset(ideals.layers_between(0, i)) for i in range(len(ideals))]


@given(reference.graphs(7))
def test_all_ideals_are_found_by_size_with_what_they_cover(successors) -> None:
    ideals = ideals_of(successors)
    ideal_sets = sets(ideals)
    assert ideals.complete
    assert sorted(ideal_sets, key=lambda a: (len(a), sorted(a))) == reference.ideals(successors)
    assert [len(a) for a in ideal_sets] == sorted(len(a) for a in ideal_sets)
    assert list(np.diff(ideals.level_start)) == np.bincount([len(a) for a in ideal_sets]).tolist()
    for i, a in enumerate(ideal_sets):
        covered_numbers = ideals.covered[ideals.covered_start[i] : ideals.covered_start[i + 1]]
        covered = {b for b in ideal_sets if b < a and len(b) == len(a) - 1}
        assert {ideal_sets[x] for x in covered_numbers} == covered
        assert len(covered_numbers) == len(covered)
        inside = ideals.subsets_of(i, np.arange(len(ideal_sets)))
        assert [x for x, b in enumerate(ideal_sets) if b <= a] == inside.tolist()


@given(reference.layered(7))
def test_sums_and_cuts(layers) -> None:
    graph = layers.successors
    for ideals in (ideals_of(graph), prefix_ideals(topological_order(graph))):
        ideal_sets = sets(ideals)
        assert ideals.sums(layers.forward).tolist() == [
            sum(layers.forward[v] for v in a) for a in ideal_sets
        ]
        for count, by_definition in (
            (crossing_bytes, reference.crossing),
            (antichain_bytes, reference.antichain),
        ):
            expected = [by_definition(graph, layers.activation, a) for a in ideal_sets]
            assert count(ideals, layers.activation, graph).tolist() == expected


def test_branches_multiply_and_blocks_add() -> None:
    """0 → (1 → 2 | 3 → 4 → 5) → 6: one ideal before the block, 3 · 4 in it, one after it."""
    assert len(ideals_of([[1, 3], [2], [6], [4], [5], [6], []])) == 1 + 3 * 4 + 1


@pytest.mark.parametrize("layers", [1, 63, 64, 65, 130])
def test_chains_of_more_layers_than_a_word_has_bits(layers) -> None:
    ideals = ideals_of([*([v + 1] for v in range(layers - 1)), []])
    assert sets(ideals) == [frozenset(range(s)) for s in range(layers + 1)]


def test_too_many_ideals_leave_those_of_a_topological_order() -> None:
    successors = [[] for _ in range(12)]  # 4,096 ideals
    assert ideals_of(successors, max_ideals=4096).complete
    ideals = ideals_of(successors, max_ideals=4095)
    assert not ideals.complete
    assert sets(ideals) == [frozenset(range(s)) for s in range(13)]


@given(reference.graphs(7))
def test_a_topological_order_puts_layers_after_what_they_read(successors) -> None:
    order = topological_order(successors)
    read = predecessors(successors)
    assert sorted(order) == list(range(len(successors)))
    assert all(order.index(u) < order.index(v) for v in order for u in read[v])


def test_a_branch_goes_as_far_as_it_can() -> None:
    assert topological_order([[1, 3], [2], [5], [4], [5], []]) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Layers((1,), (1,), (1,), (1,), ((0,),)), r"layers \[0\] wait for each other"),
        (
            lambda: Layers((1, 2), (1,), (1,), (1,), ((),)),
            "1 layers need 1 values in a column, got 2",
        ),
        (lambda: Layers((-1,), (1,), (1,), (1,), ((),)), "at least 0, got -1"),
        (lambda: Layers((), (), (), (), ()), "at least one layer"),
        (
            lambda: DeviceChain((0, 0), (1.0, 1.0), (), ()),
            "2 devices need .* got 2 capacities, 0 bandwidths",
        ),
    ],
)
def test_what_cannot_be_is_refused(make, message) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@given(st.integers(1, 5), st.integers(1, 5))
def test_two_chains_side_by_side(a, b) -> None:
    left = [[v + 1] for v in range(a - 1)] + [[]]
    right = [[a + v + 1] for v in range(b - 1)] + [[]]
    assert len(ideals_of([*left, *right])) == (a + 1) * (b + 1)


def test_a_graph_that_is_far_too_wide_is_a_chain_at_once() -> None:
    """24 chains of 40 layers have 41 ** 24 ideals: the limit must apply before they fill the memory."""
    chains, length = 24, 40
    successors = [[v + 1] if (v + 1) % length else [] for v in range(chains * length)]
    ideals = ideals_of(successors)
    assert not ideals.complete
    assert len(ideals) == chains * length + 1
