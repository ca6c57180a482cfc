"""Tilings as text: what is written is read back, and the error names what cannot be read."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_plans import random_plan, random_tiling
from small_models import MODELS, mlp, small

from raddle.errors import InputError
from raddle.graph.box import Box
from raddle.plans.notation import (
    read_devices,
    read_tiles,
    read_tiling,
    write_devices,
    write_tiles,
    write_tiling,
)
from raddle.plans.tiling import Grid, Irregular, Tile

FC1 = next(op for op in mlp().ops if op.name == "fc1")  # y[n c] += x[n k] * w[c k] + b[c]: 2 8 4


@pytest.mark.parametrize(
    ("text", "tiling"),
    [
        ("@0", Grid(((0, 2), (0, 8), (0, 4)), (0,))),
        ("n/2 @0-1", Grid(((0, 1, 2), (0, 8), (0, 4)), (0, 1))),
        ("n/2 c/2 @0-3", Grid(((0, 1, 2), (0, 4, 8), (0, 4)), (0, 1, 2, 3))),
        ("c/(5,3) @1,0", Grid(((0, 2), (0, 5, 8), (0, 4)), (1, 0))),
        ("c/3 @0-2", Grid(((0, 2), (0, 3, 6, 8), (0, 4)), (0, 1, 2))),
        ("x4 @0-3", Grid(((0, 2), (0, 8), (0, 4)), (0, 1, 2, 3), 4)),
        ("n/2 x2 @0-1,4-5", Grid(((0, 1, 2), (0, 8), (0, 4)), (0, 1, 4, 5), 2)),
        (
            "[0:2 0:8 0:3]@1 [0:2 0:8 3:4]@0",
            Irregular((Tile(Box((0, 0, 0), (2, 8, 3)), 1), Tile(Box((0, 0, 3), (2, 8, 4)), 0))),
        ),
    ],
)
def test_by_hand(text: str, tiling: Grid | Irregular) -> None:
    assert read_tiling(FC1, text) == tiling
    assert write_tiling(FC1, tiling) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("n/2", "'fc1: n/2' names no devices: add @0-3"),
        ("n/2 @", "'@' is no list of devices"),
        ("n/2 @0-", "'@0-' is no list of devices"),
        ("n:2 @0,1", "'n:2' in the tiles of 'fc1' is no split: write n/2"),
        ("h/2 @0,1", "'fc1' has no dimension h: its dimensions are n c k"),
        ("n/3 @0-2", "cannot be split into 3 along n, which has 2 elements"),
        ("n/0 @0", "cannot be split into 0 along n"),
        ("[0:2 0:8 0:4] @0", "is no list of boxes"),
    ],
)
def test_what_cannot_be_read(text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        read_tiling(FC1, text)


def test_an_unknown_operator() -> None:
    with pytest.raises(InputError, match="'fc9: @0' names no operator"):
        read_tiles(mlp(), "# comment\n\nfc1: @0\nfc9: @0\n")


@given(st.lists(st.integers(0, 40), min_size=1, max_size=12))
def test_devices_round_trip(devices: list[int]) -> None:
    assert list(read_devices(write_devices(devices))) == devices


@given(model=st.sampled_from(MODELS), devices=st.integers(1, 5), seed=st.integers(0, 10_000))
def test_text_round_trips(model: str, devices: int, seed: int) -> None:
    graph = small(model)[1]
    tiles = random_plan(graph, devices, seed).tiles
    text = write_tiles(graph, tiles)
    assert read_tiles(graph, text) == tiles
    assert write_tiles(graph, read_tiles(graph, text)) == text


@given(seed=st.integers(0, 10_000))
def test_every_kind_of_tiling_is_drawn(seed: int) -> None:
    rng = random.Random(seed)
    drawn = [random_tiling(FC1, 3, rng) for _ in range(60)]
    assert {type(t) for t in drawn} == {Grid, Irregular}
    assert any(isinstance(t, Grid) and t.copies > 1 for t in drawn)
