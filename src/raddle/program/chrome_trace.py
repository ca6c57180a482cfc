"""Writes traces in Chrome's trace event format, for Perfetto (ui.perfetto.dev) and chrome://tracing.

A lane is a line of the picture; the format calls it a thread, and a group of lanes a process. Simulated and
measured traces have the same lanes: one process for each device, whose first lane shows what the device
computes, and a process "links", which has a lane for each link and shows the transfers on it.

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
COMPUTE = 0  # the lane (thread id) of a device's computations


def write_events(events: Iterable[Event], path: str | pathlib.Path) -> None:
    """Writes events to a JSON file, gzipped if the path ends in .gz."""
    with replace_atomically(path) as file:
        if pathlib.PurePath(path).suffix != ".gz":
            file.writelines(_lines(events))
            return
        # Without a file name and a time stamp, so that the same timeline gives the same bytes.
        with gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) as packed:
            packed.writelines(_lines(events))


def _lines(events: Iterable[Event]) -> Iterator[bytes]:
    """Yields the file piece by piece: a trace of millions of tasks need not fit into memory."""
    yield b'{"displayTimeUnit":"ms","traceEvents":[\n'
    for number, event in enumerate(events):
        yield ((",\n" if number else "") + json.dumps(event, separators=(",", ":"))).encode()
    yield b"\n]}\n"


def lane_names(devices: Sequence[str], links: Iterable[str]) -> Iterator[Event]:
    """Yields the events that name the lanes.

    devices: the kind of each device. links: the names of the links.
    """
    for d, kind in enumerate(devices):
        yield name_event("process_name", d, COMPUTE, f"device {d} ({kind})")
        yield name_event("thread_name", d, COMPUTE, "compute")
    yield name_event("process_name", len(devices), 0, "links")
    for number, link in enumerate(links):
        yield name_event("thread_name", len(devices), number, link)


def name_event(what: str, process: int, lane: int, name: str) -> Event:
    """Returns the event that names a process (what: process_name) or a lane (what: thread_name)."""
    # ph is the phase, that is, the type of an event; M: metadata
    return {"ph": "M", "name": what, "pid": process, "tid": lane, "args": {"name": name}}


def flow_events(start: Event, end: Event, **title: Any) -> Iterator[Event]:
    """Yields the two events of an arrow from one lane and time to another: a "flow" of the format.

    start, end: pid, tid and ts of each end, which must lie inside a shown event. title: name, cat and id of
    the arrow. In `ph`, s is the start and f the finish.
    """
    yield {"ph": "s", **title, **start}
    yield {"ph": "f", "bp": "e", **title, **end}
