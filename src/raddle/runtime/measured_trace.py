"""A measured trace, with the lanes of a simulated one.

A process for each device: what it computes, and below that what it hands over and waits for. A process
"links" with a lane for each pair of devices and for each group that sums. A message lasts from when it is
handed over until its receiver has it in hand; a sum, from when its last member is there until the first one
updates: both may have been done earlier. Of messages on their way at the same time, each starts where the
one before it ends.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from raddle.program.chrome_trace import COMPUTE, Event, flow_events, lane_names, name_event
from raddle.runtime.recorder import Slice

WAITS = 1  # the lane of a device below what it computes
COMPUTES = ("run", "update")
SHORTEST = 1e-9  # seconds: what has no length cannot be seen

Slices = Sequence[Sequence[Slice]]  # by rank, in the order of time


class _Transfer(NamedTuple):
    """A message or a sum on its way."""

    lane: str
    title: Slice
    source: int
    target: int
    start: float
    end: float


def trace_events(kinds: Sequence[str], slices: Slices) -> Iterator[Event]:
    """Events of all ranks' slices, whose clocks agree; `kinds` says what each device is."""
    origin = min((s.start for own in slices for s in own), default=0.0)
    slices = [[s.shift(-origin) for s in own] for own in slices]
    transfers = [*_messages(slices), *_sums(slices)]
    lanes = list(dict.fromkeys(t.lane for t in transfers))
    yield from lane_names(kinds, lanes)
    for d, own in enumerate(slices):
        yield name_event("thread_name", d, WAITS, "sends and waits")
        for s in own:
            yield _slice(d, COMPUTE if s.kind in COMPUTES else WAITS, s, s.start, s.end)
    computed = [[s for s in own if s.kind in COMPUTES] for own in slices]
    for lane, name in enumerate(lanes):
        own_transfers = sorted((t for t in transfers if t.lane == name), key=lambda t: t.start)
        yield from _link(lane, own_transfers, computed)


def _link(lane: int, transfers: Sequence[_Transfer], computed: Slices) -> Iterator[Event]:
    """What is on its way on one link, with arrows from run to run."""
    links, last = len(computed), 0.0
    for number, t in enumerate(transfers):
        start = max(t.start, last)
        last = end = max(t.end, start + SHORTEST)
        kind = "move" if t.target >= 0 else "reduce"
        yield {**_slice(links, lane, t.title, start, end), "cat": kind}
        if t.target >= 0:
            tail = _before(computed[t.source], t.source, t.start) or _at(links, lane, start)
            head = _after(computed[t.target], t.target, t.end) or _at(links, lane, end - SHORTEST)
            yield from flow_events(
                tail, head, name=t.title.name, cat=t.title.phase, id=f"{t.lane} {number}"
            )


def _messages(slices: Slices) -> list[_Transfer]:
    """Each send with the wait of its receiver."""
    waits = {
        (s.peers[0], d, s.tag, s.step): s
        for d, own in enumerate(slices)
        for s in own
        if s.kind == "wait" and s.peers
    }
    found = []
    for d, own in enumerate(slices):
        for s in own:
            wait = waits.get((d, s.peers[0], s.tag, s.step)) if s.kind == "send" else None
            if wait is not None:
                target = s.peers[0]
                found.append(_Transfer(f"{d} -> {target}", wait, d, target, s.start, wait.end))
    return sorted(found, key=lambda t: (t.source, t.target))


def _sums(slices: Slices) -> list[_Transfer]:
    """Each all-reduce once, by the members that started it."""
    begun: dict[tuple[tuple[int, ...], int, int], list[Slice]] = {}
    updates: dict[tuple[int, int], float] = {}  # by device and step
    for d, own in enumerate(slices):
        for s in own:
            if s.kind == "sum":
                begun.setdefault((s.peers, s.tag, s.step), []).append(s)
            elif s.kind == "update":
                updates[d, s.step] = s.start
    found = []
    for (members, _, step), own_sums in begun.items():
        last = max(own_sums, key=lambda s: s.start)
        end = min((updates[d, step] for d in members if (d, step) in updates), default=last.end)
        lane = f"sum of {', '.join(map(str, members))}"
        found.append(_Transfer(lane, last, members[0], -1, last.start, end))
    return found


def _slice(process: int, lane: int, s: Slice, start: float, end: float) -> Event:
    return {
        "ph": "X",
        "name": s.name,
        "cat": s.kind,
        **_at(process, lane, start),
        "dur": _micros(max(SHORTEST, end - start)),
        "args": {"phase": s.phase, "step": s.step, "micro-batch": s.micro, "bytes": s.nbytes},
    }


def _before(own: Sequence[Slice], device: int, time: float) -> Event | None:
    """The end of the last run before a time, just inside of it."""
    at = bisect_right(own, time, key=lambda s: s.end) - 1
    if at < 0:
        return None
    return _at(device, COMPUTE, max(own[at].start, own[at].end - SHORTEST))


def _after(own: Sequence[Slice], device: int, time: float) -> Event | None:
    """The start of the first run after a time."""
    at = bisect_left(own, time, key=lambda s: s.start)
    return _at(device, COMPUTE, own[at].start) if at < len(own) else None


def _at(process: int, lane: int, seconds: float) -> Event:
    return {"pid": process, "tid": lane, "ts": _micros(seconds)}


def _micros(seconds: float) -> float:
    return round(seconds * 1e6, 3)
