"""Every kind of file that raddle reads: good examples, and a function that uses a file as raddle does.

For each kind, a function such as `plans()` returns good files and `use_plan(path)` reads and uses one.
"""

from __future__ import annotations

import gzip
import json
import os
import pathlib
import tempfile
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml
from drawn_blocks import drawn_blocks
from torch import Tensor, nn

from raddle.api.schedules import read_schedule
from raddle.clusters import Cluster, cluster, description
from raddle.clusters.summary import summarise
from raddle.costs.profile import Profile, load_profile, profile_key
from raddle.errors import InputError
from raddle.files import parse_json, read_bytes
from raddle.graph.capture import capture
from raddle.graph.gradients import active_values
from raddle.graph.graph import Graph
from raddle.graph.supervised import supervised
from raddle.plans import plan_file
from raddle.plans import schedule as schedules
from raddle.plans.notation import read_tiling
from raddle.plans.pipelining import cut_stages
from raddle.plans.plan import Plan, describe_inputs, parameter_shapes
from raddle.plans.schedules import NAMES, named_schedule
from raddle.probe import cache
from raddle.reports import schedules as drawn
from raddle.reports.page import html
from raddle.reports.page.columns import Columns
from raddle.reports.page.measured_run import describe_run, read_run
from raddle.reports.server.page_file import read_page
from raddle.reports.server.report_folder import ReportFolder
from raddle.reports.server.report_request import read_request
from raddle.searches.hypergraph import explicit, formats
from raddle.searches.hypergraph.layer_work import layer_work
from raddle.searches.hypergraph.method import plan_from_partition
from raddle.searches.hypergraph.partitioner import Partitioner
from raddle.searches.predict import predicted_metrics, simulate_steps

SIMULATED_LIMIT = 64  # a plan with more micro-batches or devices is read but not simulated


class FileKind(NamedTuple):
    """One kind of file.

    `read` returns something, raises InputError, or returns None if a damaged file is treated as missing.
    """

    name: str  # file name
    form: str  # json | yaml | text
    seeds: tuple[bytes, ...]  # contents of good files
    read: Callable[[pathlib.Path], object]


class Small(nn.Module):
    """Two convolutions and a linear layer: it has filters to partition and samples to split."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.out = nn.Conv2d(1, 2, 3), nn.Conv2d(2, 4, 3), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.two(self.one(x).relu()).relu().flatten(1))


def capture_small() -> Graph:
    return capture(
        Small(), (torch.zeros(4, 1, 6, 6),), supervised(lambda y: y.sum(), targets=0), name="small"
    )


GRAPH = capture_small()
CLUSTER = cluster("local:2")


# -- plans -------------------------------------------------------------------------------------------


def plans() -> list[Plan]:
    """Plans that together have every kind of content of a plan file."""
    halves = {op.name: read_tiling(op, _halved_tiling(op)) for op in GRAPH.ops}
    ends = {"one": "@0", "relu": "@0"}
    plain = Plan(
        halves, 2, model="small", fingerprint=GRAPH.fingerprint(), batch=4, cluster=CLUSTER.to_dict(),
        method="data", inputs=describe_inputs(GRAPH), parameters=parameter_shapes(GRAPH),
        predicted={"step_ms": 1.5},
    )  # fmt: skip
    names = [op.name for op in GRAPH.ops]
    stages = cut_stages(GRAPH, [names[1]])
    placed = {op.name: read_tiling(op, ends.get(op.name, "@1")) for op in GRAPH.ops}
    pipeline = replace(
        plain, tiles=placed, stages=stages, batch=8, microbatches=2, bn="microbatch", workers=((0,), (1,)),
    )  # fmt: skip
    written = "F0 F1 B0 B1\nF0 B0 F1 B1\nF1.0 after F0.1"
    boxes = dict(halves, one=read_tiling(GRAPH.op("one"), _boxes(GRAPH.op("one"))))
    return [
        plain,
        replace(plain, sync="p3:collective,slice=5"),
        replace(plain, sync="ps:greedy,slice=9", optimizer="adam", dtype="float32"),
        replace(plain, tiles=boxes, sync="sharded", recompute=((names[0], names[1]), (names[2],))),
        replace(pipeline, schedule="gpipe"),
        replace(pipeline, schedule="1f1b"),
        replace(pipeline, schedule=written),
        replace(plain, schedule="threaded:2"),
    ]


def _halved_tiling(op: Any) -> str:
    letters = [dim.name for dim in op.space.dims if dim.size == 4 and dim.name == "n"]
    return "n/2 @0-1" if letters else "x2 @0-1"


def _boxes(op: Any) -> str:
    shape = [dim.size for dim in op.space.dims]
    full_ranges = " ".join(f"0:{size}" for size in shape[1:])
    return f"[0:1 {full_ranges}]@0 [1:4 {full_ranges}]@1"


def use_plan(path: pathlib.Path) -> object:
    data = plan_file.read(path)
    plan_cluster = (
        CLUSTER if data["cluster"] is None else Cluster.from_dict(data["cluster"], str(path))
    )
    plan = plan_file.from_dict(data, GRAPH)
    few = plan.microbatches <= SIMULATED_LIMIT and plan.devices <= SIMULATED_LIMIT
    threads = sum(int(word) for word in plan.schedule.split(":") if word.isdecimal())
    return (
        predicted_metrics(simulate_steps(GRAPH, plan, plan_cluster))
        if few and threads <= SIMULATED_LIMIT
        else plan
    )


# -- machines ----------------------------------------------------------------------------------------


def clusters() -> list[str]:
    blocks = (description.__doc__ or "").split("\n\n")
    shown = ["\n".join(line[4:] for line in b.split("\n")) for b in blocks if "    nodes:" in b]
    presets = [cluster(name).to_dict() for name in ("p100:2x2", "local:3")]
    return [*shown, *(yaml.safe_dump(preset, sort_keys=False) for preset in presets)]


def use_cluster(path: pathlib.Path) -> object:
    loaded = cluster(path)
    if len(loaded.devices) <= SIMULATED_LIMIT:
        summarise(loaded)
    return (
        predicted_metrics(simulate_steps(GRAPH, PLAN, loaded))
        if 2 <= len(loaded.devices) <= SIMULATED_LIMIT
        else loaded
    )


def profiles() -> list[str]:
    kind, active = CLUSTER.devices[0].kind, active_values(GRAPH)
    seconds = {}
    for number, op in enumerate(GRAPH.ops):
        for box in PLAN.tiles[op.name].boxes:
            seconds[profile_key(op, box, "F", None, kind)] = 1e-4 * (1 + number)
            back = tuple(k for k, name in enumerate(op.inputs) if name in active)
            seconds[profile_key(op, box, "B", back, kind)] = 2e-4 * (1 + number)
    profiles = [
        Profile(seconds),
        Profile(),
        Profile(seconds, drawn_blocks(GRAPH, CLUSTER.devices[0])),
    ]
    return [_saved_text(profile.save) for profile in profiles]


def use_profile(path: pathlib.Path) -> object:
    return predicted_metrics(simulate_steps(GRAPH, PLAN, CLUSTER, load_profile(path)))


def use_cache(path: pathlib.Path) -> object:
    """The cached measurement, or None."""
    os.environ["XDG_CACHE_HOME"] = str(path.parent)
    (path.parent / "raddle").mkdir(exist_ok=True)
    os.replace(path, cache.path())
    recalled = cache.recall("key")
    assert recalled in (None, MEASURED)
    return recalled


MEASURED = {"ranks": 2, "flops": {"matmul float32": 1.5e9}, "idle": None, "torch": "2.6"}


def caches() -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        before = os.environ.get("XDG_CACHE_HOME", "")
        os.environ["XDG_CACHE_HOME"] = folder
        cache.remember("key", MEASURED)
        cache.remember("other", {"ranks": 3})
        text = cache.path().read_text()
        os.environ["XDG_CACHE_HOME"] = before
    return [text]


# -- measurements of runs ----------------------------------------------------------------------------

RUN = {
    "plan": "p.json", "model": "small", "method": "data", "batch": 4, "devices": 2, "device": "cpu",
    "threads": 1, "dtype": "float32", "optimizer": "sgd", "steps": 3, "warmup": 0, "step_ms": 3.0,
    "fastest_ms": 2.0, "slowest_ms": 4.0, "predicted_ms": 2.5, "cluster": "local:2", "samples_per_s": 9.0,
    "loss_first": 2.0,
    "loss_last": None, "sent": [{"source": 0, "target": 1, "bytes": 64}], "reduced": [],
    "sync": "allreduce", "groups": {"count": 4, "seconds": 0.01, "bytes": 4096},
    "slices": 0, "overtaken": 0, "trace": None,
}  # fmt: skip


def use_run(path: pathlib.Path) -> object:
    return describe_run({**read_run(path), "trace": None}, {}, Columns())


def events() -> list[dict[str, Any]]:
    named_lanes = [("process_name", 0, 0, "device 0 (cpu)"), ("thread_name", 0, 0, "compute"),
                   ("process_name", 1, 0, "links"), ("thread_name", 1, 0, "0 -> 1")]  # fmt: skip
    trace: list[dict[str, Any]] = [
        {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}
        for what, pid, tid, name in named_lanes
    ]
    for step in range(3):
        args = {"phase": "forward", "step": step, "micro-batch": 0, "bytes": 0}
        for pid, cat in ((0, "run"), (1, "move")):
            trace.append(
                {
                    "ph": "X",
                    "cat": cat,
                    "name": "one",
                    "pid": pid,
                    "tid": 0,
                    "ts": 100.0 * step + pid,
                    "dur": 20.5,
                    "args": args,
                }
            )
    trace.append({"ph": "s", "name": "one", "cat": "x", "id": 1, "pid": 0, "tid": 0, "ts": 1.0})
    return trace


def use_trace(path: pathlib.Path) -> object:
    return describe_run({**RUN, "trace": str(path)}, {"one": 0}, Columns())


def use_packed_trace(path: pathlib.Path) -> object:
    """Uses the file as a .gz file: its bytes as they are or compressed, depending on their number."""
    content = path.read_bytes()
    packed = path.with_name("trace.json.gz")
    packed.write_bytes(content if len(content) % 4 == 0 else gzip.compress(content, 1, mtime=0))
    return use_trace(packed)


# -- partitions --------------------------------------------------------------------------------------


def partitions() -> list[str]:
    units = [layer.units for layer in PARTITIONER.network.layers]
    fine = explicit.fine(PARTITIONER.network, PARTITIONER.model)
    numbers = [np.arange(sum(units)) % 2, np.arange(len(fine.weight)) // 7 % 2]
    return ["".join(f"{n}\n" for n in assignment.tolist()) for assignment in numbers]


def use_partition(path: pathlib.Path) -> object:
    return plan_from_partition(GRAPH, CLUSTER, path)


def hypergraphs() -> list[str]:
    partitioner = PARTITIONER
    return [
        _saved_text(lambda path, h=h, form=form: formats.write_hypergraph(h, path, form))
        for h in (
            explicit.coarse(partitioner.network, partitioner.model),
            explicit.fine(partitioner.network, partitioner.model),
        )
        for form in formats.FORMATS
    ]


def use_hypergraph(path: pathlib.Path) -> object:
    h = formats.read_hypergraph(path)
    return explicit.km1(h, np.arange(len(h.weight)) % 2) if len(h.weight) else h


def weights() -> list[str]:
    names = [layer.name for layer in PARTITIONER.network.layers]
    return [json.dumps([1.5] * len(names)), json.dumps(dict.fromkeys(names, 2))]


def use_weights(path: pathlib.Path) -> object:
    work = layer_work(GRAPH, PARTITIONER.network, str(path), CLUSTER.devices[0])
    return Partitioner(GRAPH, work)


# -- schedules, reports and requests -----------------------------------------------------------------


def written_schedules() -> list[str]:
    """Two schedules written by hand, and all named ones that can have two stages on two workers."""
    texts = [
        "F0 F1 B0 B1\nF0 B0 F1 B1\nF1.0 after F0.1\n",
        "0  F0 .. B0  # a remark\n1  .. F0 B0\n",
    ]
    for name in NAMES:
        try:
            texts.append(schedules.schedule_to_text(named_schedule(name, 2, 2, 4)) + "\n")
        except InputError:
            continue
    return texts


def use_schedule(path: pathlib.Path) -> object:
    return drawn.describe_schedule(
        schedules.schedule_from_text(read_schedule(str(path))), "mine", 1
    )


SUMMARY = {
    "model": "small", "batch": 4, "cluster": "local:2", "best": "data", "file": "r.html", "bytes": 3,
    "methods": [
        {"label": "data", "step_ms": 1.5, "speedup": None},
        {"label": "owt", "step_ms": 2.0, "speedup": 0.7},
    ],
}  # fmt: skip


def use_summary(path: pathlib.Path) -> object:
    """The entry that `raddle serve` lists; None if the file is not a summary."""
    folder = path.parent / "shelf"
    folder.mkdir(exist_ok=True)
    (folder / "r.html").touch()
    os.replace(path, folder / "r.json")
    return (ReportFolder(str(folder)).list_reports() or [None])[0]


def pages() -> list[str]:
    return [html.assemble_page(html.pack_data(SUMMARY, b"123"), scripts=(), styles=())]


def request() -> dict[str, Any]:
    return {"model": "vgg16", "cluster": "p100:4", "batch": 8, "methods": ["data"], "budget": 1.5}


def use_request(path: pathlib.Path) -> object:
    try:
        data = parse_json(read_bytes(path, "request"))
    except ValueError as error:  # the server replies with a sentence
        raise InputError(f"the body is not JSON: {error}.") from None
    if not isinstance(data, dict):
        raise InputError("the body is not an object of JSON.")
    return read_request(data, ["data", "owt"], ["optcnn"])


def _saved_text(save: Callable[[Any], object]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        save(pathlib.Path(folder, "x"))
        return pathlib.Path(folder, "x").read_text()


PLAN = plans()[0]
PARTITIONER = Partitioner(GRAPH)


def _file_kind(
    name: str, form: str, seeds: list[str], read: Callable[[pathlib.Path], object]
) -> FileKind:
    return FileKind(name, form, tuple(text.encode() for text in seeds), read)


def _plan_texts() -> list[str]:
    return [
        _saved_text(lambda path, plan=plan: plan_file.save(plan, GRAPH, path)) for plan in plans()
    ]


TRACE = json.dumps({"displayTimeUnit": "ms", "traceEvents": events()})
FILE_KINDS = {
    kind.name: kind
    for kind in (
        _file_kind("plan.json", "json", _plan_texts(), use_plan),
        _file_kind("cluster.yaml", "yaml", clusters(), use_cluster),
        _file_kind("profile.json", "json", profiles(), use_profile),
        _file_kind("run.json", "json", [json.dumps(RUN)], use_run),
        _file_kind("trace.json", "json", [TRACE], use_trace),
        _file_kind("packed.json", "json", [TRACE], use_packed_trace),
        _file_kind("partition", "text", partitions(), use_partition),
        _file_kind("hypergraph", "text", hypergraphs(), use_hypergraph),
        _file_kind("weights.json", "json", weights(), use_weights),
        _file_kind("schedule", "text", written_schedules(), use_schedule),
        _file_kind("cache.json", "json", caches(), use_cache),
        _file_kind("summary.json", "json", [json.dumps(SUMMARY)], use_summary),
        _file_kind("page.html", "text", pages(), lambda path: read_page(path)),
        _file_kind("request.json", "json", [json.dumps(request())], use_request),
    )
}
