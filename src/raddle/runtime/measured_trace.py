"""Makes a trace for Perfetto (Chrome trace format) from the recorded intervals of all ranks.

A lane is one horizontal line of the trace (a thread, in Chrome's words). The lanes are those of a simulated
trace, so the two can be compared. Each device is a process with two lanes: what it computes, and what it
sends and waits for. One more process, "links", has a lane for each pair of devices that exchange messages
and for each group that all-reduces.

The end of a transfer is not measured on the network. So a message is drawn from its send until the
receiver's wait for it ends, and an all-reduce from the start of its last member until the first member
updates. The real transfer may have ended earlier. If messages of a lane overlap, each is drawn from the
end of the previous one.
"""

# d: device (rank), s: a recorded interval, t: a transfer

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from raddle.program.chrome_trace import COMPUTE, Event, flow_events, lane_names, name_event
from raddle.runtime.recorder import RecordedInterval

WAITS = 1  # lane of a device for sends and waits; drawn below COMPUTE, which is lane 0
COMPUTES = ("run", "update")  # kinds of intervals in the lane COMPUTE
SHORTEST = 1e-9  # seconds; an event without length would be invisible

Intervals = Sequence[Sequence[RecordedInterval]]  # for each rank, in the order of time


class _Transfer(NamedTuple):
    """A message, or an all-reduce, as it is drawn in the lane of a link."""

    lane: str  # its name
    named_by: RecordedInterval  # gives the name, the phase and the bytes of the event
    source: int  # device; of an all-reduce, its first member
    target: int  # device; -1: an all-reduce
    start: float  # seconds
    end: float


def trace_events(kinds: Sequence[str], intervals: Intervals) -> Iterator[Event]:
    """Yields the events of a trace. kinds: names of the devices; intervals: on one clock for all ranks."""
    origin = min((s.start for rank_intervals in intervals for s in rank_intervals), default=0.0)
    intervals = [[s.shift(-origin) for s in intervals_of_rank] for intervals_of_rank in intervals]
    transfers = [*_messages(intervals), *_sums(intervals)]
    lanes = list(dict.fromkeys(t.lane for t in transfers))
    yield from lane_names(kinds, lanes)
    for d, of_rank in enumerate(intervals):
        yield name_event("thread_name", d, WAITS, "sends and waits")
        for s in of_rank:
            yield _interval_event(d, COMPUTE if s.kind in COMPUTES else WAITS, s, s.start, s.end)
    computed = [[s for s in of_device if s.kind in COMPUTES] for of_device in intervals]
    for lane, name in enumerate(lanes):
        lane_transfers = sorted((t for t in transfers if t.lane == name), key=lambda t: t.start)
        yield from _link_events(lane, lane_transfers, computed)


def _link_events(lane: int, transfers: Sequence[_Transfer], computed: Intervals) -> Iterator[Event]:
    """Yields the events of one link's lane, with arrows from the sender's run to the receiver's run.

    computed: for each device, its intervals in the lane COMPUTE (its runs).
    """
    # The processes 0, 1, ... of the trace are the devices; the next one is "links".
    links_process, previous_end = len(computed), 0.0
    for number, t in enumerate(transfers):
        start = max(t.start, previous_end)
        previous_end = end = max(t.end, start + SHORTEST)
        kind = "move" if t.target >= 0 else "reduce"
        yield {**_interval_event(links_process, lane, t.named_by, start, end), "cat": kind}
        if t.target >= 0:
            tail = _last_run_before(computed[t.source], t.source, t.start) or _position(
                links_process, lane, start
            )
            head = _first_run_after(computed[t.target], t.target, t.end) or _position(
                links_process, lane, end - SHORTEST
            )
            yield from flow_events(
                tail, head, name=t.named_by.name, cat=t.named_by.phase, id=f"{t.lane} {number}"
            )


def _messages(intervals: Intervals) -> list[_Transfer]:
    """Returns all messages: each send with the wait of its receiver."""
    # (source, target, tag, step) -> the wait of the target
    waits = {
        (s.peers[0], d, s.tag, s.step): s
        for d, rank_intervals in enumerate(intervals)
        for s in rank_intervals
        if s.kind == "wait" and s.peers
    }
    transfers = []
    for d, intervals_of_rank in enumerate(intervals):
        for s in intervals_of_rank:
            wait = waits.get((d, s.peers[0], s.tag, s.step)) if s.kind == "send" else None
            if wait is not None:
                target = s.peers[0]
                transfers.append(_Transfer(f"{d} -> {target}", wait, d, target, s.start, wait.end))
    return sorted(transfers, key=lambda t: (t.source, t.target))


def _sums(intervals: Intervals) -> list[_Transfer]:
    """Returns all all-reduces, each once, from the starts that its members recorded."""
    # (members, tag, step) -> the starts of this all-reduce, one for each member
    sums_by_group: dict[tuple[tuple[int, ...], int, int], list[RecordedInterval]] = {}
    updates: dict[tuple[int, int], float] = {}  # (device, step) -> start of the update
    for d, rank_intervals in enumerate(intervals):
        for s in rank_intervals:
            if s.kind == "sum":
                sums_by_group.setdefault((s.peers, s.tag, s.step), []).append(s)
            elif s.kind == "update":
                updates[d, s.step] = s.start
    transfers = []
    for (members, _, step), sums in sums_by_group.items():
        last = max(sums, key=lambda s: s.start)
        end = min((updates[d, step] for d in members if (d, step) in updates), default=last.end)
        lane = f"sum of {', '.join(map(str, members))}"
        transfers.append(_Transfer(lane, last, members[0], -1, last.start, end))
    return transfers


def _interval_event(
    process: int, lane: int, s: RecordedInterval, start: float, end: float
) -> Event:
    return {
        "ph": "X",
        "name": s.name,
        "cat": s.kind,
        **_position(process, lane, start),
        "dur": _microseconds(max(SHORTEST, end - start)),
        "args": {"phase": s.phase, "step": s.step, "micro-batch": s.micro, "bytes": s.nbytes},
    }


def _last_run_before(runs: Sequence[RecordedInterval], device: int, time: float) -> Event | None:
    """Returns the position just before the end of the last run that ends before a time, or None."""
    index = bisect_right(runs, time, key=lambda s: s.end) - 1
    if index < 0:
        return None
    return _position(device, COMPUTE, max(runs[index].start, runs[index].end - SHORTEST))


def _first_run_after(runs: Sequence[RecordedInterval], device: int, time: float) -> Event | None:
    """Returns the position of the start of the first run after a time, or None."""
    index = bisect_left(runs, time, key=lambda s: s.start)
    return _position(device, COMPUTE, runs[index].start) if index < len(runs) else None


def _position(process: int, lane: int, seconds: float) -> Event:
    """Returns the fields of an event that say where it is: process, lane and time in microseconds."""
    return {"pid": process, "tid": lane, "ts": _microseconds(seconds)}


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)
