"""The page of results, and one sentence for what is no result."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

import raddle
from raddle.api.reporting import report_results
from raddle.searches.settings import Settings


def labels(page: Any) -> list[str]:
    return [method["label"] for method in page.json_data["methods"]]


def test_data_parallelism_stands_beside_a_result(tmp_path: pathlib.Path) -> None:
    result = raddle.plan("mlp-tiny", 8, cluster="p100:1x2", method="model")
    page = report_results([result], tmp_path / "a.html", None, Settings(), alternatives=0)
    assert labels(page) == ["data", "model"]
    assert page.json_data["opens"] == 1
    assert page.json_data["methods"][1]["step_ms"] == result.step_ms


def test_a_comparison_opens_with_its_fastest(tmp_path: pathlib.Path) -> None:
    comparison = raddle.compare("mlp-tiny", 8, cluster="p100:1x2", methods=["data", "model"])
    results = list(comparison)
    page = report_results(
        results, tmp_path / "a.html", None, Settings(), opens_first=False, alternatives=0
    )
    assert labels(page) == ["data", "model"]
    assert page.json_data["opens"] == results.index(comparison.best)
    raddle.report(comparison, tmp_path / "b.html", alternatives=0)
    assert (tmp_path / "b.html").read_bytes() == (tmp_path / "a.html").read_bytes()


def test_a_plan_for_a_part_of_the_cluster_is_shown_there(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "plan.json"
    raddle.plan("mlp-tiny", 8, cluster="p100:1x2", method="model").save(path)
    larger = raddle.load_plan(path, cluster="p100:1x4")
    page = report_results([larger], tmp_path / "a.html", [], Settings(), alternatives=0)
    assert len(page.json_data["methods"][0]["devices"]) == 2


@pytest.mark.parametrize(
    ("results", "sentence"),
    [
        ([], "there is no result to report: make one with raddle.plan"),
        (3, "takes results, not a int"),
        (["plan.json"], "takes results, not a str"),
        (
            [("mlp-tiny", "local:2"), ("mlp-tiny", "local:1")],
            "results for one cluster, these are for 'local:2' and 'local:1'",
        ),
        (
            [("mlp-tiny", "local:2"), ("lenet-tiny", "local:2")],
            "results for one model, these are for 'mlp-tiny' and 'lenet-tiny'",
        ),
    ],
)
def test_what_is_no_page_gets_one_sentence(
    results: Any, sentence: str, tmp_path: pathlib.Path
) -> None:
    if isinstance(results, list) and results and isinstance(results[0], tuple):
        results = [raddle.plan(m, 8, cluster=c, method="layerwise") for m, c in results]
    with pytest.raises(raddle.InputError, match=sentence):
        raddle.report(results, tmp_path / "page.html")
    assert not list(tmp_path.iterdir())
