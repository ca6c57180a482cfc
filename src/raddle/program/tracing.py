"""Chrome trace events, which Perfetto (ui.perfetto.dev) and chrome://tracing show.

Simulated and measured traces have the same lanes: a process for each device, whose first lane is what it
computes, and a process "links" for what is on its way.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import gzip
import io
import json
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TextIO

Event = dict[str, Any]
COMPUTE = 0  # the lane of a device


def write_events(events: Iterable[Event], path: str | pathlib.Path) -> None:
    """Gzipped where the path ends in .gz."""
    with _opened(pathlib.Path(path)) as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        for number, event in enumerate(events):
            # One event after the other: a trace of millions of tasks is never in memory as a whole.
            file.write((",\n" if number else "") + json.dumps(event, separators=(",", ":")))
        file.write("\n]}\n")


def _opened(path: pathlib.Path) -> TextIO:
    if path.suffix == ".gz":
        # Without the time of writing: the same timeline gives the same file.
        return io.TextIOWrapper(gzip.GzipFile(path, "wb", compresslevel=6, mtime=0))
    return path.open("w")


def lane_names(devices: Sequence[str], links: Iterable[str]) -> Iterator[Event]:
    """What stands beside the lanes: the kind of each device, and the links."""
    for d, kind in enumerate(devices):
        yield name_event("process_name", d, COMPUTE, f"device {d} ({kind})")
        yield name_event("thread_name", d, COMPUTE, "compute")
    yield name_event("process_name", len(devices), 0, "links")
    for number, link in enumerate(links):
        yield name_event("thread_name", len(devices), number, link)


def name_event(what: str, process: int, lane: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": lane, "args": {"name": name}}


def arrow(start: Event, end: Event, **title: Any) -> Iterator[Event]:
    """From one lane and time to another; each must lie in a slice, or the arrow holds on to nothing."""
    yield {"ph": "s", **title, **start}
    yield {"ph": "f", "bp": "e", **title, **end}
