"""`search_s` and budgets do not count the time in which numba compiles or a model is captured again.

The tests have a fake clock, which only compiling, capturing and searching move forward.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from numba import njit
from numba.core.event import Event, Listener, install_listener
from small_models import small
from torch import nn

from raddle.clusters import cluster
from raddle.graph import capture as capturing
from raddle.graph.capture import capture
from raddle.graph.supervised import supervised
from raddle.searches.baselines import BASELINES
from raddle.searches.comparison import plan_and_predict
from raddle.searches.settings import Settings
from raddle.searches.stopwatch import Clock, Stopwatch

COMPILING, SEARCHING = 1000.0, 1.0  # seconds


class Time:
    """A fake clock in place of perf_counter."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Compiling(Listener):
    """Moves the fake clock whenever numba has compiled a function."""

    def __init__(self, time: Time) -> None:
        self.time = time

    def on_start(self, event: Event) -> None:
        """Nothing: the stopwatch may get this event after this listener, so time passes at the end."""

    def on_end(self, event: Event) -> None:
        self.time.now += COMPILING


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    """The fake clock, in all modules that may read the time."""
    time = Time()
    for module in ("stopwatch", "comparison", "settings"):
        monkeypatch.setattr(f"raddle.searches.{module}.perf_counter", time, raising=False)
    return time


def compiles() -> int:
    """Makes numba compile two functions, the inner one during the compilation of the outer one."""
    inner = njit(lambda x: x + 1)
    outer = njit(lambda x: inner(x) * 2)
    return outer(20)  # type: ignore[no-any-return]


def test_what_is_compiled_amid_a_search_does_not_count(
    time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = BASELINES["data"]

    def slow(*arguments: Any) -> Any:
        time.now += SEARCHING
        assert compiles() == 42
        return real(*arguments)

    monkeypatch.setitem(BASELINES, "data", slow)
    with install_listener("numba:compile", Compiling(time)):
        row = plan_and_predict(small("mlp-tiny")[1], cluster("p100:1x2"), "data").row
    assert time.now >= 2 * COMPILING
    assert row["search_s"] == SEARCHING


def test_what_is_captured_amid_a_search_does_not_count(
    time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).to("meta")
    graph = capture(model, (torch.zeros(4, 4, device="meta"),), supervised(torch.sum, targets=0))
    real = capturing.capture_step  # which captures again too

    def slow(*arguments: Any, **named: Any) -> Any:
        time.now += COMPILING
        return real(*arguments, **named)

    monkeypatch.setattr(capturing, "capture_step", slow)
    assert graph.for_batch(3).batch == 3
    assert time.now == COMPILING  # capturing again moved the clock
    row = plan_and_predict(
        graph, cluster("p100:1x2"), "pipeline", settings=Settings(budget=1.0)
    ).row
    assert time.now > COMPILING
    assert row["search_s"] == 0


def test_pauses_inside_of_pauses_count_once(time: Time) -> None:
    watch = Stopwatch()
    clock = Clock(2.0, watch)
    with watch.paused():
        time.now += 5
        with watch.paused():
            time.now += 5
        assert watch.seconds == 0
    assert not clock.expired
    time.now += 2
    assert (watch.seconds, clock.seconds, clock.expired) == (2, 2, True)
