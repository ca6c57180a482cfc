"""What a run measured, for the page: the JSON of `raddle run --json`, and the trace that it names."""

from __future__ import annotations

import gzip
import json
import pathlib
from collections.abc import Mapping, Sequence
from statistics import median_low
from typing import Any

from raddle.errors import InputError
from raddle.page.columns import Columns

FIGURES = (
    "step_ms", "fastest_ms", "slowest_ms", "samples_per_s", "steps", "warmup", "device", "threads",
    "loss_first", "loss_last",
)  # fmt: skip

Event = Mapping[str, Any]


def read_run(path: str | pathlib.Path) -> dict[str, Any]:
    """The result of a run; its plan and trace are found beside it if they are not where it says."""
    path = pathlib.Path(path)
    result = _read_json(path, "run")
    if not isinstance(result, dict) or not all(key in result for key in (*FIGURES, "plan")):
        raise InputError(
            f"'{path}' is no result of a run: write it with `raddle run PLAN --json > {path.name}`."
        )
    for key in ("plan", "trace"):
        if result.get(key) is not None:
            result[key] = str(_beside(path, str(result[key])))
    return result


def _beside(path: pathlib.Path, named: str) -> pathlib.Path:
    """What a file names, where it says, or else beside it."""
    beside = path.parent / pathlib.PurePath(named).name
    return beside if not pathlib.Path(named).exists() and beside.exists() else pathlib.Path(named)


def _read_json(path: pathlib.Path, what: str) -> Any:
    try:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt") as file:
            return json.load(file)
    except FileNotFoundError:
        raise InputError(f"there is no file '{path}' of a {what}.") from None
    except (OSError, EOFError) as error:
        raise InputError(f"'{path}' cannot be read: {error}.") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"'{path}' is no {what} in JSON: {error}.") from None


def describe_run(
    result: Mapping[str, Any], ops: Mapping[str, int], columns: Columns
) -> dict[str, Any]:
    """Its figures, and the timeline of a typical step where there is a trace."""
    timeline = None
    if result.get("trace") is not None:
        path = pathlib.Path(result["trace"])
        trace = _read_json(path, "trace")
        try:
            timeline = _timeline(trace["traceEvents"], ops, columns)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"'{path}' is no trace of a run ({error!r}): run it again.") from None
    return {**{key: result[key] for key in FIGURES}, "timeline": timeline}


def _timeline(
    events: Sequence[Event], ops: Mapping[str, int], columns: Columns
) -> dict[str, Any] | None:
    """As `slices.describe_timeline`, of the step in the middle; times since it began."""
    slices = [e for e in events if e["ph"] == "X"]
    if not slices:
        return None
    step, begin, end = _typical(slices)
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


def _typical(slices: Sequence[Event]) -> tuple[int, float, float]:
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
    named = [e for e in events if e["ph"] == "M"]
    process = {e["pid"]: e["args"]["name"] for e in named if e["name"] == "process_name"}
    found: dict[tuple[int, int], tuple[int, dict[str, Any]]] = {}
    for e in sorted(
        (e for e in named if e["name"] == "thread_name"), key=lambda e: (e["pid"], e["tid"])
    ):
        link = process.get(e["pid"]) == "links"
        name = e["args"]["name"] if link else f"device {e['pid']}, {e['args']['name']}"
        lane = {
            "name": name,
            "device": -1 if link else e["pid"],
            "kind": "link" if link else "measured",
        }
        found[e["pid"], e["tid"]] = len(found), lane
    return found


def _title(e: Event, ops: Mapping[str, int]) -> tuple[str, str, str, int, int]:
    args = e["args"]
    return e["cat"], e["name"], args["phase"], ops.get(e["name"], -1), args["micro-batch"]
