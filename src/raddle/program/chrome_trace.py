"""Chrome trace events, which Perfetto (ui.perfetto.dev) and chrome://tracing show.

Simulated and measured traces have the same lanes: a process for each device, whose first lane is what it
computes, and a process "links" for what is on its way.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import gzip
import json
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from raddle.files import replace_atomically

Event = dict[str, Any]
COMPUTE = 0  # the lane of a device


def write_events(events: Iterable[Event], path: str | pathlib.Path) -> None:
    """Gzipped where the path ends in .gz."""
    with replace_atomically(path) as file:
        if pathlib.PurePath(path).suffix != ".gz":
            file.writelines(_lines(events))
            return
        # Without a name and the time of writing: the same timeline gives the same file.
        with gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) as packed:
            packed.writelines(_lines(events))


def _lines(events: Iterable[Event]) -> Iterator[bytes]:
    """One event after the other: a trace of millions of tasks is never in memory as a whole."""
    yield b'{"displayTimeUnit":"ms","traceEvents":[\n'
    for number, event in enumerate(events):
        yield ((",\n" if number else "") + json.dumps(event, separators=(",", ":"))).encode()
    yield b"\n]}\n"


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


def flow_events(start: Event, end: Event, **title: Any) -> Iterator[Event]:
    """From one lane and time to another; each must lie in a slice, or the arrow holds on to nothing."""
    yield {"ph": "s", **title, **start}
    yield {"ph": "f", "bp": "e", **title, **end}
