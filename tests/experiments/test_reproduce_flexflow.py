"""FlexFlow done again: the expert's plan, where layers are, proposals judged in full and shortened."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from experiments.cost_models.plans import PlanGroup
from experiments.flexflow import PARTS
from experiments.flexflow.cases import FULL, MODELS, QUICK, case, expert
from experiments.flexflow.no_overlap import Gain
from experiments.flexflow.no_overlap import gains_table as gains_table_without_overlap
from experiments.flexflow.no_overlap import gains_text as gains_text_without_overlap
from experiments.flexflow.plans import draw, layer_of, work_shares
from experiments.flexflow.proposal_times import time_proposals
from experiments.flexflow.ranking import SmallNetGroup
from experiments.flexflow.search import PRINTED, seconds_text
from experiments.flexflow.throughput import ModelThroughput, gains_table, gains_text
from experiments.simulate_methods import WeakScalingCase, recurrent_expert, simulate_method
from raddle.api.loading import capture_model
from raddle.clusters import cluster
from raddle.plans.plan import Plan
from raddle.reports.experiments.result import Column, Table
from raddle.searches.baselines import BASELINES

# -- the expert's plan -----------------------------------------------------------------------------


def test_expert_has_a_gpu_a_depth_and_samples_over_nodes() -> None:
    graph, on = capture_model("rnntc-tiny", 8), cluster("k80:2x4")
    tiles = recurrent_expert(graph, on)
    of_layer: dict[str, set[int]] = {}
    for op in graph.ops:
        if op.kind == "linear" and ".t" in op.name:
            of_layer.setdefault(layer_of(op), set()).update(tiles[op.name].devices)
            assert len(tiles[op.name].boxes) == 2, "a part of the samples a node"
    for layer, devices in of_layer.items():
        one, other = sorted(devices)
        assert other == one + 4, (layer, "the same place of both nodes")
    assert len({min(devices) for devices in of_layer.values()}) > 1, "layers are beside each other"


def test_expert_by_model() -> None:
    assert [expert(model) for model in MODELS] == ["owt"] * 3 + ["expert"] * 3


def test_full_has_all_models_and_what_quick_has() -> None:
    assert set(QUICK.models) <= set(FULL.models) == set(PRINTED)
    assert set(QUICK.gpu_counts) <= set(FULL.gpu_counts) == {4, 16, 64}
    assert case("alexnet", 16).samples == 256
    assert case("nmt", 64).cluster.nodes == 16


# -- where layers are ------------------------------------------------------------------------------


def test_shares_of_data_parallelism_are_equal_and_of_one_gpu_whole() -> None:
    graph, on = capture_model("nmt-tiny", 8), cluster("k80:1x4")
    shares = work_shares(graph, Plan(BASELINES["data"](graph, on), 4))
    expected = {"source_embedding", "target_embedding", "attention", "output"}
    expected |= {f"{part}coder.l{number}" for part in ("en", "de") for number in (0, 1)}
    assert set(shares) == expected
    for layer, layer_shares in shares.items():
        assert layer_shares == pytest.approx([0.25] * 4), layer
    alone = work_shares(graph, Plan(BASELINES["data"](graph, cluster("k80:1x1")), 4))
    assert all(layer_shares == [1, 0, 0, 0] for layer_shares in alone.values())


def test_drawing() -> None:
    assert draw({"a": [1.0, 0.0], "long": [0.25, 0.75]}) == [
        "      GPU 0           GPU 1",
        "a     ########## 100  ..........   0",
        "long  ##........  25  ########..  75",
    ]


# -- proposals -------------------------------------------------------------------------------------


def test_both_ways_to_judge_decide_alike_and_a_move_changes_a_part() -> None:
    times = time_proposals(
        WeakScalingCase("lenet-tiny", "k80", 2, 4), proposals=20
    )  # asserts that they do
    assert 0 < times.changed <= 1
    assert times.tasks > 0
    assert min(times.shortened_rate, times.full_rate, times.shortened_s, times.ideal_delta_s) > 0


def test_search_is_no_slower_than_what_it_starts_from() -> None:
    search = simulate_method(
        WeakScalingCase("lenet-tiny", "k80", 2, 4), "flexflow", "allreduce", 0.3
    )
    assert search is not None
    assert 0 <= search.improved_s <= search.search_s
    data = simulate_method(WeakScalingCase("lenet-tiny", "k80", 2, 4), "data", "allreduce", 0.3)
    assert data is not None
    assert search.seconds <= data.seconds


# -- tables ----------------------------------------------------------------------------------------


def _step(rate: float) -> Any:
    return SimpleNamespace(seconds=1 / rate, samples_per_s=rate, comm_bytes=10**9)


FOUND: Any = {
    ("data", 4): _step(10), ("expert", 4): _step(20), ("flexflow", 4): _step(30),
    ("auto", 4): _step(40), ("data", 16): _step(50), ("expert", 16): None, ("flexflow", 16): _step(50),
}  # fmt: skip


def test_rows_and_words_of_throughput() -> None:
    throughput = ModelThroughput("nmt", "allreduce", FOUND)
    assert throughput.counts == [4, 16]
    table = gains_table([throughput])
    assert list(table.rows[0][3:9]) == [10, 20, 30, 40, 3, 1.5]
    assert list(table.rows[1][3:9]) == [50, None, 50, None, 1, 1]
    text = gains_text([throughput])
    assert "1.00 (nmt on 16) to 1.50 x (nmt on 4)" in text
    assert "1 of 2 gain less than 1 %" in text


def test_words_of_the_search_count_what_is_longer() -> None:
    rows = [["a", 4, 1.0, 0, 0, 2.0], ["b", 4, 3.0, 0, 0, 2.0], ["c", 4, None, None, None, 2.0]]
    text = seconds_text(Table("", [Column(name) for name in "abcdef"], rows))
    assert text == "1 of 2 searches take less than the paper's, 1 longer."


def test_small_network_is_loaded_from_nets_py() -> None:
    group = SmallNetGroup("lstm", 4, 2, 0)
    assert isinstance(group, PlanGroup)
    assert group.spec.endswith("nets.py:lstm")
    assert group.graph().batch == 4


def test_parts_have_different_names() -> None:
    assert [part.name for part in PARTS] == [
        "throughput",
        "no-overlap",
        "search",
        "plans",
        "ranking",
    ]


def test_gains_without_overlap_are_said() -> None:
    gains = [Gain("a", 4, 1.0, 1.5), Gain("a", 16, 2.0, 2.01), Gain("b", 4, None, 3.0)]
    text = gains_text_without_overlap(gains)
    assert "up to 2.00 x" in text
    assert "up to 2.01 x (the paper" in text
    assert "in 1 of 2 cases" in text
    assert [row[2:4] for row in gains_table_without_overlap(gains).rows] == [
        [1.0, 1.5], [2.0, 2.01], [None, 3.0]
    ]  # fmt: skip
    assert gains_text_without_overlap(gains[2:]) == "No plan fits the memory."
