"""Operations on boxes, compared with the same operations on sets of points."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from raddle.graph.box import Box, bounding_box, cells, covers, disjoint, grid, merge_boxes, subtract

Points = set[tuple[int, ...]]


def points(box: Box) -> Points:
    return set(itertools.product(*map(range, box.lo, box.hi)))


@st.composite
def boxes(draw: Any, rank: int) -> Box:
    lo = [draw(st.integers(0, 4)) for _ in range(rank)]
    return Box(tuple(lo), tuple(a + draw(st.integers(0, 4)) for a in lo))


@st.composite
def lists_of_boxes(draw: Any, least: int, most: int) -> list[Box]:
    rank = draw(st.integers(0, 3))
    return [draw(boxes(rank)) for _ in range(draw(st.integers(least, most)))]


@given(lists_of_boxes(2, 2))
def test_pair(pair: list[Box]) -> None:
    a, b = pair
    assert points(a & b) == points(a) & points(b)
    pieces = a - b
    assert disjoint(pieces)
    assert set().union(*map(points, pieces)) == points(a) - points(b)
    assert a.contains(b) == (points(b) <= points(a))
    assert a.volume == len(points(a))
    assert a.empty == (not points(a))


@given(lists_of_boxes(1, 5))
def test_many(some_boxes: list[Box]) -> None:
    first, *others = some_boxes
    union: Points = set().union(*map(points, others))
    assert set().union(*map(points, subtract(first, others))) == points(first) - union
    assert covers(others, first) == (points(first) <= union)
    assert disjoint(some_boxes) == (sum(b.volume for b in some_boxes) == len(union | points(first)))
    assert all(bounding_box(some_boxes).contains(b) for b in some_boxes)


@given(lists_of_boxes(1, 5))
def test_cells(some_boxes: list[Box]) -> None:
    owners: dict[tuple[int, ...], tuple[int, ...]] = {}
    for i, box in enumerate(some_boxes):
        for p in points(box):
            owners[p] = (*owners.get(p, ()), i)
    ours = {p: who for cell, who in cells(some_boxes) for p in points(cell)}
    assert ours == owners
    assert disjoint([cell for cell, _ in cells(some_boxes)])


@given(lists_of_boxes(1, 4))
def test_merge(some_boxes: list[Box]) -> None:
    pieces = [cell for cell, _ in cells(some_boxes)]
    merged = merge_boxes(pieces)
    assert len(merged) <= len(pieces)
    assert disjoint(merged)
    assert set().union(*map(points, merged)) == set().union(*map(points, pieces))


def test_merge_joins_a_grid() -> None:
    assert merge_boxes(grid((6, 4, 2), (3, 2, 2))) == [Box.full((6, 4, 2))]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4)), max_size=3))
def test_grid(pairs: list[tuple[int, int]]) -> None:
    shape, cuts = [s for s, _ in pairs], [c for _, c in pairs]
    tiles = grid(shape, cuts)
    assert disjoint(tiles)
    assert covers(tiles, Box.full(shape))
    for d in range(len(shape)):
        extents = {b.shape[d] for b in tiles}
        assert max(extents) - min(extents) <= 1


@given(lists_of_boxes(2, 2), st.lists(st.integers(-3, 3), min_size=3, max_size=3))
def test_shift_and_slices(pair: list[Box], by: list[int]) -> None:
    a, _ = pair
    assert a.shift(by[: len(a.lo)]).shape == a.shape
    outer = Box(tuple(x - 1 for x in a.lo), tuple(x + 2 for x in a.hi))
    assert [s.stop - s.start for s in a.slices_within(outer)] == [
        h - x for x, h in zip(a.lo, a.hi, strict=True)
    ]
