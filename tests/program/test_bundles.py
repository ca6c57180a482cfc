"""Slices and bundles of parameters: what `cut_slices` and `join_slices` promise, on random sizes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_plans import random_plan
from small_models import make_plan, mlp, small

from raddle.errors import InputError
from raddle.program.bundle import Bundle
from raddle.program.checks.check import check
from raddle.program.lower import lower
from raddle.program.message_kind import MessageKind
from raddle.program.parameter_slices import join_slices
from raddle.program.program import Move, Program, Update, message_bytes

HOLDERS = ((0, 1), (0, 2), (1,))
DTYPES = (torch.float32, torch.float64)


@given(
    st.lists(st.tuples(st.integers(1, 30), st.sampled_from(HOLDERS), st.sampled_from(DTYPES))),
    st.integers(0, 40),
)
def test_neighbours_are_joined_up_to_the_limit(
    slices: list[tuple[int, tuple[int, ...], torch.dtype]], limit: int
) -> None:
    sizes, keys = [n for n, *_ in slices], [(holders, dtype) for _, holders, dtype in slices]
    joined = join_slices(sizes, keys, limit)
    assert sorted(s for members in joined for s in members) == list(range(len(slices)))
    assert joined == sorted(joined)
    for members in joined:
        assert len({keys[s] for s in members}) == 1
        assert len(members) == 1 or sum(sizes[s] for s in members) <= limit
    for key in set(keys):
        alike = [members for members in joined if keys[members[0]] == key]
        assert [s for members in alike for s in members] == [
            s for s, k in enumerate(keys) if k == key
        ]
        for before, after in pairwise(alike):  # no bundle ends too early
            assert sum(sizes[s] for s in before) + sizes[after[0]] > limit


def bundled(sync: str = "p3:slice=30", **more: Any) -> Program:
    tiles = dict.fromkeys(("fc1", "relu", "fc2", "sum"), "n/2 @0,1")
    return lower(mlp(), make_plan(mlp(), tiles, 2, sync=sync, **more))


@pytest.mark.parametrize(
    "sync", ["p3:slice=9", "ps:slice=9", "p3:collective,slice=9", "ps:async,slice=9"]
)
@pytest.mark.parametrize("seed", range(4))
def test_every_slice_is_in_one_bundle(sync: str, seed: int) -> None:
    graph = small("lenet-tiny")[1]
    program = lower(graph, random_plan(graph, 3, seed, sync=sync))
    check(program)
    bundles = [pair for b in program.bundles for pair in zip(b.parameters, b.slices, strict=True)]
    slices = [(name, s) for name, cut in program.slices.items() for s in cut]
    assert sorted(map(repr, bundles)) == sorted(map(repr, slices))
    assert len(program.bundles) <= len(slices)


def test_a_bundle_is_one_message_each_way_and_one_update() -> None:
    program, alone = bundled(), bundled("p3:slice=30,unbundled")
    moves, moves_alone = _moves(program), _moves(alone)
    updates = [i for i in program.instructions if isinstance(i, Update)]
    assert len(updates) == len(program.bundles) < len(alone.bundles)
    assert len(moves) == 2 * len(program.bundles) < len(moves_alone)
    assert _bytes(program, moves) == _bytes(alone, moves_alone)
    for update in updates:  # the first parameter is the most urgent one
        assert program.priority[update.parameter] == min(
            program.priority[name] for name in update.parameters
        )


def test_a_bundle_waits_for_the_gradients_of_all_its_parameters() -> None:
    program = bundled()
    for number, i in enumerate(program.instructions):
        if isinstance(i, Move) and i.kind == MessageKind.PUSH and len(set(i.values)) > 1:
            with pytest.raises(InputError, match="wait"):
                check(_without_dep(program, number, max(i.deps)))
            return
    raise AssertionError("no bundle has several parameters")


def test_a_bundle_of_other_slices_is_refused() -> None:
    program = bundled()
    first, *others = program.bundles
    with pytest.raises(InputError, match="do not have each slice"):
        check(replace(program, bundles=tuple(others)))
    server = 1 - first.server
    mixed = Bundle(first.parameters, (first.slices[0]._replace(server=server), *first.slices[1:]))
    with pytest.raises(InputError, match="bundle"):
        check(replace(program, bundles=(mixed, *others)))


def _moves(program: Program) -> list[Move]:
    """The moves of parameters; others send partial results of the loss."""
    moves = (i for i in program.instructions if isinstance(i, Move))
    return [i for i in moves if i.kind.is_of_parameter]


def _bytes(program: Program, moves: list[Move]) -> int:
    return sum(message_bytes(program, i, m) for i in moves for m in i.messages)


def _without_dep(program: Program, number: int, dep: int) -> Program:
    instructions = list(program.instructions)
    deps = tuple(d for d in instructions[number].deps if d != dep)
    instructions[number] = replace(instructions[number], deps=deps)
    return replace(program, instructions=tuple(instructions))
