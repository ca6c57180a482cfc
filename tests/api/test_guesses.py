"""What a new user tries first: each guess is answered by the thing, or by a sentence that names it."""

from __future__ import annotations

import pathlib
import pydoc
from collections.abc import Callable
from typing import Any

import pytest

import raddle


@pytest.fixture(scope="module")
def result() -> raddle.PlanResult:
    return raddle.plan("mlp-tiny", 8, cluster="local:2", method="data")


# A guess -> how to try it with a result, and either None (it works) or words of the sentence.
GUESSES: dict[str, tuple[Callable[[Any], object], str | None]] = {
    "raddle.simulate": (lambda result: raddle.simulate(result), None),
    "raddle.compare": (
        lambda _: raddle.compare("mlp-tiny", 8, cluster="local:2", methods=["data"]),
        None,
    ),
    "raddle.verify": (lambda result: raddle.verify(result, steps=1, threads=True), None),
    "raddle.explain": (lambda _: raddle.explain, "return a result with explain"),  # type: ignore[attr-defined]
    "raddle.save": (lambda _: raddle.save, "returns a result with save"),  # type: ignore[attr-defined]
    "raddle.load": (lambda _: raddle.load, "raddle.load_plan"),  # type: ignore[attr-defined]
    "raddle.run": (lambda _: raddle.run, "raddle.parallelize .* `raddle run plan.json`"),  # type: ignore[attr-defined]
    "raddle.Plan": (lambda _: raddle.Plan, "raddle.plans.plan.Plan"),  # type: ignore[attr-defined]
    "raddle.plan(...)": (
        lambda _: raddle.plan("mlp-tiny", 8, cluster="local:2", method="data"),
        None,
    ),
    "plan.save": (lambda result: result.plan.save, "result.save"),
    "plan.step_ms": (lambda result: result.plan.step_ms, "result.step_ms"),
    "plan._repr_html_": (lambda result: result.plan._repr_html_, "result._repr_html_"),
    "search(model, …)": (lambda _: raddle.search, "raddle.plan.* searches a plan"),  # type: ignore[attr-defined]
    'search(g, "h100:1x4")': (
        lambda result: raddle.search(result.graph, "h100:1x4"),  # type: ignore[attr-defined]
        "raddle.plan.* searches a plan",
    ),
    "report(g, c, methods=…)": (
        lambda result: raddle.report(result.graph, result.cluster, methods=["data"]),
        r"takes results, not a Graph: .* raddle.report\(raddle.compare\(..., methods=",
    ),
}


def test_there_are_fifteen_guesses() -> None:
    assert len(GUESSES) == 15


@pytest.mark.parametrize("guess", GUESSES)
def test_a_guess_is_answered(guess: str, result: raddle.PlanResult) -> None:
    use, sentence = GUESSES[guess]
    if sentence is None:
        assert use(result) is not None
        return
    with pytest.raises((AttributeError, raddle.InputError), match=sentence) as error:
        use(result)
    assert str(error.value).endswith(".")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["save", "step_ms", "_repr_html_"])
def test_a_result_called_plan_has_what_is_guessed(
    name: str, result: raddle.PlanResult, tmp_path: pathlib.Path
) -> None:
    value = getattr(result, name)
    assert value(tmp_path / "p.json") is None if name == "save" else value


def test_there_is_room_for_two_names_more() -> None:
    """Fifteen public names at most: `sweep` and `capacity` come later."""
    assert len(raddle.__all__) <= 13


def test_the_first_screen_of_help_has_every_name() -> None:
    lines = pydoc.plain(pydoc.render_doc(raddle)).splitlines()
    screen = "\n".join(lines[:24])
    assert [name for name in raddle.__all__ if name not in screen] == []
    assert "PACKAGE CONTENTS" in "\n".join(lines[:26])
    assert max(map(len, lines[:24])) <= 113
