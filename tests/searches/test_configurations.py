"""Groups and configurations: every operator is in one group, and every configuration is a legal plan."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import small

from raddle.clusters import cluster
from raddle.graph.graph import Graph
from raddle.plans.notation import write_tiling
from raddle.plans.plan import Plan
from raddle.plans.validation import validate
from raddle.program.lower import lower
from raddle.program.program import Move
from raddle.searches.configurations import Configuration, cut_points, degrees, tiles
from raddle.searches.grids import batch_independent
from raddle.searches.groups import BEFORE, find_groups
from raddle.searches.plan_space import PlanSpace, proportional_shares
from raddle.searches.settings import Settings

MODELS = (
    "lenet-tiny", "resnet50-tiny", "unet-tiny", "inception_v3-tiny", "nmt-tiny", "rnnlm-tiny",
    "gpt-tiny", "alexnet-tiny", "mlp-tiny",
)  # fmt: skip


def graph_of(name: str) -> Graph:
    return small(name)[1]


def text(graph: Graph, group: int, parts: dict[str, int]) -> dict[str, str]:
    """The tiles of the members of a group as text, given the number of parts of some letters."""
    group_ = find_groups(graph)[group]
    counts = tuple(parts.get(letter, 1) for letter in group_.letters)
    tilings = tiles(group_, Configuration(counts, tuple(range(math.prod(counts)))))
    return {name: write_tiling(graph.op(name), tiling) for name, tiling in tilings.items()}


@pytest.mark.parametrize("model", MODELS)
def test_every_operator_is_in_one_group_or_depends_on_no_sample(model: str) -> None:
    graph = graph_of(model)
    names = [name for group in find_groups(graph) for name in group.ops]
    assert len(names) == len(set(names))
    assert set(names) == {op.name for op in graph.ops} - batch_independent(graph)
    for group in find_groups(graph):
        seen: set[str] = set()
        for member in group.members:
            assert not member.ref or member.ref in seen
            seen.add(member.op.name)


@settings(max_examples=40)
@given(model=st.sampled_from(MODELS), seed=st.integers(0, 2**30), reduction=st.booleans())
def test_every_configuration_is_a_legal_plan(model: str, seed: int, reduction: bool) -> None:
    graph, rng = graph_of(model), random.Random(seed)
    space = PlanSpace(
        graph, cluster("p100:1x4"), Settings(reduction=reduction, powers_of_two=False)
    )
    chosen = [
        space.on_random_devices(rng.choice(space.degrees(g)), rng) for g in range(len(space.groups))
    ]
    plan = Plan(space.tiles(chosen), 4, bn="global")
    validate(plan, graph)
    lower(graph, plan)
    for g, configuration in enumerate(chosen):
        read_back = space.configuration_of(g, plan.tiles)
        assert read_back is None or read_back == configuration


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("letter", ["n", "c"])
def test_a_group_moves_nothing_inside(model: str, letter: str) -> None:
    """A member after the anchor, which works element by element, reads only what its own device has."""
    graph = graph_of(model)
    space = PlanSpace(graph, cluster("p100:1x2"), Settings())
    chosen = []
    for group in space.groups:
        splittable = letter in group.letters and group.sizes[group.letters.index(letter)] >= 2
        parts = tuple(2 if splittable and x == letter else 1 for x in group.letters)
        chosen.append(Configuration(parts, tuple(range(math.prod(parts)))))
    plan = Plan(space.tiles(chosen), 2, bn="local")
    large = {
        i.value for i in lower(graph, plan).instructions
        if isinstance(i, Move) and i.kind == "activation"
    }  # fmt: skip
    producer = {o: op.name for op in graph.ops for o in op.outputs}
    for group in space.groups:
        for member in group.members:
            wide = sum(dim.size > 1 for dim in member.op.space.dims) > 1
            if member.how == "after" and wide:
                value = member.op.inputs[member.operand]
                others = [op for op in graph.ops if value in op.inputs and op.name not in group.ops]
                assert value not in large or others or producer[value] not in group.ops


def test_members_follow_their_anchor() -> None:
    graph = graph_of("resnet50-tiny")
    assert text(graph, 0, {"n": 2, "c": 2}) == {
        "conv1": "n/2 c/2 @0-3",
        "bn1.moments": "c/2 n/2 @0,2,1,3",
        "bn1": "n/2 c/2 @0-3",
        "bn1.running": "c/2 x2 @0,2,1,3",
        "relu": "n/2 c/2 @0-3",
    }


def test_what_comes_before_is_computed_as_it_is_read() -> None:
    graph = graph_of("alexnet-tiny")
    groups = find_groups(graph)
    g = next(i for i, group in enumerate(groups) if group.name == "classifier.1")
    assert {m.op.name for m in groups[g].members if m.how == BEFORE} == {"reshape"}
    assert text(graph, g, {"c": 2})["reshape"] == "x2 @0-1"
    assert text(graph, g, {"k": 2})["reshape"] == "c/2 @0-1"
    assert text(graph, g, {"n": 2})["reshape"] == "n/2 @0-1"


def test_a_split_sum_is_divided_among_those_that_have_parts_of_it() -> None:
    graph = graph_of("mlp-tiny")
    first, second = text(graph, 0, {"k": 2}).values()
    assert first == "k/2 @0-1"
    assert second == "c/2 @0-1"  # its 24 channels are more than its 8 samples


def test_degrees_are_counted_as_in_the_paper() -> None:
    graph = graph_of("alexnet-tiny")
    conv = next(group for group in find_groups(graph) if group.letters == ("n", "c", "h", "w", "k"))
    wide = type(conv)(conv.members, conv.letters, (1024,) * 5, conv.reduced)
    counts = [len(list(degrees(wide, n))) for n in (4, 16, 64, 256, 1024)]
    assert counts == [15, 70, 210, 495, 1001]
    assert [parts[0] for parts in degrees(wide, 12) if set(parts[1:]) == {1}] == [
        1,
        2,
        3,
        4,
        6,
        8,
        12,
    ]
    all_degrees = list(degrees(wide, 6, powers_of_two=False, reduction=True))
    assert len(all_degrees) == len(set(all_degrees))
    assert all(math.prod(parts) <= 6 for parts in all_degrees)
    assert (3, 1, 1, 1, 2) in all_degrees


@given(st.integers(1, 50), st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_cuts_follow_shares(extra: int, shares: list[int]) -> None:
    size = len(shares) + extra
    cuts = cut_points(size, len(shares), shares)
    assert cuts[0] == 0
    assert cuts[-1] == size
    assert all(a < b for a, b in pairwise(cuts))
    scaled = cut_points(3 * sum(shares), len(shares), shares)
    assert [b - a for a, b in pairwise(scaled)] == [3 * s for s in shares]


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=8), st.integers(0, 100))
def test_what_is_shared_out_adds_up(weights: list[float], extra: int) -> None:
    total = len(weights) + extra
    shares = proportional_shares(total, weights)
    assert sum(shares) == total
    assert min(shares) >= 1
