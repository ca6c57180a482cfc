"""Reads a measured run for the HTML page: the JSON of `raddle run --json`, and the trace that it names.

A trace is in the Chrome trace format: an event with ph "X" is a slice (an interval) in a lane (pid, tid),
an event with ph "M" names a process or a lane. A process is a device (pid: its number) or has the name
"links". `Fields` reads the keys of a JSON object and raises InputError if a value is wrong.
"""

# e: an event of a trace; its "ts" (start) and "dur" (duration) are in microseconds

from __future__ import annotations

import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from statistics import median_low
from typing import Any

from raddle.errors import InputError, quote
from raddle.files import Fields, read_json
from raddle.reports.page.columns import Columns

RUN_METRICS = (  # keys of the result of a run; warmup: how many first steps are not measured
    "step_ms", "fastest_ms", "slowest_ms", "samples_per_s", "steps", "warmup", "device", "threads",
    "loss_first", "loss_last",
)  # fmt: skip

MAX_MICROSECONDS = 1e15  # so that nanoseconds fit into 64 bits
MAX_COUNT = 2**31  # limit for numbers of processes, lanes, steps and micro-batches
MAX_BYTES = 2**53  # exact in JavaScript's numbers

Event = Mapping[str, Any]


def read_run(path: str | pathlib.Path) -> dict[str, Any]:
    """Return the result of a run.

    If its plan or trace is missing at the named path, a file of that name next to `path` is taken.
    """
    path = pathlib.Path(path)
    result = read_json(path, "result of a run")
    if not isinstance(result, dict) or not all(key in result for key in (*RUN_METRICS, "plan")):
        raise InputError(
            f"{quote(path)} is no result of a run: write it with `raddle run PLAN --json > {path.name}`."
        )
    _check_run(Fields(result, quote(path)))
    for key in ("plan", "trace"):
        if result.get(key) is not None:
            result[key] = str(_resolve_path(path, result[key]))
    return result


def _check_run(run: Fields) -> None:
    """Raise InputError for a value that a run cannot have."""
    for key in ("step_ms", "fastest_ms", "slowest_ms", "samples_per_s"):
        run.number(key)
    for key in ("steps", "warmup", "threads"):
        run.count(key, 0, MAX_COUNT)
    for key in ("loss_first", "loss_last"):
        if run.data[key] is not None:  # None: the loss was not a number
            run.number(key, -math.inf)
    for key in ("device", "plan"):
        run.text(key)
    if run.data.get("trace") is not None:
        run.text("trace")


def _resolve_path(path: pathlib.Path, path_in_file: str) -> pathlib.Path:
    """Return a path named in the file `path`, or the file of that name next to it if only that exists."""
    sibling = path.parent / pathlib.PurePath(path_in_file).name
    # os.path.exists does not raise for impossible file names
    moved = not os.path.exists(path_in_file) and os.path.exists(sibling)
    return sibling if moved else pathlib.Path(path_in_file)


def describe_run(
    result: Mapping[str, Any], ops: Mapping[str, int], columns: Columns
) -> dict[str, Any]:
    """Return the metrics of a run, and the timeline of its median step if it has a trace.

    ops: numbers of operators, by name. columns: packs lists of integers for the page; `add` stores one and
    returns where it is; with `delta`, differences of neighbouring numbers are stored.
    """
    timeline = None
    if result.get("trace") is not None:
        timeline = _timeline(read_trace(result["trace"]), ops, columns)
    return {**{key: result[key] for key in RUN_METRICS}, "timeline": timeline}


def read_trace(path: str | pathlib.Path) -> list[Event]:
    """Return the checked events of a trace that `raddle run --trace` wrote."""
    where = f"the trace {quote(path)}"
    events = Fields.from_data(read_json(path, "trace of a run", missing_hint="run it again"), where)
    trace_events = events.list("traceEvents")
    lanes = set()
    for number, event in enumerate(trace_events):
        fields = Fields.from_data(event, f"{where}, event {number},")
        if fields.text("ph") == "M":
            lane = fields.count("pid", 0, MAX_COUNT), fields.count("tid", 0, MAX_COUNT)
            fields.object("args").text("name")
            if fields.text("name") == "thread_name":
                if lane in lanes:
                    # The last argument completes the error's sentence about "tid".
                    raise fields.error("tid", "a lane that has one name alone")
                lanes.add(lane)
    for number, event in enumerate(trace_events):
        if event["ph"] == "X":
            _check_slice(Fields(event, f"{where}, event {number},"), lanes)
    return trace_events


def _check_slice(slice: Fields, lanes: set[tuple[int, int]]) -> None:
    """Raise InputError if a slice lacks something that the page shows, or its lane has no name."""
    if (slice.count("pid", 0, MAX_COUNT), slice.count("tid", 0, MAX_COUNT)) not in lanes:
        raise slice.error("tid", "a lane that has a name")
    for key in ("ts", "dur"):
        slice.number(key, 0, MAX_MICROSECONDS)
    for key in ("cat", "name"):
        slice.text(key)
    args = slice.object("args")
    args.text("phase")
    args.count("step", 0, MAX_COUNT)
    args.count("micro-batch", -1, MAX_COUNT)
    args.count("bytes", 0, MAX_BYTES)


def _timeline(
    events: Sequence[Event], ops: Mapping[str, int], columns: Columns
) -> dict[str, Any] | None:
    """Return the median step as `slices.describe_timeline` does; times in ns since the step began."""
    slices = [e for e in events if e["ph"] == "X"]
    if not slices:
        return None
    step, begin, end = _median_step(slices)
    slices = [e for e in slices if e["args"]["step"] == step]
    lanes = _lanes(events)
    slices.sort(key=lambda e: (lanes[e["pid"], e["tid"]][0], e["ts"]))
    titles: dict[tuple[str, str, str, int, int], int] = {}  # distinct titles -> their numbers
    title_of = [titles.setdefault(_title(e, ops), len(titles)) for e in slices]
    nothing = [-1] * len(slices)  # for columns that only simulated timelines have
    return {
        "period_ns": round(1e3 * (end - begin)),
        "lanes": [lane for _, lane in lanes.values()],
        "titles": [list(title) for title in titles],
        "count": len(slices),
        "start": columns.add([round(1e3 * (e["ts"] - begin)) for e in slices], delta=True),
        "duration": columns.add([max(1, round(1e3 * e["dur"])) for e in slices]),
        "lane": columns.add([lanes[e["pid"], e["tid"]][0] for e in slices]),
        "lane2": columns.add(nothing),
        "title": columns.add(title_of, delta=True),
        "source": columns.add(nothing),
        "target": columns.add(nothing),
        "bytes": columns.add([int(e["args"]["bytes"]) for e in slices]),
        "critical": columns.add([]),  # a trace has no critical path
    }


def _median_step(slices: Sequence[Event]) -> tuple[int, float, float]:
    """Return the step of median length, its begin and its end in microseconds."""
    spans: dict[int, tuple[float, float]] = {}
    for e in slices:
        first, last = spans.get(e["args"]["step"], (e["ts"], e["ts"]))
        spans[e["args"]["step"]] = min(first, e["ts"]), max(last, e["ts"] + e["dur"])
    middle = median_low(last - first for first, last in spans.values())
    step = next(s for s, (first, last) in spans.items() if last - first == middle)
    return step, *spans[step]


def _lanes(events: Sequence[Event]) -> dict[tuple[int, int], tuple[int, dict[str, Any]]]:
    """Return (number, description) of each lane, by (pid, tid), in the order of pid and tid."""
    names = [e for e in events if e["ph"] == "M"]
    process = {e["pid"]: e["args"]["name"] for e in names if e["name"] == "process_name"}
    lanes: dict[tuple[int, int], tuple[int, dict[str, Any]]] = {}
    for e in sorted(
        (e for e in names if e["name"] == "thread_name"), key=lambda e: (e["pid"], e["tid"])
    ):
        link = process.get(e["pid"]) == "links"
        name = e["args"]["name"] if link else f"device {e['pid']}, {e['args']['name']}"
        lane = {
            "name": name,
            "device": -1 if link else e["pid"],
            "kind": "link" if link else "measured",
        }
        lanes[e["pid"], e["tid"]] = len(lanes), lane
    return lanes


def _title(e: Event, ops: Mapping[str, int]) -> tuple[str, str, str, int, int]:
    """Return kind, name, phase, operator number or -1, and micro-batch of a slice."""
    args = e["args"]
    return e["cat"], e["name"], args["phase"], ops.get(e["name"], -1), args["micro-batch"]
