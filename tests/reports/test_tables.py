"""Terminal tables, printed for a tiny model on a small cluster."""

from __future__ import annotations

from typing import Any

import pytest

from raddle.api.loading import capture_model
from raddle.api.planning import EvaluatedPlan, Settings, compare, predict
from raddle.api.simulating import details
from raddle.clusters import cluster, presets
from raddle.clusters.summary import summarise
from raddle.errors import InputError
from raddle.graph.graph import Graph
from raddle.reports.model_summary import describe_model
from raddle.reports.tables.clusters import show_cluster, show_clusters
from raddle.reports.tables.models import show_model, show_models
from raddle.reports.tables.plan_metrics import (
    show_comparison,
    show_plan,
    show_report,
    show_simulation,
)
from raddle.reports.tables.probe import show_probe, show_profile

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def graph() -> Graph:
    return capture_model("lenet-tiny", 8)


@pytest.fixture(scope="module")
def judged(graph: Graph) -> EvaluatedPlan:
    """Data parallelism for the convolutions, another split for the rest."""
    settings = Settings(sync="allreduce")
    return predict(graph, cluster("p100:1x2"), "owt", settings, model="lenet-tiny")


def test_a_plan(judged: EvaluatedPlan, capsys: Capture) -> None:
    show_plan({**judged.row, "file": "owt.json"})
    text = capsys.readouterr().out
    assert "written to owt.json: raddle simulate owt.json shows more" in text
    assert (
        "simulated, in float32 with sgd, local batch statistics, synchronised by allreduce" in text
    )
    assert f"{judged.row['speedup']:.2f}x" in text
    assert "no plan takes less than " in text


def test_how_a_search_went(judged: EvaluatedPlan, capsys: Capture) -> None:
    searched = {
        "proposals": 7, "start": "data", "stopped": "budget", "file": None,
        "failed": [{"name": "odd", "error": "KeyError: 1", "refused": False}],
    }  # fmt: skip
    show_plan({**judged.row, **searched})
    text = capsys.readouterr().out
    assert "a search found the plan from the candidate 'data' with 7 proposals" in text
    assert "the search ended because its time was over" in text
    assert "left out, by a mistake in raddle: odd, KeyError: 1" in text
    assert "written" not in text


def test_a_comparison(graph: Graph, capsys: Capture) -> None:
    rows = compare(graph, cluster("p100:1x2"), ["data", "model"], settings=Settings(sync="p3"))
    show_comparison(rows)
    text = capsys.readouterr().out
    assert [line.split()[0] for line in text.splitlines()[:3]] == ["method", "data", "model"]
    assert "1.00x" in text
    assert "synchronised by p3" in text


@pytest.mark.filterwarnings("ignore::raddle.errors.FailedCandidate")
def test_what_fails_and_what_does_not_fit_is_said_below(graph: Graph, capsys: Capture) -> None:
    rows = compare(graph, cluster("p100:4x4"), ["data", "model"], settings=Settings())
    rows[1]["fits"] = False
    show_comparison(rows)
    text = capsys.readouterr().out
    assert "data: a batch of 8 cannot be split over 16 devices" in text
    assert "model: does not fit into the devices' memory" in text
    assert "speedup" not in text  # there is no data-parallel plan to compare with


def test_a_simulation(judged: EvaluatedPlan, capsys: Capture) -> None:
    result = details(judged.timeline)
    show_simulation({**result, "trace": "t.json.gz"})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "lenet-tiny, batch 8, owt on p100:1x2"
    assert [line.split()[:2] for line in lines[3:5]] == [["0", "p100"], ["1", "p100"]]
    assert lines[-1] == "trace written to t.json.gz: open it at ui.perfetto.dev"
    assert len(lines) == 5 + 1 + len(result["transfers"]) + 1
    show_simulation({**result, "fits": False, "transfers": [], "trace": None})
    text = capsys.readouterr().out
    assert "it does not fit into the devices' memory" in text
    assert "largest transfers" not in text


def test_a_report(judged: EvaluatedPlan, capsys: Capture) -> None:
    row = {**judged.row, "label": "mine", "measured_ms": 2.0}
    show_report({"methods": [row], "file": "r.html", "bytes": 2048})
    text = capsys.readouterr().out
    assert "mine: predicted " in text
    assert ", measured 2.00 ms" in text
    assert "r.html shows it: open it in a browser (2.00 KiB)" in text


def test_models(graph: Graph, capsys: Capture) -> None:
    show_models([{"name": "a"}, {"name": "b"}])
    assert capsys.readouterr().out == "a\nb\n"
    described = describe_model(graph)
    show_model(described)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "lenet-tiny, batch 8"
    assert [line.split()[0] for line in lines[3:-1]] == [row["name"] for row in described["layers"]]
    assert lines[-1] == "no opaque operators"
    show_model({**described, "opaque": [{"op": "inv", "kind": "linalg_inv"}]})
    assert "opaque, never split: inv (linalg_inv)" in capsys.readouterr().out


def test_clusters(capsys: Capture) -> None:
    show_clusters(presets())
    text = capsys.readouterr().out
    assert all(preset["name"] in text and preset["source"] in text for preset in presets())
    show_cluster(summarise(cluster("p100:2x1")))
    text = capsys.readouterr().out
    assert "2 devices in 2 nodes" in text
    assert "0 -> 1" in text
    show_cluster(summarise(cluster("p100:1x1")))
    text = capsys.readouterr().out
    assert "1 device in 1 node," in text
    assert "->" not in text


PROBED: dict[str, Any] = {
    "ranks": 2, "threads": 1, "torch": "2.6", "cores": 2, "busy_cores": 0.0, "cached": False,
    "measured": "today", "file": None, "gpu": None, "flops": {"matmul": 5e9}, "memory_bandwidth": 1e10,
    "overhead": 5e-6, "idle": {"latency": 1e-4, "bandwidth": 1e9}, "loaded": None, "duplex": True,
    "shared": False, "host_overhead": {"message": 1e-5},
}  # fmt: skip


def test_what_was_measured(capsys: Capture) -> None:
    show_probe(PROBED)
    text = capsys.readouterr().out
    assert "one of 2 ranks while all compute, 1 thread each, torch 2.6" in text
    assert "5.00 GFLOP/s" in text
    assert "100 us + bytes / 1.00 GB/s" in text
    assert "taken from a rank: an end of a message  10.0 us" in text
    assert "-o FILE writes this as a cluster" in text
    assert "busy" not in text
    show_probe({**PROBED, "busy_cores": 1.0, "cached": True, "file": "here.yaml"})
    text = capsys.readouterr().out
    assert "other work kept 1.0 of 2 cores busy" in text
    assert "measured today: --fresh measures again" in text
    assert "written for --cluster here.yaml" in text
    show_profile({"measured": 3, "model": "vgg16", "profile": "p.json", "entries": 5})
    assert "3 operators of vgg16 measured; 'p.json' holds 5" in capsys.readouterr().out


def test_an_unknown_cluster_is_no_table() -> None:
    with pytest.raises(InputError):
        show_cluster(summarise(cluster("nowhere")))
