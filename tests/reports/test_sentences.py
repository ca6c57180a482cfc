"""The sentences of `raddle explain`: every number in them comes from the explanation's data."""

from __future__ import annotations

from typing import Any

import pytest

from raddle.api.explaining import explain_op, explain_plan
from raddle.api.loading import capture_model
from raddle.api.planning import plan_for
from raddle.clusters import cluster
from raddle.graph.graph import Graph
from raddle.reports.explanation import (
    comparison_sentence,
    describe_changes,
    sentences,
    show_op,
    show_plan,
)
from raddle.reports.explanation.phrases import (
    join_words,
    ms_text,
    percent,
    shorten_names,
    signed_ms,
)

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def graph() -> Graph:
    return capture_model("lenet-tiny", 8)


@pytest.fixture(scope="module")
def owt(graph: Graph) -> dict[str, Any]:
    on = cluster("p100:1x2")
    return explain_plan(graph, plan_for(graph, on, "owt", sync="allreduce"), on)


def test_a_plan_against_data_parallelism(owt: dict[str, Any], capsys: Capture) -> None:
    first, shares, bound, memory, path = sentences(owt)
    ours, theirs = ms_text(owt["plan"]["step_ms"]), ms_text(owt["data"]["step_ms"])
    assert f"data parallel ({ours} a step against {theirs}): it synchronises " in first
    assert "KiB less, sends " in first
    assert shares.count("%") == 6
    assert ms_text(owt["bound"]["ms"]) in bound
    assert memory.startswith("The fullest device, 0, needs ")
    assert path.startswith("The critical path is computing ")
    show_plan(owt)
    text = capsys.readouterr().out
    assert text.startswith("lenet-tiny, batch 8, owt on p100:1x2\n")
    assert all(sentence in text for sentence in sentences(owt))


def test_faster_slower_and_alike(owt: dict[str, Any]) -> None:
    said = {
        speedup: sentences({**owt, "speedup": speedup})[0].split(" data parallel ")[0]
        for speedup in (2.0, 0.5, 1.0)
    }
    assert said == {2.0: "2.00 x faster than", 0.5: "0.50 x as fast as", 1.0: "As fast as"}


def test_without_data_parallelism(owt: dict[str, Any]) -> None:
    alone = sentences({**owt, "data": None, "data_error": "too few samples."})
    assert alone[0].endswith(" a step. Data parallel cannot be applied: too few samples.")
    assert all("data parallel" not in sentence for sentence in alone[1:])


def test_data_parallelism_itself(graph: Graph) -> None:
    on = cluster("p100:1x2")
    explained = explain_plan(graph, plan_for(graph, on, "data", sync="allreduce"), on)
    assert sentences(explained)[0].endswith(" a step: this is data parallel.")


def test_an_operator(graph: Graph, capsys: Capture) -> None:
    on = cluster("p100:1x2")
    explained = explain_op(graph, plan_for(graph, on, "owt", sync="allreduce"), on, "classifier.0")
    show_op(explained)
    text = capsys.readouterr().out
    assert f"classifier.0 (linear): {explained['tiles']}" in text
    assert comparison_sentence(explained) in text
    for row in explained["alternatives"]:
        assert all(change in text for change in describe_changes(explained["base"], row))


def test_words() -> None:
    assert [join_words([]), join_words(["a"]), join_words(["a", "b"]), join_words(["a", "b", "c"])] == [
        "", "a", "a and b", "a, b and c",
    ]  # fmt: skip
    assert [percent(0), percent(0.004), percent(0.034), percent(1)] == [
        "0 %",
        "0.4 %",
        "3 %",
        "100 %",
    ]
    assert [signed_ms(2), signed_ms(-0.5)] == ["+2.00 ms", "-500 us"]
    assert (shorten_names("a, b, c"), shorten_names("a, b, c, d")) == ("a, b, c", "a, b and 2 more")
