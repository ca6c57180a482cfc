"""All ranks are threads of this process: for tests, and for trying out.

Stricter than torch.distributed: sizes, types and orders that do not match raise.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from raddle.transport.base import DONE, Arriving, Doing, Expected, Pending, late, sent_in_all, stops
from raddle.transport.memory_wire import memory_wires
from raddle.transport.wire import Wire


class Hub:
    """What the ranks of a run share."""

    def __init__(self, size: int, timeout: float = 60.0) -> None:
        self.size = size
        self.timeout = timeout  # seconds
        self.news: tuple[int, str] | None = None  # the rank that failed first, and why
        self.bells = [threading.Condition(threading.Lock()) for _ in range(size)]
        self.boxes = [_Box() for _ in range(size)]  # each under its rank's bell
        self.meetings: dict[tuple[str, tuple[int, ...], int], _Meeting] = {}
        self.turns: dict[tuple[int, str, tuple[int, ...]], int] = defaultdict(
            int
        )  # by rank and kind
        self.lock = threading.Lock()  # of news and meetings
        self.wires: list[Wire] = []
        self.stops: list[tuple[int, Callable[[str], None]]] = []  # called when a rank has failed

    def transport(self, rank: int) -> Threads:
        return Threads(self, rank)

    def sleep(self, rank: int, ready: Callable[[], bool], doing: Doing) -> None:
        """Blocks the thread of a rank until ready; whoever makes it so rings the rank's bell."""
        deadline = time.monotonic() + self.timeout
        bell = self.bells[rank]
        with bell:
            while not ready():
                if self.news is not None:
                    raise stops(rank, *self.news)
                left = deadline - time.monotonic()
                if left <= 0:
                    raise late(rank, self.timeout, doing)
                bell.wait(left)

    def ring(self, ranks: Sequence[int]) -> None:
        for rank in ranks:
            with self.bells[rank]:
                self.bells[rank].notify_all()

    def meet(
        self, rank: int, kind: str, ranks: tuple[int, ...], tag: int, buffer: Tensor, doing: Doing
    ) -> Pending:
        """Joins the group's collective whose turn it is, and finishes it where nobody else is needed."""
        assert rank in ranks
        _settle(buffer)
        self.turns[rank, kind, ranks] += 1
        key = kind, ranks, self.turns[rank, kind, ranks]
        with self.lock:
            meeting = self.meetings.setdefault(key, _Meeting(kind, ranks))
            meeting.bring(rank, tag, buffer)
            complete = len(meeting.brought) == len(ranks)
            if complete:
                del self.meetings[key]
        if kind == "broadcast" and rank == tag:
            meeting.result = buffer.detach().clone()
            _settle(meeting.result)
        elif kind != "broadcast" and complete:
            meeting.sum()
        if meeting.ready():
            self.ring(ranks)
        return _Meet(self, rank, doing, meeting, buffer)


class Threads:
    """One rank's end; made by `Hub.transport`."""

    early = True

    def __init__(self, hub: Hub, rank: int) -> None:
        self.rank = rank
        self.size = hub.size
        self.sent: dict[int, int] = defaultdict(int)
        self.reduced: dict[tuple[int, ...], int] = defaultdict(int)
        self._hub = hub
        self._everyone = tuple(range(hub.size))
        self.timeout, self.failures = hub.timeout, hub
        self._wire: Wire | None = None

    def prepare(
        self,
        groups: Sequence[tuple[int, ...]],
        links: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        pass  # threads reach each other as they are

    def send(self, target: int, tag: int, buffer: Tensor, what: str = "") -> Pending:
        assert buffer.is_contiguous()
        assert not buffer.is_conj(), "others read memory as it is"
        assert not buffer.is_neg(), "others read memory as it is"
        self.sent[target] += buffer.nbytes
        message = buffer.detach().clone()
        _settle(message)
        key = self.rank, tag
        box, bell = self._hub.boxes[target], self._hub.bells[target]
        with bell:
            posted = box.posted.get(key)
            if posted:
                posted.popleft().message = message
                bell.notify_all()
            else:
                box.arrived[key].append(message)
        return DONE

    def receive(self, source: int, tag: int, buffer: Tensor, what: str = "") -> Pending:
        assert buffer.is_contiguous()
        pending = _Receive(self._hub, self.rank, Doing("receive from", source, tag, what), buffer)
        key = source, tag
        box = self._hub.boxes[self.rank]
        with self._hub.bells[self.rank]:
            arrived = box.arrived.get(key)
            if arrived:
                pending.message = arrived.popleft()
            else:
                box.posted[key].append(pending)
        return pending

    def post(self, target: int, tag: int, buffer: Tensor, what: str = "") -> Pending:
        return self.send(target, tag, buffer, what)

    def expect(
        self, source: int, tag: int, like: Tensor, elements: int, what: str = ""
    ) -> Arriving:
        buffer = like.new_empty(elements)
        return Expected(self.receive(source, tag, buffer, what), lambda: buffer)

    def all_reduce(
        self, ranks: tuple[int, ...], tag: int, buffer: Tensor, what: str = ""
    ) -> Pending:
        assert buffer.is_contiguous()
        self.reduced[ranks] += buffer.nbytes
        return self._hub.meet(
            self.rank, "sum", ranks, tag, buffer, Doing("sum over", ranks, tag, what)
        )

    def broadcast(self, source: int, buffer: Tensor) -> Pending:
        assert buffer.is_contiguous()
        doing = Doing("broadcast from", source)
        return self._hub.meet(self.rank, "broadcast", self._everyone, source, buffer, doing)

    def barrier(self) -> None:
        doing = Doing("barrier of", self._everyone)
        self._hub.meet(self.rank, "barrier", self._everyone, 0, torch.empty(0), doing).wait()

    def wire(self) -> Wire:
        if self._wire is None:
            with self._hub.lock:
                self._hub.wires = self._hub.wires or memory_wires(self.size, timeout=self.timeout)
            self._wire = self._hub.wires[self.rank]
        return self._wire

    def sent_in_all(self) -> dict[int, int]:
        return sent_in_all(self, self._wire)

    def on_failure(self, stop: Callable[[str], None]) -> None:
        with self._hub.lock:
            self._hub.stops.append((self.rank, stop))
            failed = self._hub.news
        if failed is not None:
            stop(str(stops(self.rank, *failed)))

    def check(self) -> None:
        if self._hub.news is not None:
            raise stops(self.rank, *self._hub.news)

    def fail(self, reason: str) -> None:
        with self._hub.lock:
            first = self._hub.news is None
            if first:
                self._hub.news = self.rank, reason
            waiting = list(self._hub.stops) if first else []
        self._hub.ring(self._everyone)
        for rank, stop in waiting:
            stop(str(stops(rank, self.rank, reason)))

    def close(self) -> None:
        pass


class _Receive:
    __slots__ = ("_buffer", "_doing", "_hub", "_rank", "message")

    def __init__(self, hub: Hub, rank: int, doing: Doing, buffer: Tensor) -> None:
        self._hub, self._rank, self._doing = hub, rank, doing
        self._buffer: Tensor | None = buffer
        self.message: Tensor | None = None

    def wait(self) -> None:
        if self._buffer is None:
            return
        if self.message is None:
            self._hub.sleep(self._rank, self._ready, self._doing)
        assert self.message is not None
        if not _alike(self.message, self._buffer):
            raise RuntimeError(
                f"rank {self._rank} cannot {self._doing}: {_kind(self.message)} were sent, "
                f"{_kind(self._buffer)} are expected"
            )
        _copy(self._buffer, self.message)
        self._buffer = self.message = None

    def _ready(self) -> bool:
        return self.message is not None


class _Box:
    """A rank's mail by (source, tag): receives that wait for a message, or messages for a receive."""

    def __init__(self) -> None:
        self.posted: dict[tuple[int, int], deque[_Receive]] = defaultdict(deque)
        self.arrived: dict[tuple[int, int], deque[Tensor]] = defaultdict(deque)


class _Meeting:
    """A collective: what each rank of the group brings, and what all take away."""

    def __init__(self, kind: str, ranks: tuple[int, ...]) -> None:
        self.kind, self.ranks = kind, ranks
        self.brought: dict[int, tuple[int, Tensor]] = {}  # tag (of a broadcast: source) and buffer
        self.result: Tensor | None = None
        self.error = ""

    def bring(self, rank: int, tag: int, buffer: Tensor) -> None:
        for other, (its_tag, its_buffer) in self.brought.items():
            if tag != its_tag or not _alike(buffer, its_buffer):
                name = "source" if self.kind == "broadcast" else "tag"
                self.error = (
                    f"rank {other} brings {_kind(its_buffer)} with {name} {its_tag}, "
                    f"rank {rank} {_kind(buffer)} with {name} {tag}"
                )
            break  # all that are here are alike
        self.brought[rank] = tag, buffer

    def sum(self) -> None:
        """In the order of ranks, so that all get the same bits whoever comes last."""
        if self.error:
            return
        first, *rest = [self.brought[rank][1].detach() for rank in self.ranks]
        total = first.clone()
        for buffer in rest:
            total += buffer.view(total.shape).to(total.device)
        _settle(total)
        self.result = total

    def ready(self) -> bool:
        return self.result is not None or self.error != ""


class _Meet:
    __slots__ = ("_buffer", "_doing", "_hub", "_meeting", "_rank")

    def __init__(
        self, hub: Hub, rank: int, doing: Doing, meeting: _Meeting, buffer: Tensor
    ) -> None:
        self._hub, self._rank, self._doing, self._buffer = hub, rank, doing, buffer
        self._meeting: _Meeting | None = meeting

    def wait(self) -> None:
        meeting = self._meeting
        if meeting is None:
            return
        if not meeting.ready():
            self._hub.sleep(self._rank, meeting.ready, self._doing)
        if meeting.error or meeting.result is None:
            raise RuntimeError(f"rank {self._rank} cannot {self._doing}: {meeting.error}")
        _copy(self._buffer, meeting.result)
        self._meeting = None


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.numel() == b.numel() and a.dtype == b.dtype


def _kind(tensor: Tensor) -> str:
    return f"{tensor.numel()} elements of {str(tensor.dtype).removeprefix('torch.')}"


def _copy(buffer: Tensor, result: Tensor) -> None:
    buffer.detach().copy_(result.view(buffer.shape))
    _settle(buffer)


def _settle(tensor: Tensor) -> None:
    """Another thread may use another stream."""
    if tensor.is_cuda:
        torch.cuda.current_stream(tensor.device).synchronize()
