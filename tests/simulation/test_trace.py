"""A trace has an event for every task that holds a resource, and an arrow for every message."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_plans import SYNCS, random_plan
from small_models import small

from raddle.clusters import cluster
from raddle.program.lower import lower
from raddle.program.program import Move
from raddle.simulation.memory.peaks import memory_curve
from raddle.simulation.timeline import Timeline, simulate
from raddle.simulation.trace import write_trace

Event = dict[str, Any]


def write_and_read_trace(
    path: Path, machine: str = "p100:2x2", **more: Any
) -> tuple[Timeline, list[Event]]:
    graph = small("lenet-tiny")[1]
    plan = random_plan(graph, 4, 3, steps=2, microbatches=2, **more)
    timeline = simulate(lower(graph, plan), cluster(machine))
    write_trace(timeline, path)
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    return timeline, json.loads(text)["traceEvents"]


def with_phase(events: list[Event], ph: str) -> list[Event]:
    return [e for e in events if e["ph"] == ph]


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_is_written_as_the_path_says(name: str, tmp_path: Path) -> None:
    _, events = write_and_read_trace(tmp_path / name)
    assert {e["ph"] for e in events} == set("MXsfC")


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("machine", ["p100:2x2", "k80:1x4"])  # ports and NICs; one bus
def test_task_events(sync: str, machine: str, tmp_path: Path) -> None:
    timeline, events = write_and_read_trace(tmp_path / "t.json", machine, sync=sync)
    tasks, slices = timeline.tasks, with_phase(events, "X")
    assert len(slices) == np.sum(tasks.first_resource >= 0) + np.sum(tasks.second_resource >= 0)
    assert sum(e["pid"] < 4 for e in slices) == np.sum(
        (tasks.first_resource >= 0) & (tasks.first_resource < 4)
    )
    # A message in flight holds no link, so it has no event in a lane.
    released = timeline.start + tasks.duration
    assert max(e["ts"] + e["dur"] for e in slices) == pytest.approx(released.max() / 1000)
    lanes: dict[tuple[int, int], list[Event]] = {}
    for e in slices:
        lanes.setdefault((e["pid"], e["tid"]), []).append(e)
        assert e["dur"] > 0
        assert e["args"].keys() == {"phase", "step", "micro-batch", "bytes"}
    named = {(e["pid"], e["tid"]) for e in with_phase(events, "M") if e["name"] == "thread_name"}
    assert lanes.keys() <= named
    for lane in lanes.values():
        lane.sort(key=lambda e: e["ts"])
        for a, b in pairwise(lane):  # a resource does one thing at a time, so nothing overlaps
            assert a["ts"] + a["dur"] <= b["ts"] + 1e-6


def test_names(tmp_path: Path) -> None:
    timeline, events = write_and_read_trace(tmp_path / "t.json")
    processes = [e["args"]["name"] for e in with_phase(events, "M") if e["name"] == "process_name"]
    assert processes == [*(f"device {d} (p100)" for d in range(4)), "links"]
    lanes = [e["args"]["name"] for e in with_phase(events, "M") if e["pid"] == 4][1:]
    assert tuple(lanes) == timeline.cluster.links


def test_arrows(tmp_path: Path) -> None:
    timeline, events = write_and_read_trace(tmp_path / "t.json")
    moves = [i for i in timeline.program.instructions if isinstance(i, Move)]
    tails = {e["id"]: e for e in with_phase(events, "s")}
    heads = {e["id"]: e for e in with_phase(events, "f")}
    assert (
        len(with_phase(events, "s"))
        == len(with_phase(events, "f"))
        == sum(len(i.messages) for i in moves)
    )
    assert tails.keys() == heads.keys()
    slices = with_phase(events, "X")
    for number, tail in tails.items():
        head = heads[number]
        assert tail["ts"] <= head["ts"]
        assert tail["pid"] == timeline.tasks.source[number]
        assert head["pid"] == timeline.tasks.device[number]
        for end in (tail, head):  # viewers attach an arrow to the event at its time
            assert any(
                (e["pid"], e["tid"]) == (end["pid"], end["tid"])
                and e["ts"] - 1e-6 <= end["ts"] <= e["ts"] + e["dur"] + 1e-6
                for e in slices
            )


def test_memory(tmp_path: Path) -> None:
    timeline, events = write_and_read_trace(tmp_path / "t.json")
    for d in range(4):
        counters = [e for e in with_phase(events, "C") if e["pid"] == d]
        times, nbytes = memory_curve(timeline, d)
        assert [e["args"]["bytes"] for e in counters] == nbytes.tolist()
        assert [e["ts"] for e in counters] == pytest.approx(times / 1000)
