"""A plan that does not fit its graph is refused with the reason."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_plans import random_plan
from small_models import MODELS, make_plan, mlp, small
from torch import nn

from raddle.errors import InputError
from raddle.graph.capture import capture
from raddle.graph.supervised import supervised
from raddle.plans.notation import read_tiling
from raddle.plans.plan import Plan
from raddle.plans.tiling import Grid
from raddle.plans.validation import validate, validate_tiling

FC1 = next(op for op in mlp().ops if op.name == "fc1")  # y[n c] += x[n k] * w[c k] + b[c]: 2 8 4


@given(model=st.sampled_from(MODELS), devices=st.integers(1, 5), seed=st.integers(0, 10_000))
def test_random_plans_are_legal(model: str, devices: int, seed: int) -> None:
    graph = small(model)[1]
    validate(random_plan(graph, devices, seed), graph)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[0:2 0:8 0:3]@0 [0:2 0:8 2:4]@1", "tiles of 'fc1' overlap"),
        ("[0:2 0:8 0:2]@0 [0:2 0:8 3:4]@1", r"tiles of 'fc1' leave a hole in \[0:2 0:8 0:4\]"),
        ("[0:2 0:8 0:4]@0 [0:2 0:8 0:4]@0", "two copies of a tile on one device"),
        ("[0:2 0:8]@0", r"'fc1' has 3 dimensions, its tile \[0:2 0:8\] has 2"),
        ("[0:2 0:9 0:4]@0", r"tile \[0:2 0:9 0:4\] of 'fc1' is not inside \[0:2 0:8 0:4\]"),
        ("[0:2 0:8 4:4]@0 [0:2 0:8 0:4]@1", "is not inside"),  # empty
        ("[0:2 0:8 0:4]@7", "'fc1' has a tile on device 7, but the plan has devices 0 to 1"),
        ("@2", "has a tile on device 2, but the plan has devices 0 to 1"),
        ("n/2 @0", "'fc1' has 2 tiles in 1 copies, but 1 devices"),
        ("n/2 c/2 @0,1", "'fc1' has 4 tiles in 1 copies, but 2 devices"),
        ("n/2 x2 @0,1", "'fc1' has 2 tiles in 2 copies, but 2 devices"),
        ("x2 @0,0", "'fc1' has two copies of a tile on one device"),
        ("c/(5,4) @0,1", "tiles of 'fc1' cover c from 0 to 9, not 0 to 8"),
        ("c/(5,2) @0,1", "tiles of 'fc1' cover c from 0 to 7, not 0 to 8"),
        ("c/(8,0) @0,1", r"cannot be cut at \(0, 8, 8\) along c, which has 8 elements"),
        ("c/2 @1-0", "2 tiles in 1 copies, but 0 devices"),
    ],
)
def test_refuses_a_tiling(text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        validate_tiling(FC1, read_tiling(FC1, text), 2)


def test_refuses_the_wrong_number_of_dimensions() -> None:
    with pytest.raises(InputError, match="'fc1' has 3 dimensions, its tiles have 1"):
        validate_tiling(FC1, Grid(((0, 2),), (0,)), 1)


@pytest.mark.parametrize("text", ["{}/(1,2) @0,1", "[{} 0:1]@0 [{} 1:3]@1"])
def test_refuses_to_split_what_is_whole(text: str) -> None:
    graph = capture(
        nn.Conv2d(3, 2, 3), (torch.zeros(2, 3, 4, 4),), supervised(lambda y: y.sum(), targets=0)
    )
    conv = graph.ops[0]
    *others, last = conv.space.dims  # a dimension of the window
    assert (last.unsplittable, last.size) == (True, 3)
    boxes = " ".join(f"0:{d.size}" for d in others)
    tiling = read_tiling(conv, text.replace("{}", boxes if "[" in text else last.name))
    with pytest.raises(InputError, match=f"cannot be split along {last.name}: it is taken whole"):
        validate_tiling(conv, tiling, 2)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"bn": "sometimes"}, "bn is 'sometimes': choose one of global, local"),
        ({"sync": "pigeon"}, "sync is 'pigeon': choose as in allreduce"),
        ({"fingerprint": "0123", "model": "vgg16"}, "was made for 'vgg16' at batch 0"),
    ],
)
def test_refuses_a_plan(change: dict[str, Any], reason: str) -> None:
    plan = make_plan(mlp(), {}, 1)
    validate(plan, mlp())
    with pytest.raises(InputError, match=reason):
        validate(dataclasses.replace(plan, **change), mlp())


def test_refuses_operators_that_are_not_there() -> None:
    plan = make_plan(mlp(), {}, 1)
    with pytest.raises(InputError, match="the plan has no tiles for 'relu'"):
        validate(Plan({k: v for k, v in plan.tiles.items() if k != "relu"}, 1), mlp())
    with pytest.raises(InputError, match="the plan has tiles for 'conv9', which"):
        validate(Plan({**plan.tiles, "conv9": plan.tiles["relu"]}, 1), mlp())
