"""Every method ends soon after its budget, however much there is to search: S becomes 1.2 x S + 2 at most.

No duration is measured. The clock of these tests counts the function calls of Python: it moves on whether
or not a search looks at it. So a loop that does not look at the clock is noticed as well. What is compiled
makes no calls, so the clock also moves on with every look.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Any

import pytest
from small_models import small

from raddle.clusters import cluster
from raddle.errors import InputError, OutOfTime
from raddle.searches.comparison import plan_and_predict
from raddle.searches.planning import build_plan, run_method
from raddle.searches.registry import METHODS, jit_functions_of
from raddle.searches.settings import Settings
from raddle.searches.stopwatch import Clock, Stopwatch

CALLS_PER_SECOND = 400_000
CALLS_PER_LOOK = 2_000


class CallClock:
    """Shows as seconds how many functions have been called."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> float:
        self.calls += CALLS_PER_LOOK
        return self.calls / CALLS_PER_SECOND

    def count(self, frame: Any, event: str, argument: Any) -> None:
        self.calls += event in ("call", "c_call")


@pytest.fixture(scope="module")
def warm() -> None:
    """Imports modules and compiles functions, or loads them from numba's cache: no search time."""
    for functions in jit_functions_of(METHODS):
        functions.warm_up()
    plan_and_predict(small("mlp-tiny")[1], cluster("h100:1x2"), "megatron")


@pytest.fixture
def clock(warm: None) -> Iterator[CallClock]:
    clock = CallClock()
    sys.setprofile(clock.count)
    yield clock
    sys.setprofile(None)


@pytest.mark.parametrize("budget", [0.0, 2.0])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("model", "machine"), [("gpt-tiny", "h100:2x2"), ("lenet-tiny", "k80:1x8")]
)
def test_it_ends_soon_after_its_budget(
    clock: CallClock, method: str, budget: float, model: str, machine: str
) -> None:
    graph, on = small(model)[1], cluster(machine)
    stopwatch = Stopwatch(clock)
    settings = Settings(budget=budget, stopwatch=stopwatch).with_running_clock()
    try:
        result = run_method(graph, on, method, settings)
    except InputError:
        assert stopwatch.seconds <= 1.2 * budget + 2
        return
    plan = build_plan(graph, on, method, result, settings)
    assert stopwatch.seconds <= 1.2 * budget + 2
    assert plan.tiles  # the best so far


def test_a_part_of_a_search_never_ends_later_than_the_search() -> None:
    now = [0.0]
    clock = Clock(10.0, Stopwatch(lambda: now[0]))
    assert (clock.limit, clock.part(0.2).limit) == (12.0, 3.2)
    now[0] = 9.0
    part = clock.part(0.2)
    assert (part.budget, part.limit, clock.part_of_rest(0.5).budget) == (1.0, 2.1, 0.5)
    now[0] = 11.9
    assert clock.expired
    clock.look()
    for late in (part, clock.part(0.2)):
        now[0] = 12.0
        with pytest.raises(OutOfTime):
            late.look()


def test_a_number_of_proposals_takes_the_place_of_the_budget() -> None:
    clock = Settings(budget=0.0, proposals=5).running_clock
    assert not clock.expired
    clock.look()
    assert clock.progress("chains") == {"step": "chains"}  # when it ends is not known


@pytest.mark.parametrize("method", ["flexflow", "auto"])
def test_the_same_proposals_give_the_same_plan(method: str) -> None:
    graph, on = small("lenet-tiny")[1], cluster("p100:2x2")
    plans = []
    for seconds in (1, 100):  # a fast machine and a slow one
        times = map(float, count(0, seconds))
        stopwatch = Stopwatch(partial(next, times))
        settings = Settings(budget=0.0, proposals=100, seed=3, stopwatch=stopwatch)
        result = run_method(graph, on, method, settings)
        plans.append((build_plan(graph, on, method, result, settings), result.proposals))
    assert plans[0] == plans[1]
    assert plans[0][1] == 100
