"""The order in which nodes are eliminated."""

from __future__ import annotations

import pytest

from raddle.searches.optcnn.elimination_order import (
    components,
    smallest_tables_first,
    two_neighbour_nodes,
)

CHAIN = {0: {1}, 1: {0, 2}, 2: {1}}
RING = {0: {1, 3}, 1: {0, 2}, 2: {1, 3}, 3: {2, 0}}
FOUR = {i: {0, 1, 2, 3} - {i} for i in range(4)}  # a complete graph


def test_components_begin_with_their_root() -> None:
    assert components({**CHAIN, 5: {6}, 6: {5}}) == [[0, 1, 2], [5, 6]]


def test_no_two_neighbours_are_folded_at_once_and_cycles_come_first() -> None:
    assert two_neighbour_nodes(RING) == [0, 2]
    assert two_neighbour_nodes({**RING, 0: {1, 3, 4}, 4: {0, 5}, 5: {4, 6}, 6: {5}}) == [1, 3]
    assert two_neighbour_nodes(CHAIN) == [1]


@pytest.mark.parametrize(("limit", "order"), [(8, [0, 1, 2, 3]), (7, None)])
def test_tables_over_three_nodes_have_a_limit(limit: int, order: list[int] | None) -> None:
    assert smallest_tables_first(FOUR, [2, 2, 2, 2], limit) == order


def test_the_smallest_table_is_made_first() -> None:
    # Eliminating node 0 makes a table over node 1 only, with two entries.
    assert smallest_tables_first(CHAIN, [9, 2, 5], 1)[0] == 0
