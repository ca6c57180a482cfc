"""A Chrome trace of what is handed in, waited for, summed and updated, on all ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from raddle.program.chrome_trace import Event, name_event, write_events

LANES = ("wait", "push", "pull", "sum", "update")  # of a rank; what overlaps in a lane is shown so
MAX_SPANS = 500_000  # slices that are kept: a long run shows its beginning


class TraceSpan(NamedTuple):
    """Something that took time."""

    lane: str
    name: str
    start: float  # seconds since the epoch: processes and machines agree on it, more or less
    end: float


class ChromeTrace:
    """One rank's slices; rank 0 writes those of all."""

    def __init__(self, path: str, rank: int) -> None:
        self._path, self._rank = Path(path), rank
        self._spans: list[TraceSpan] = []
        self._offset = time.time() - time.perf_counter()

    def record(self, name: str, lane: str, start: float, end: float) -> None:
        """Times are of time.perf_counter. Any thread may call it."""
        if len(self._spans) < MAX_SPANS:
            self._spans.append(TraceSpan(lane, name, start + self._offset, end + self._offset))

    def write(self, exchange: Callable[[Any], list[Any]] | None) -> None:
        """None: others cannot be asked, so each rank writes a file with its rank in the name."""
        spans = list(self._spans)
        if exchange is not None:
            spans_by_rank = exchange(spans)
            if self._rank == 0:
                write_events(_events(spans_by_rank), self._path)
        else:
            path = self._path.with_suffix(f".rank{self._rank}{self._path.suffix}")
            write_events(_events([[]] * self._rank + [spans]), path)


def _events(spans_by_rank: Sequence[Sequence[TraceSpan]]) -> Iterator[Event]:
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
