"""The helpers of the checks: progress of a replay, dependencies, and boxes that are held and sent."""

import pytest
from small_models import make_plan, mlp

from raddle.errors import InputError
from raddle.graph.box import Box
from raddle.program.checks.boxes import boxes_by_holder, boxes_by_path, subtract_all
from raddle.program.checks.refuse import check_waits_for
from raddle.program.checks.replay_progress import ReplayProgress
from raddle.program.checks.variant_facts import VariantFacts
from raddle.program.lower import lower
from raddle.program.parameter_region import ParameterRegion
from raddle.program.program import Message, Move, Program


def program(**more: object) -> Program:
    return lower(mlp(), make_plan(mlp(), {"relu": "@1", "fc2": "@1", "sum": "@1"}, 2, **more))


def test_an_instruction_is_done_once_and_comes_after_what_it_uses() -> None:
    lowered = program()
    progress = ReplayProgress(lowered, range(len(lowered.instructions)))
    with pytest.raises(InputError, match="too early"):
        progress.require_done("fc1", "F", "too early")
    progress.mark_done("fc1", "F")
    progress.position = next(n for n, i in enumerate(lowered.instructions) if isinstance(i, Move))
    progress.require_done("fc1", "F", "too early")  # it waits for it
    with pytest.raises(InputError, match="it is there twice"):
        progress.mark_done("fc1", "F")


def test_who_does_not_wait_is_refused_with_what_it_should_wait_for() -> None:
    lowered = program()
    move = next(n for n, i in enumerate(lowered.instructions) if isinstance(i, Move))
    check_waits_for(lowered, move, lowered.instructions[move].deps)
    with pytest.raises(InputError, match="it does not wait for"):
        check_waits_for(lowered, move, [len(lowered.instructions) - 1])


@pytest.mark.parametrize(
    ("split", "phases"), [(False, ["FB"] * 4), (True, ["FW", "FB", "FBW", "FB"])]
)
def test_phases_follow_from_what_has_a_gradient(split: bool, phases: list[str]) -> None:
    lowered = program(split_backward=split)
    facts = VariantFacts(lowered, {}, lowered.variants[0])
    assert [facts.phases(op) for op in lowered.graph.ops] == phases


def test_boxes() -> None:
    whole, half = Box((0,), (4,)), Box((0,), (2,))
    assert subtract_all([whole], [half]) == [Box((2,), (4,))]
    assert boxes_by_holder([ParameterRegion(half, (0, 1)), ParameterRegion(Box((2,), (4,)), (1,))])[
        1
    ] == [
        half,
        Box((2,), (4,)),
    ]
    assert boxes_by_path([Message(0, 1, (half,)), Message(0, 1, (whole,))]) == {
        (0, 1, -1): [half, whole]
    }
