"""One candidate's failure never ends `auto` or a comparison: it is reported, and the others compete."""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import pytest
from small_models import small

from raddle.cli import main as cli
from raddle.clusters import cluster
from raddle.errors import FailedCandidate, InputError
from raddle.searches.attempts import Attempts
from raddle.searches.auto import candidates
from raddle.searches.baselines import BASELINES
from raddle.searches.comparison import compare, plan_and_predict
from raddle.searches.settings import Settings

SETTINGS = Settings(budget=0.2, proposals=10)
ON = "p100:1x2"

# The parts of `auto` besides the baselines, and the functions that do them.
PARTS = {
    "optcnn": "raddle.searches.auto.timed_starts.optima",
    "staged optcnn": "raddle.searches.auto.timed_starts.staged_optima",
    "experts": "raddle.searches.auto.timed_starts.expert_starts",
    "split by degrees": "raddle.searches.auto.timed_starts.split_starts",
    "chains": "raddle.searches.auto.method.MultiChain.run",
    "pipeline": "raddle.searches.auto.method.pipeline_candidates",
    "lower bound": "raddle.searches.auto.method.lower_bound",
    "other sync kinds": "raddle.searches.planning.with_fastest_sync",
}


def broken(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("a mistake")


def break_part(patch: pytest.MonkeyPatch, name: str) -> None:
    if name in BASELINES:
        patch.setitem(BASELINES, name, broken)
    else:
        patch.setattr(PARTS[name], broken)


@pytest.fixture(scope="module")
def baselines() -> dict[str, float]:
    """Milliseconds of a step, for each baseline that can be applied."""
    rows = compare(small("mlp-tiny")[1], cluster(ON), list(BASELINES))
    return {row["method"]: row["step_ms"] for row in rows if row["step_ms"] is not None}


def failures(row: dict[str, Any]) -> dict[str, str]:
    return {f["name"]: f["error"] for f in row["failed"] if not f["refused"]}


@pytest.mark.parametrize("name", [*BASELINES, *PARTS])
def test_auto_goes_on_without_a_part_that_fails(
    name: str, baselines: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, on = small("mlp-tiny")[1], cluster(ON)
    break_part(monkeypatch, name)
    with pytest.warns(FailedCandidate, match=f"'{name}' failed and was left out: ZeroDivision"):
        plan, row, _ = plan_and_predict(graph, on, "auto", settings=SETTINGS)
    where = rf"ZeroDivisionError: a mistake ({__file__.rsplit('/')[-1]}:"
    assert failures(row).keys() == {name}
    assert failures(row)[name].startswith(where)
    assert plan.predicted["failed"] == row["failed"]
    assert row["fits"]
    others = [step for method, step in baselines.items() if method != name]
    assert row["step_ms"] <= min(others) * (1 + 1e-9)


def test_a_candidate_that_cannot_be_simulated_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first candidate that is simulated fails; the search goes on with the others."""
    graph, on = small("mlp-tiny")[1], cluster(ON)
    real, calls = candidates.simulate_steps, []

    def first_fails(*arguments: Any) -> Any:
        calls.append(arguments)
        return broken() if len(calls) == 1 else real(*arguments)

    monkeypatch.setattr(candidates, "simulate_steps", first_fails)
    with pytest.warns(FailedCandidate):
        row = plan_and_predict(graph, on, "auto", settings=SETTINGS).row
    assert len(failures(row)) == 1
    assert row["fits"]


def test_if_all_fail_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, on = small("mlp-tiny")[1], cluster(ON)
    for name in [*BASELINES, *PARTS]:
        break_part(monkeypatch, name)
    with (
        pytest.warns(FailedCandidate),
        pytest.raises(InputError, match=r"auto found no plan for .*: .*ZeroDivisionError.*more"),
    ):
        plan_and_predict(graph, on, "auto", settings=SETTINGS)


def test_what_cannot_be_applied_is_reported_without_a_warning() -> None:
    """Eight samples cannot be divided among sixteen devices."""
    graph, on = small("lenet-tiny")[1], cluster("p100:4x4")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        row = plan_and_predict(graph, on, "auto", settings=SETTINGS).row
    (data,) = (f for f in row["failed"] if f["name"] == "data")
    assert data["refused"]
    assert "batch of" in data["error"]
    assert failures(row) == {}


def test_a_comparison_goes_on_without_a_method_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    break_part(monkeypatch, "owt")
    with pytest.warns(FailedCandidate):
        rows = compare(small("mlp-tiny")[1], cluster(ON), ["data", "owt", "layerwise"])
    assert [row["step_ms"] is None for row in rows] == [False, True, False]
    assert "ZeroDivisionError: a mistake" in rows[1]["error"]


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt, SystemExit])
def test_what_is_no_candidates_fault_ends_the_search(error: type[BaseException]) -> None:
    attempts = Attempts()
    with pytest.raises(error), attempts.attempt("data"):
        raise error
    assert not attempts.failures


def test_the_command_says_so_on_stderr_and_in_its_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    break_part(monkeypatch, "owt")
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # main sets its own
    monkeypatch.setattr(
        sys, "argv", ["raddle", "plan", "mlp-tiny", "--cluster", ON, "--budget", "0.2", "--json"]
    )
    with pytest.warns(FailedCandidate) as caught, pytest.raises(SystemExit, match="0"):
        cli.main()
    warning = warnings.formatwarning(caught[0].message, caught[0].category, "file.py", 1)
    assert warning.startswith(
        "raddle: 'owt' failed and was left out: ZeroDivisionError: a mistake ("
    )
    assert warning.count("\n") == 1
    assert failures(json.loads(capsys.readouterr().out)).keys() == {"owt"}
