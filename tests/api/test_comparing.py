"""Methods compared: rows, results, the best of them, a table as text and a data frame."""

from __future__ import annotations

import sys

import pytest

import raddle
from raddle.api.comparing import Comparison

METHODS = ["data", "owt", "model"]


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return raddle.compare("lenet-tiny", 8, cluster="p100:1x2", methods=METHODS)


def test_rows_are_those_of_the_results(comparison: Comparison) -> None:
    assert [row["method"] for row in comparison.rows] == METHODS
    for row, result in zip(comparison.rows, comparison, strict=True):
        assert result.row.items() >= row.items()
        assert result.timeline.step_seconds * 1e3 == result.step_ms
    assert len(comparison) == 3
    assert comparison["data"].row["speedup"] == 1.0
    assert comparison.best.step_ms == min(row["step_ms"] for row in comparison.rows)


def test_its_text_is_the_table(comparison: Comparison) -> None:
    lines = repr(comparison).splitlines()
    assert lines[0] == "lenet-tiny, batch 8, on p100:1x2"
    assert [line.split()[0] for line in lines[1:5]] == ["method", *METHODS]


def test_a_method_that_fails_says_why() -> None:
    comparison = raddle.compare("mlp-tiny", 8, cluster="p100:4x4", methods=["data", "model"])
    assert "16" in comparison.rows[0]["error"]
    with pytest.raises(raddle.InputError, match=r"the method 'data' gave no plan: .*16"):
        comparison["data"]
    with pytest.raises(raddle.InputError, match="'owt' was not compared: there are model"):
        comparison["owt"]
    assert "16 devices" in comparison._repr_html_()
    with pytest.raises(raddle.InputError, match="methods is the text 'data'"):
        raddle.compare("mlp-tiny", cluster="local:2", methods="data")


def test_the_best_fits() -> None:
    cluster = raddle.cluster("p100:1x2")
    description = cluster.to_dict()
    for device in description["devices"].values():
        device["memory"] = 4096
    small = type(cluster).from_dict(description, "a test")
    comparison = raddle.compare("lenet-tiny", 8, cluster=small, methods=METHODS)
    assert [row["fits"] for row in comparison.rows] == [False] * 3
    assert "does not fit" in comparison._repr_html_()
    with pytest.raises(raddle.InputError, match="no plan fits for lenet-tiny"):
        comparison.best  # noqa: B018


def test_without_pandas_it_says_what_to_install(
    comparison: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(raddle.InputError, match=r"pip install pandas, or use \.rows"):
        comparison.to_pandas()
