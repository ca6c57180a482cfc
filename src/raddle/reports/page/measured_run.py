"""What a run measured, for the page: the JSON of `raddle run --json`, and the trace that it names."""

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

RUN_METRICS = (
    "step_ms", "fastest_ms", "slowest_ms", "samples_per_s", "steps", "warmup", "device", "threads",
    "loss_first", "loss_last",
)  # fmt: skip

MAX_MICROSECONDS = 1e15  # microseconds: what nanoseconds in 64 bits can hold
MAX_COUNT = 2**31  # processes, lanes, steps and micro-batches
MAX_BYTES = 2**53  # bytes: what the page's numbers can hold

Event = Mapping[str, Any]


def read_run(path: str | pathlib.Path) -> dict[str, Any]:
    """The result of a run; its plan and trace are found beside it if they are not where it says."""
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
    """InputError unless every figure is one that a run can have."""
    for key in ("step_ms", "fastest_ms", "slowest_ms", "samples_per_s"):
        run.number(key)
    for key in ("steps", "warmup", "threads"):
        run.count(key, 0, MAX_COUNT)
    for key in ("loss_first", "loss_last"):
        if run.data[key] is not None:  # as of a run whose loss was no number in the end
            run.number(key, -math.inf)
    for key in ("device", "plan"):
        run.text(key)
    if run.data.get("trace") is not None:
        run.text("trace")


def _resolve_path(path: pathlib.Path, path_in_file: str) -> pathlib.Path:
    """What a file names, where it says, or else beside it."""
    sibling = path.parent / pathlib.PurePath(path_in_file).name
    # os.path.exists, which a name that no file can have does not make fail
    moved = not os.path.exists(path_in_file) and os.path.exists(sibling)
    return sibling if moved else pathlib.Path(path_in_file)


def describe_run(
    result: Mapping[str, Any], ops: Mapping[str, int], columns: Columns
) -> dict[str, Any]:
    """Its figures, and the timeline of a typical step where there is a trace."""
    timeline = None
    if result.get("trace") is not None:
        timeline = _timeline(read_trace(result["trace"]), ops, columns)
    return {**{key: result[key] for key in RUN_METRICS}, "timeline": timeline}


def read_trace(path: str | pathlib.Path) -> list[Event]:
    """The events of a trace that `raddle run --trace` wrote."""
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
                    raise fields.error("tid", "a lane that has one name alone")
                lanes.add(lane)
    for number, event in enumerate(trace_events):
        if event["ph"] == "X":
            _check_slice(Fields(event, f"{where}, event {number},"), lanes)
    return trace_events


def _check_slice(slice: Fields, lanes: set[tuple[int, int]]) -> None:
    """InputError unless a slice has all that the page shows, in a lane that has a name."""
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
    """As `slices.describe_timeline`, of the step in the middle; times since it began."""
    slices = [e for e in events if e["ph"] == "X"]
    if not slices:
        return None
    step, begin, end = _median_step(slices)
    slices = [e for e in slices if e["args"]["step"] == step]
    lanes = _lanes(events)
    slices.sort(key=lambda e: (lanes[e["pid"], e["tid"]][0], e["ts"]))
    titles: dict[tuple[str, str, str, int, int], int] = {}
    title_of = [titles.setdefault(_title(e, ops), len(titles)) for e in slices]
    nothing = [-1] * len(slices)
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
        "critical": columns.add([]),
    }


def _median_step(slices: Sequence[Event]) -> tuple[int, float, float]:
    """The step of median length, when it begins and when it ends, in microseconds."""
    spans: dict[int, tuple[float, float]] = {}
    for e in slices:
        first, last = spans.get(e["args"]["step"], (e["ts"], e["ts"]))
        spans[e["args"]["step"]] = min(first, e["ts"]), max(last, e["ts"] + e["dur"])
    middle = median_low(last - first for first, last in spans.values())
    step = next(s for s, (first, last) in spans.items() if last - first == middle)
    return step, *spans[step]


def _lanes(events: Sequence[Event]) -> dict[tuple[int, int], tuple[int, dict[str, Any]]]:
    """By process and thread its number and its name; devices come first, then links."""
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
    args = e["args"]
    return e["cat"], e["name"], args["phase"], ops.get(e["name"], -1), args["micro-batch"]
