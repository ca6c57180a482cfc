"""Writes a Chrome trace of the synchronisation on all ranks, which Perfetto shows.

It has a bar (span) for each wait, push (gradient to a server), pull (rows back from a server), sum
(all-reduce) and update.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from raddle.program.chrome_trace import Event, name_event, write_events

LANES = ("wait", "push", "pull", "sum", "update")  # rows of a rank in the trace
MAX_SPANS = 500_000  # spans that a rank keeps; later ones are dropped


class TraceSpan(NamedTuple):
    """One bar of the trace."""

    lane: str
    name: str
    start: float  # seconds since the epoch, on which machines agree approximately
    end: float


class ChromeTrace:
    """The spans of one rank; rank 0 writes those of all ranks into one file."""

    def __init__(self, path: str, rank: int) -> None:
        self._path, self._rank = Path(path), rank
        self._spans: list[TraceSpan] = []
        self._offset = time.time() - time.perf_counter()  # from perf_counter to the epoch

    def record(self, name: str, lane: str, start: float, end: float) -> None:
        """Adds a span. start and end are times of time.perf_counter. Any thread may call it."""
        if len(self._spans) < MAX_SPANS:
            self._spans.append(TraceSpan(lane, name, start + self._offset, end + self._offset))

    def write(self, exchange: Callable[[Any], list[Any]] | None) -> None:
        """Writes the trace. exchange: gathers an object from every rank.

        None: ranks cannot communicate any more, so each writes its own file, with the rank in its name.
        """
        spans = list(self._spans)
        if exchange is not None:
            spans_by_rank = exchange(spans)
            if self._rank == 0:
                write_events(_events(spans_by_rank), self._path)
        else:
            path = self._path.with_suffix(f".rank{self._rank}{self._path.suffix}")
            # The lower ranks have no spans in this file.
            write_events(_events([[]] * self._rank + [spans]), path)


def _events(spans_by_rank: Sequence[Sequence[TraceSpan]]) -> Iterator[Event]:
    """Yields the events: pid is the rank, tid the lane, times are microseconds since the first span.

    name_event names a process or a thread of the trace.
    """
    origin = min((s.start for spans in spans_by_rank for s in spans), default=0.0)
    for rank, spans in enumerate(spans_by_rank):
        yield name_event("process_name", rank, 0, f"rank {rank}")
        for lane, name in enumerate(LANES):
            yield name_event("thread_name", rank, lane, name)
        for s in spans:
            yield {
                "ph": "X", "name": s.name, "cat": s.lane, "pid": rank, "tid": LANES.index(s.lane),
                "ts": round((s.start - origin) * 1e6, 3), "dur": round((s.end - s.start) * 1e6, 3),
            }  # fmt: skip
