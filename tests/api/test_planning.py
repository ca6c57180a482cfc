"""Plans by name of a method: what is asked is checked first, and what is found is predicted."""

from __future__ import annotations

import pytest

from raddle.api.clusters import cluster
from raddle.api.jit_warmup import EVALUATOR, PARTITIONERS, jit_functions_for
from raddle.api.loading import capture_model
from raddle.api.planning import (
    BASELINES,
    METHODS,
    SEARCHES,
    Settings,
    method_names,
    predict,
    read_search_settings,
)
from raddle.api.simulating import details, simulate_steps
from raddle.errors import InputError
from raddle.searches.experts.sharding import SYNC_KINDS

ASKED = {
    "bn": "local", "sync": "auto", "precision": "float32", "optimizer": "sgd",
    "budget": 1.0, "seed": 0, "pins": None, "reduction": None, "profile": None,
}  # fmt: skip


def test_names() -> None:
    assert method_names("data, owt") == ["data", "owt"]
    assert method_names(None) == list(METHODS) == [*BASELINES, *SYNC_KINDS, *SEARCHES]


@pytest.mark.parametrize(
    ("methods", "changed", "sentence"),
    [
        (["dta"], {}, "no method 'dta': choose data"),
        (["data"], {"bn": "none"}, "bn is 'none': choose global or local"),
        (["data"], {"sync": "gossip"}, "sync is 'gossip'"),
        (["data"], {"precision": "half"}, "precision is 'half': choose as in float32, tf32"),
        (
            ["data"],
            {"optimizer": "lion"},
            "optimizer is 'lion': choose one of sgd, momentum, adam, adamw",
        ),
        (["data"], {"pins": ["features"]}, "features"),
        (["data"], {"profile": "nowhere.json"}, "nowhere.json"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_captured(
    methods: list[str], changed: dict[str, object], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        read_search_settings(methods, **{**ASKED, **changed})  # type: ignore[arg-type]


def test_settings_are_what_was_asked() -> None:
    made = read_search_settings(["data"], **{**ASKED, "sync": "p3", "pins": ["conv*=n/2"]})  # type: ignore[arg-type]
    assert (made.sync, made.budget, len(made.pins)) == ("p3", 1.0, 1)


def test_a_prediction_is_a_simulation_beside_data_parallelism() -> None:
    graph, on = capture_model("lenet-tiny", 8), cluster("p100:1x2")
    settings = Settings(sync="allreduce")
    data, owt = (predict(graph, on, name, settings, model="lenet-tiny") for name in ("data", "owt"))
    assert data.row["speedup"] == 1.0
    assert owt.row["speedup"] == pytest.approx(data.row["step_ms"] / owt.row["step_ms"])
    assert details(simulate_steps(graph, owt.plan, on))["step_ms"] == owt.row["step_ms"]
    assert owt.plan.predicted["step_ms"] == owt.row["step_ms"]


def test_methods_say_what_they_need_compiled() -> None:
    assert jit_functions_for(["data", "owt"]) == []
    assert jit_functions_for(["data", "auto"]) == [EVALUATOR]
    assert jit_functions_for(["hypergraph-coarse"]) == [EVALUATOR, PARTITIONERS]
    assert jit_functions_for(["layerwise", "fine"]) == [PARTITIONERS]
