"""The data of the page equal the simulation: metrics, slices, bytes, memory, tiles."""

from __future__ import annotations

import base64
import json
import pathlib
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_plans import random_plan, sync_texts
from small_models import small

import raddle
from raddle.clusters import cluster
from raddle.errors import InputError
from raddle.graph.graph import Graph
from raddle.plans.plan import Plan
from raddle.plans.plan_file import from_dict
from raddle.plans.tiling import Grid
from raddle.reports.page import slices
from raddle.reports.page.columns import Columns, read_column
from raddle.reports.page.data import PageData, plan_file_name, torchrun_command
from raddle.reports.page.html import render_page
from raddle.reports.page.measured_run import describe_run, read_run
from raddle.reports.page.page_report import GivenPlan, build_page_data
from raddle.searches.predict import predicted_metrics, simulate_steps
from raddle.simulation.memory.peaks import peak_bytes
from raddle.simulation.timeline import Timeline

CLUSTER = "p100:2x2"


def reader(data: PageData) -> Any:
    return lambda column: read_column(data.columns, column)


def describe_one_plan(graph: Graph, plan: Plan) -> tuple[dict[str, Any], Any, Timeline]:
    data = build_page_data(graph, cluster(CLUSTER), [GivenPlan(plan)], (), alternatives=0)
    return data.json_data["methods"][0], reader(data), simulate_steps(graph, plan, cluster(CLUSTER))


@given(st.integers(0, 10**6), sync_texts(4))
def test_random_plans(seed: int, sync: str) -> None:
    _, graph = small("lenet-tiny")
    plan = random_plan(graph, 4, seed, sync=sync, batch=graph.batch, method="random")
    method, read, timeline = describe_one_plan(graph, plan)
    expected = predicted_metrics(timeline)
    assert {k: method[k] for k in ("step_ms", "comm_bytes", "peak_bytes", "fits")} == {
        k: expected[k] for k in ("step_ms", "comm_bytes", "peak_bytes", "fits")
    }
    slices_are_the_simulation(method["timeline"], read, timeline)
    traffic = method["traffic"]
    steps = timeline.program.plan.steps
    assert abs(int(read(traffic["bytes"]).sum()) * steps - int(timeline.tasks.nbytes.sum())) < steps
    assert (read(traffic["source"]) != read(traffic["target"])).all()
    tiles_are_the_plan(method["tiles"], graph, plan)
    work_is_the_simulation(method["work"], read, timeline)


def slices_are_the_simulation(described: dict[str, Any], read: Any, timeline: Timeline) -> None:
    """The slices are exactly the tasks in the window, with their lanes and times."""
    begin, end = ([0, *timeline.step_ends])[-2:]
    tasks = timeline.tasks
    released = timeline.start + tasks.duration
    inside = (tasks.first_resource >= 0) & (released > begin) & (timeline.start < end)
    assert described["period_ns"] == end - begin
    names = [lane["name"] for lane in described["lanes"]]
    devices = timeline.program.plan.devices
    all_names = [*(f"device {d}" for d in range(devices)), *timeline.cluster.links]

    def lane(resource: int) -> str:
        return all_names[resource] if resource >= 0 else ""

    expected = sorted(
        (
            lane(tasks.first_resource[t]),
            lane(tasks.second_resource[t]),
            timeline.start[t] - begin,
            tasks.duration[t],
        )
        for t in np.flatnonzero(inside)
    )
    columns = [read(described[key]) for key in ("lane", "lane2", "start", "duration")]
    got = sorted(
        (names[a], names[b] if b >= 0 else "", start, duration)
        for a, b, start, duration in zip(*columns, strict=True)
    )
    assert got == expected
    path = [t for t in timeline.critical_path() if inside[t]]
    assert len(read(described["critical"])) == len(path)


def tiles_are_the_plan(described: dict[str, Any], graph: Graph, plan: Plan) -> None:
    for number, op in enumerate(graph.ops):
        shown, tiling = described["tilings"][described["tiling_of"][number]], plan.tiles[op.name]
        if isinstance(tiling, Grid):
            assert shown == {
                "cuts": [list(c) for c in tiling.cuts],
                "devices": list(tiling.devices),
                "copies": tiling.copies,
            }
        else:
            boxes = [[list(t.box.lo), list(t.box.hi), t.device] for t in tiling.tiles]
            assert shown == {"boxes": boxes}


def work_is_the_simulation(described: dict[str, Any], read: Any, timeline: Timeline) -> None:
    """No operator takes longer on its busiest device than that device computes in total."""
    total = sum(read(described[f"{phase}_ns"]) for phase in ("forward", "backward"))
    assert (total <= timeline.compute_seconds.max() * 1e9 * timeline.program.plan.steps).all()
    assert total.sum() > 0


def test_memory_curves_reach_the_peaks(lenet: Graph) -> None:
    plan = raddle.search(lenet, cluster(CLUSTER), "owt")
    method, read, timeline = describe_one_plan(lenet, plan)
    peaks = dict.fromkeys(range(4), 0)
    for curve in method["memory"]["curves"]:
        for d in curve["devices"]:
            peaks[d] = int(read(curve["bytes"]).max())
            assert (np.diff(read(curve["time"])) >= 0).all()
    assert list(peaks.values()) == peak_bytes(
        timeline
    )  # in steady state every step reaches the peak
    assert method["memory"]["capacity"] == [d.memory for d in timeline.cluster.devices]


@pytest.fixture(scope="module")
def lenet() -> Graph:
    from raddle import zoo

    w = zoo.load("lenet", batch=16)
    return raddle.capture(w.model, w.batch, w.loss, name=w.name)


def test_many_devices_are_cut_to_what_can_be_drawn(
    lenet: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = raddle.search(lenet, cluster(CLUSTER), "data")
    method, _, _ = describe_one_plan(lenet, plan)
    all_slices = method["timeline"]["count"]
    assert method["timeline"]["devices"] == 4
    monkeypatch.setattr(slices, "MAX_SLICES", all_slices // 2)
    method, read, _ = describe_one_plan(lenet, plan)
    assert method["timeline"]["devices"] == 2
    assert method["timeline"]["count"] <= all_slices // 2
    assert read(method["timeline"]["target"]).max() == 1


def test_plans_in_the_page_are_plan_files(lenet: Graph, tmp_path: pathlib.Path) -> None:
    plans = [raddle.search(lenet, cluster(CLUSTER), method) for method in ("data", "owt")]
    raddle.report(lenet, plans, tmp_path / "page.html", alternatives=1)
    shown = unpack_page((tmp_path / "page.html").read_text())
    assert [m["label"] for m in shown["methods"]] == ["data", "owt"]
    for method, plan in zip(shown["methods"], plans, strict=True):
        assert from_dict(method["plan"], lenet).tiles == plan.tiles
    best = shown["methods"][shown["best"]]
    assert best["step_ms"] == min(m["step_ms"] for m in shown["methods"])
    assert best["groups"]
    assert best["groups"][0]["alternatives"]


def unpack_page(html: str) -> dict[str, Any]:
    import gzip

    packed = re.search(r'id="data">([^<]*)<', html)
    assert packed
    block = gzip.decompress(base64.b64decode(packed[1]))
    length = int.from_bytes(block[:4], "little")
    data = json.loads(block[4 : 4 + length])
    assert isinstance(data, dict)
    return data


def test_the_same_data_gives_the_same_page(lenet: Graph) -> None:
    plan = raddle.search(lenet, cluster(CLUSTER), "data")
    one, two = (
        render_page(build_page_data(lenet, cluster(CLUSTER), [GivenPlan(plan)], (), alternatives=0))
        for _ in range(2)
    )
    assert one == two


def test_equal_labels_are_told_apart(lenet: Graph) -> None:
    plan = raddle.search(lenet, cluster(CLUSTER), "data")
    data = build_page_data(
        lenet, cluster(CLUSTER), [GivenPlan(plan), GivenPlan(plan)], ("data",), alternatives=0
    )
    assert [m["label"] for m in data.json_data["methods"]] == ["data", "data (2)", "data (3)"]


def test_micro_batches_are_held_against_data_parallelism_of_as_many(lenet: Graph) -> None:
    """A plan with a larger batch is compared with data parallelism at that batch."""
    plan = raddle.search(lenet, cluster(CLUSTER), "data")
    larger = replace(plan, method="", microbatches=4, batch=4 * plan.batch)
    data = build_page_data(
        lenet,
        cluster(CLUSTER),
        [GivenPlan(plan), GivenPlan(larger, "larger.json")],
        (),
        alternatives=0,
    )
    one, four = data.json_data["methods"]
    assert four["step_ms"] > one["step_ms"]
    assert (one["speedup"], four["speedup"]) == (1.0, 1.0)
    faster = max((one, four), key=lambda row: row["samples_per_s"])
    assert data.json_data["methods"][data.json_data["best"]] is faster


def test_a_method_that_cannot_be_applied_says_why(lenet: Graph) -> None:
    data = build_page_data(lenet, cluster("p100:1x64"), (), ("data", "owt"), alternatives=0)
    first = data.json_data["methods"][0]
    assert "64" in first["error"]
    assert "timeline" not in first


def test_nothing_to_report(lenet: Graph, tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match="no plan to report"):
        raddle.report(lenet, [], tmp_path / "x.html")
    plan = replace(raddle.search(lenet, cluster(CLUSTER), "data"), cluster=None)
    with pytest.raises(InputError, match="names no cluster"):
        raddle.report(lenet, [plan], tmp_path / "x.html")


def test_the_torchrun_line(lenet: Graph) -> None:
    plan = raddle.search(lenet, cluster(CLUSTER), "data")
    assert torchrun_command(plan, cluster(CLUSTER)) == (
        "torchrun --nnodes 2 --node-rank $NODE_RANK --master-addr $MASTER_ADDR "
        "--nproc-per-node 2 -m raddle.runtime data.json"
    )
    alone = torchrun_command(plan, cluster("p100:1x4"))
    assert alone == "torchrun --standalone --nproc-per-node 4 -m raddle.runtime data.json"
    hostile = torchrun_command(replace(plan, method="x; rm -rf $HOME"), cluster("p100:1x4"))
    assert hostile.endswith("-m raddle.runtime x-rm-rf-HOME.json")
    for method, name in (("", "plan.json"), ("odd one", "odd-one.json"), ("../-o", "o.json")):
        assert plan_file_name(replace(plan, method=method)) == name


# -- measured runs ---------------------------------------------------------------------------------

RESULT = {
    "plan": "p.json", "step_ms": 3.0, "fastest_ms": 2.0, "slowest_ms": 4.0, "samples_per_s": 9.0,
    "steps": 3, "warmup": 0, "device": "cpu", "threads": 1, "loss_first": 2.0, "loss_last": 1.0,
    "trace": None,
}  # fmt: skip


def slice_event(device: int, lane: int, step: int, start: float, duration: float) -> dict[str, Any]:
    args = {"phase": "forward", "step": step, "micro-batch": 0, "bytes": 0}
    return {
        "ph": "X", "cat": "run", "name": "fc1", "pid": device, "tid": lane, "ts": start, "dur": duration,
        "args": args,
    }  # fmt: skip


def test_the_step_in_the_middle_of_a_trace_is_shown(tmp_path: pathlib.Path) -> None:
    names = [
        {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "device 0 (cpu)"}},
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": 0, "args": {"name": "compute"}},
    ]
    steps = [(0, 0.0, 90.0), (1, 100.0, 20.0), (2, 200.0, 30.0)]
    events = [*names, *(slice_event(0, 0, *step) for step in steps)]
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": events}))
    columns = Columns()
    result = {**RESULT, "trace": str(tmp_path / "t.json")}
    timeline = describe_run(result, {"fc1": 7}, columns)["timeline"]
    assert timeline["period_ns"] == 30_000  # the median of 90, 20 and 30 us
    assert timeline["titles"] == [["run", "fc1", "forward", 7, 0]]
    assert [lane["name"] for lane in timeline["lanes"]] == ["device 0, compute"]
    assert read_column(columns.tobytes(), timeline["start"]).tolist() == [0]
    assert read_column(columns.tobytes(), timeline["duration"]).tolist() == [30_000]


def test_a_run_finds_its_plan_beside_it(tmp_path: pathlib.Path) -> None:
    (tmp_path / "p.json").write_text("{}")
    (tmp_path / "run.json").write_text(json.dumps({**RESULT, "plan": "gone/p.json"}))
    assert read_run(tmp_path / "run.json")["plan"] == str(tmp_path / "p.json")


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "there is no result"), ("{", "is no result of a run"), ("[]", "is no result of a run")],
)
def test_bad_runs(tmp_path: pathlib.Path, content: str | None, reason: str) -> None:
    path = tmp_path / "run.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=reason):
        read_run(path)


@pytest.mark.parametrize(
    "content", ["{}", '{"traceEvents": [{"ph": "X"}]}', '{"traceEvents": [3]}']
)
def test_bad_traces(tmp_path: pathlib.Path, content: str) -> None:
    (tmp_path / "t.json").write_text(content)
    with pytest.raises(InputError, match="is damaged: it"):
        describe_run({**RESULT, "trace": str(tmp_path / "t.json")}, {}, Columns())
