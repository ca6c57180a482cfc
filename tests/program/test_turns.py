"""Sums of slices start in the order of the plan, each as early as possible."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_models import make_plan, mlp

from raddle.errors import InputError
from raddle.program.checks.check import check
from raddle.program.lower import lower
from raddle.program.parameter_slices import numbered_slices
from raddle.program.program import Program, Reduce, Run, Update
from raddle.program.turns import Turns


@given(st.data())
def test_all_leave_in_their_order_as_early_as_they_may(data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(data.draw(st.integers(1, 8)))))
    coming = data.draw(st.permutations(order))
    turns, left, complete = Turns(order), list[int](), set[int]()
    for number in coming:
        complete.add(number)
        left += turns.complete([number])
        assert left == order[: len(left)]
        assert len(left) == len(order) or order[len(left)] not in complete
        assert set(turns.waiting) == complete - set(left)
    assert left == list(order)


def test_without_an_order_they_leave_as_they_come() -> None:
    turns = Turns()
    assert [turns.complete([n]) for n in (2, 0, 1)] == [[2], [0], [1]]
    assert turns.waiting == []


def data_parallel(**more: Any) -> Program:
    """Slices 0 and 1 are the weight of fc1, 2 its bias, 3 the weight of fc2, 4 its bias."""
    tiles = dict.fromkeys(("fc1", "relu", "fc2", "sum"), "n/2 @0,1")
    return lower(mlp(), make_plan(mlp(), tiles, 2, sync="p3:collective,slice=16,unbundled", **more))


def picture(program: Program) -> str:
    """Draws the program: B2 is the backward of fc2, numbers are the slices whose sums start."""
    number = {(b.parameters, b.slices): n for n, b in enumerate(program.bundles)}
    words = []
    for i in program.instructions:
        if isinstance(i, Run) and i.phase == "B" and i.op.startswith("fc"):
            words.append(f"B{i.op[-1]}")
        elif isinstance(i, Reduce):
            words.append(str(number[i.parameters, i.regions[0]]))
    return " ".join(words)


def test_slices_are_numbered_by_parameter() -> None:
    starts = [(name, slice_.box.lo[:1]) for name, slice_ in numbered_slices(data_parallel().slices)]
    assert starts == [
        ("fc1.weight", (0,)), ("fc1.weight", (4,)), ("fc1.bias", (0,)), ("fc2.weight", (0,)),
        ("fc2.bias", (0,)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ((), "B2 3 4 B1 0 1 2"),
        ((3, 4, 0, 1, 2), "B2 3 4 B1 0 1 2"),
        ((4, 2, 0, 1, 3), "B2 4 B1 2 0 1 3"),  # fc2's weight is overtaken
        ((0, 1, 2, 3, 4), "B2 B1 0 1 2 3 4"),
        ((3, 0, 4, 2, 1), "B2 3 B1 0 4 2 1"),
    ],
)
def test_a_sum_leaves_when_it_is_complete_and_its_turn(
    order: tuple[int, ...], expected: str
) -> None:
    program = data_parallel(order=order, steps=2)
    assert picture(program) == f"{expected} {expected}"
    check(program)


def test_a_forward_waits_for_its_own_parameters_alone() -> None:
    program = data_parallel(order=(4, 2, 0, 1, 3), steps=2)
    for op in ("fc1", "fc2"):
        forward = next(
            i
            for i in program.instructions
            if isinstance(i, Run) and (i.op, i.phase, i.key.step) == (op, "F", 1)
        )
        waits = {program.instructions[d] for d in forward.deps}
        updates = [i for i in waits if isinstance(i, Update)]
        assert {i.parameter for i in updates} == {f"{op}.weight", f"{op}.bias"}
        assert len(updates) == (3 if op == "fc1" else 2)


def test_slices_of_one_device_wait_for_nobody() -> None:
    tiles = {"fc1": "n/2 @0,1", "relu": "n/2 @0,1", "fc2": "@1", "sum": "@1"}
    plan = make_plan(
        mlp(), tiles, 2, sync="p3:collective,slice=16,unbundled", order=(0, 1, 2, 3, 4)
    )
    program = lower(mlp(), plan)
    assert picture(program) == "B2 B1 0 1 2"
    at = [n for n, i in enumerate(program.instructions) if isinstance(i, Update)]
    assert program.instructions[at[0]].parameter.startswith("fc2")  # type: ignore[union-attr]
    check(program)


def test_an_order_of_other_slices_is_refused() -> None:
    with pytest.raises(InputError, match="orders 3 sums of bundles, but its parameters have 5"):
        data_parallel(order=(0, 1, 2))
    with pytest.raises(InputError, match="is no permutation of their numbers from 0 on"):
        data_parallel(order=(0, 1, 1, 2, 3))
    program = data_parallel(order=(4, 3, 2, 1, 0))
    with pytest.raises(InputError, match="leave the order out, or use p3:collective"):
        lower(mlp(), replace(program.plan, sync="p3"))
