"""Ranks are processes on torch.distributed: gloo between CPUs (or GPUs, through the host), or NCCL.

Groups of our own keep us apart from the user's collectives, and from each other what should not
queue: a gloo group runs two collectives at a time, so messages, sums and the small broadcasts get a
group each. gloo matches messages by tags. NCCL has none and runs what a communicator is given one
after the other, so there every link, of one direction, is a group, and a link's two ends must
issue their messages in the same order.

Failures reach all ranks through an `Alarm`, which then breaks the groups: whatever waits, raises.
What is not checked here: gloo aborts the process if more is sent than is expected, fills a part of
the buffer if less, and takes any type for any other. The program is checked instead.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import permutations
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from raddle.errors import InputError
from raddle.transport.alarm import Alarm
from raddle.transport.base import (
    DONE,
    LAST_TAG,
    Arriving,
    Doing,
    Expected,
    Pending,
    late,
    sent_in_all,
    stops,
)
from raddle.transport.orphans import end_with_parent
from raddle.transport.patience import PatientWire
from raddle.transport.sender import Sender
from raddle.transport.shared import LEAST, Areas, Pool, seat, sees
from raddle.transport.sockets import SocketWire
from raddle.transport.wire import Wire
from raddle.transport.words import Words

SHORT = 4096  # bytes of a message that its word brings along
GRACE = 3.0  # seconds for which a broken connection waits for the news that explain it


class Processes:
    """This process's rank. Joins the user's process group, or torchrun's environment if there is none."""

    def __init__(
        self, device: torch.device, backend: str | None = None, timeout: float = 300.0
    ) -> None:
        end_with_parent()
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        self._device = device
        self._backend = backend or ("nccl" if device.type == "cuda" else "gloo")
        self._timeout = self.timeout = timeout  # seconds
        self._wire: Wire | None = None
        self._stops: list[Callable[[str], None]] = []
        self._stopping = threading.Lock()
        self._limit = timedelta(seconds=timeout)
        self._closed = False
        self._owner = not dist.is_initialized()
        if self._owner:
            _join(self._backend, self._limit)
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.early = self._backend != "nccl"
        self.limit = (self._limit,) if self.early else ()  # with one, NCCL would hold up the host
        self.sent: dict[int, int] = defaultdict(int)
        self.reduced: dict[tuple[int, ...], int] = defaultdict(int)
        self._everyone = tuple(range(self.size))
        self._groups: list[dist.ProcessGroup] = []  # those that this rank is in
        self._sums: dict[tuple[int, ...], dist.ProcessGroup] = {}
        self._links: set[tuple[int, int]] = set()  # with a group of their own, known to all ranks
        self._to: dict[int, tuple[dist.ProcessGroup, int]] = {}  # group, and the peer's rank in it
        self._from: dict[int, tuple[dist.ProcessGroup, int]] = {}
        self._pool, self._areas = Pool(), Areas()
        self._near: set[int] = set()  # ranks that see our memory, and we theirs
        self._words: Words | None = None
        self._sender: Sender | None = None
        self._alarm: Alarm | None = None
        self._service = self._group(self._everyone)
        try:
            self._connect()
            # Last: from here on a failure may be heard at any time, and `_break` finds all that there is.
            self._alarm = Alarm(self.rank, self.size, self._gather, self._break, timeout)
        except BaseException:
            self.close()
            raise
        atexit.register(self.close)  # a thread in torch while Python ends would crash

    def _connect(self) -> None:
        """Makes the ways of messages and sums."""
        self._sums[self._everyone] = self._group(self._everyone)
        if self.early:
            messages = self._group(self._everyone)
            self._to = self._from = {r: (messages, r) for r in self._everyone}
        if self.early and self._device.type == "cpu":
            limit = self._timeout
            self._sender = Sender(limit, lambda doing: late(self.rank, limit, doing))
            self._near = self._neighbours()
            words = Words(self.rank, self._near, self._gather, limit)
            self._words = words if self._near else None

    def prepare(
        self,
        groups: Sequence[tuple[int, ...]],
        links: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        for ranks in groups:
            if ranks not in self._sums:
                self._sums[ranks] = self._group(ranks)
        if self._backend == "nccl":
            every = list(permutations(self._everyone, 2)) if links is None else links
            fresh = [link for link in every if link not in self._links]
            self._links.update(fresh)
            for source, target in fresh:
                group = self._group((source, target))
                ends = sorted((source, target))
                if self.rank == source:
                    self._to[target] = group, ends.index(target)
                elif self.rank == target:
                    self._from[source] = group, ends.index(source)
            self._warm(fresh)

    def _neighbours(self) -> set[int]:
        """Ranks on this machine that may look at each other's memory."""
        own = seat()
        seats = self._gather(own)
        mine = [r for r in self._everyone if r != self.rank and sees(own, seats[r])]
        seen = self._gather(mine)
        if own.file >= 0:
            os.close(own.file)
        return {r for r in mine if self.rank in seen[r]}

    def post(self, target: int, tag: int, buffer: Tensor, what: str = "") -> Pending:
        near, large = target in self._near, buffer.nbytes >= LEAST
        if self._sender is None or not (near or large):
            return self.send(target, tag, buffer, what)
        self.sent[target] += buffer.nbytes
        doing = Doing("send to", target, tag, what)
        if not near:
            return self._sender.start(lambda: self._start(target, tag, buffer, doing), doing)
        if not large and not self._sender.busy:
            self._tell(target, tag, buffer, doing)
            return DONE
        # A copy takes long; and what comes after one must not overtake it.
        return self._sender.start(lambda: self._tell(target, tag, buffer, doing), doing)

    def _tell(self, target: int, tag: int, buffer: Tensor, doing: Doing) -> Pending:
        """Through shared memory, or in the word itself."""
        assert self._words is not None
        short = buffer.nbytes <= SHORT
        word = _bytes(buffer) if short else self._areas.put(buffer)
        begin = time.perf_counter()
        try:
            self._words.send(target, tag, word, self._timeout)
        except OSError as error:
            raise self._broken(doing, time.perf_counter() - begin, error) from error
        return DONE

    def expect(
        self, source: int, tag: int, like: Tensor, elements: int, what: str = ""
    ) -> Arriving:
        dtype = like.dtype
        nbytes = elements * dtype.itemsize
        if source in self._near:
            return _Told(self, Doing("receive from", source, tag, what), elements, dtype)
        if self._sender is not None and nbytes >= LEAST:
            buffer = self._pool.take(elements, dtype)
        else:
            # gloo receives into the host's memory: the device's is not needed before it has arrived.
            pinned = like.is_cuda and self.early
            place = torch.device("cpu") if pinned else like.device
            buffer = torch.empty(elements, dtype=dtype, device=place, pin_memory=pinned)
        pending = self.receive(source, tag, buffer, what)
        return Expected(pending, lambda: buffer.to(like.device, non_blocking=True))

    def told(self, doing: Doing, elements: int, dtype: torch.dtype) -> Tensor:
        """A neighbour's message."""
        assert self._words is not None
        assert isinstance(doing.peer, int)
        assert doing.tag is not None
        began = time.perf_counter()
        self.check()
        try:
            word = self._words.take(doing.peer, doing.tag, self._timeout)
        except OSError as error:
            raise self._broken(doing, time.perf_counter() - began, error) from error
        self.check()
        nbytes = elements * dtype.itemsize
        if nbytes > SHORT:
            return self._areas.get(word, elements, dtype)
        if len(word) != nbytes:
            raise RuntimeError(
                f"rank {self.rank} got {len(word)} bytes to {doing} and {nbytes} are needed: see "
                "whether all ranks have the same plan"
            )
        return (
            torch.frombuffer(bytearray(word), dtype=dtype)
            if nbytes
            else torch.empty(0, dtype=dtype)
        )

    def _broken(self, doing: Doing, seconds: float, error: OSError) -> Exception:
        """A line that has ended, or been silent for too long."""
        said = "timed out" if isinstance(error, TimeoutError) else str(error)
        return self.explain(doing, seconds, RuntimeError(said))

    def send(self, target: int, tag: int, buffer: Tensor, what: str = "") -> Pending:
        assert buffer.is_contiguous()
        self.sent[target] += buffer.nbytes
        doing = Doing("send to", target, tag, what)
        if buffer.is_cuda and self.early:
            buffer = _host(buffer).copy_(buffer)
        return self._start(target, tag, buffer, doing)

    def _start(self, target: int, tag: int, buffer: Tensor, doing: Doing) -> Pending:
        group, peer = self._to[target]
        try:
            work = dist.isend(buffer, group=group, tag=tag, group_dst=peer)
        except RuntimeError as error:
            raise self.explain(doing, 0.0, error) from error
        return _Pending(self, work, doing, buffer)

    def receive(self, source: int, tag: int, buffer: Tensor, what: str = "") -> Pending:
        assert buffer.is_contiguous()
        doing = Doing("receive from", source, tag, what)
        group, peer = self._from[source]
        host = _host(buffer) if buffer.is_cuda and self.early else buffer
        try:
            work = dist.irecv(host, group=group, tag=tag, group_src=peer)
        except RuntimeError as error:
            raise self.explain(doing, 0.0, error) from error
        return self._into(buffer, host, work, doing)

    def all_reduce(
        self, ranks: tuple[int, ...], tag: int, buffer: Tensor, what: str = ""
    ) -> Pending:
        assert buffer.is_contiguous()  # gloo would take any other and get it wrong
        self.reduced[ranks] += buffer.nbytes
        doing = Doing("sum over", ranks, tag, what)
        host = _host(buffer).copy_(buffer) if buffer.is_cuda and self.early else buffer
        try:
            work = dist.all_reduce(host, group=self._sums[ranks], async_op=True)
        except RuntimeError as error:
            raise self.explain(doing, 0.0, error) from error
        return self._into(buffer, host, work, doing)

    def broadcast(self, source: int, buffer: Tensor) -> Pending:
        assert buffer.is_contiguous()
        doing = Doing("broadcast from", source)
        host = _host(buffer).copy_(buffer) if buffer.is_cuda and self.early else buffer
        try:
            work = dist.broadcast(host, source, group=self._service, async_op=True)
        except RuntimeError as error:
            raise self.explain(doing, 0.0, error) from error
        return self._into(buffer, host, work, doing)

    def barrier(self) -> None:
        doing = Doing("barrier of", self._everyone)
        devices = None if self.early else [self._device.index]
        try:
            work = dist.barrier(group=self._service, async_op=True, device_ids=devices)
        except RuntimeError as error:
            raise self.explain(doing, 0.0, error) from error
        _Pending(self, work, doing).wait()

    def wire(self) -> Wire:
        if self._wire is None:
            wire = SocketWire(self.rank, self.size, self._gather, timeout=self._timeout)
            self._wire = PatientWire(wire, self._hear)
        return self._wire

    def _gather(self, own: Any) -> list[Any]:
        """What every rank has, in their order."""
        every: list[Any] = [None] * self.size
        begin = time.perf_counter()
        try:
            own_device = self._device.type == "cuda"  # NCCL would take the current one
            with torch.cuda.device(self._device) if own_device else contextlib.nullcontext():
                dist.all_gather_object(every, own, group=self._service)
        except RuntimeError as error:
            doing = Doing("gather from", self._everyone, what="addresses")
            raise self.explain(doing, time.perf_counter() - begin, error) from error
        return every

    def on_failure(self, stop: Callable[[str], None]) -> None:
        with self._stopping:
            self._stops.append(stop)
            failed = self.news
        if failed is not None:  # perhaps for the second time: the first counts
            stop(str(stops(self.rank, *failed)))

    def sent_in_all(self) -> dict[int, int]:
        return sent_in_all(self, self._wire)

    @property
    def news(self) -> tuple[int, str] | None:
        return None if self._alarm is None else self._alarm.news

    def _hear(self, seconds: float) -> tuple[int, str] | None:
        return None if self._alarm is None else self._alarm.hear(seconds)

    def check(self) -> None:
        if (news := self.news) is not None:
            raise stops(self.rank, *news)

    def fail(self, reason: str) -> None:
        if self._alarm is not None:
            self._alarm.tell(self.rank, reason)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        if self._alarm is not None:
            self._alarm.close()
        if self._wire is not None:
            self._wire.close()
        if self._sender is not None:
            self._sender.close()
        if self._words is not None:
            self._words.close()
        self._areas.close()
        # A group of torch 2.6 that ends holds the GIL and waits for threads which may need it to
        # free the last tensors.
        time.sleep(0.05)
        stuck = self.news is not None and not (self.early or _can_abort(self._service))
        if dist.is_initialized() and not stuck:  # the user may have destroyed all groups
            for group in self._groups:
                dist.destroy_process_group(group)
            if self._owner:
                dist.destroy_process_group()
        self._to, self._from, self._sums, self._groups = {}, {}, {}, []
        del self._service

    def explain(self, doing: Doing, seconds: float, error: RuntimeError) -> Exception:
        """Why torch raised: another rank's failure if there is one, else what was waited for."""
        slow = "timed out" in str(error).lower() or seconds >= self._timeout
        if (news := self._hear(0 if slow else GRACE)) is not None:
            return stops(self.rank, *news)
        if slow:
            return late(self.rank, seconds, doing)
        said = str(error).partition("\n")[0].partition(". ")[0]
        return RuntimeError(f"rank {self.rank} cannot {doing}, after {seconds:.1f} s: {said}")

    def _into(self, buffer: Tensor, host: Tensor, work: dist.Work | None, doing: Doing) -> Pending:
        if host is buffer:
            return _Pending(self, work, doing)
        return _Staged(self, work, doing, host, buffer)

    def _group(self, ranks: tuple[int, ...]) -> dist.ProcessGroup:
        """A group of our own; all ranks make all groups in the same order."""
        group = cast(
            dist.ProcessGroup,
            dist.new_group(list(ranks), timeout=self._limit, backend=self._backend),
        )
        if self.rank in ranks:
            self._groups.append(group)
        return group

    def _warm(self, links: Sequence[tuple[int, int]]) -> None:
        """Makes NCCL's communicators in one order on all ranks.

        A communicator is made by its first operation, which holds up the host until all its ranks
        are there: in the midst of a program, that could be never.
        """
        one = torch.zeros(1, device=self._device)
        for ranks, group in self._sums.items():
            if self.rank in ranks:
                dist.all_reduce(one, group=group)
        for source, target in links:
            if self.rank == source:
                dist.send(one, group=self._to[target][0], group_dst=self._to[target][1])
            elif self.rank == target:
                dist.recv(one, group=self._from[source][0], group_src=self._from[source][1])
        torch.cuda.synchronize(self._device)

    def _break(self, failed: int, reason: str) -> None:
        """Makes whatever waits on our groups raise, here and, by the closed connections, elsewhere."""
        with self._stopping:
            waiting = list(self._stops)
        for stop in waiting:
            stop(str(stops(self.rank, failed, reason)))
        if self._words is not None:
            self._words.hang_up()
        if self.early:
            for group in self._groups:
                _close_connections(group)
        else:  # all at once: a group that is idle aborts only after the kernels of the others
            aborts = [threading.Thread(target=_abort, args=(g,), daemon=True) for g in self._groups]
            for thread in aborts:
                thread.start()
            for thread in aborts:
                thread.join(5)


class _Pending:
    __slots__ = ("_doing", "_kept", "_transport", "_work")

    def __init__(
        self,
        transport: Processes,
        work: dist.Work | None,
        doing: Doing,
        kept: Tensor | None = None,  # until it is sent
    ) -> None:
        self._transport, self._work, self._doing = transport, work, doing
        self._kept = kept

    def wait(self) -> None:
        work = self._work
        if work is None:  # waited for before: gloo would block
            return
        transport = self._transport
        began = time.perf_counter()
        if transport.news is None:
            try:
                work.wait(*transport.limit)
            except RuntimeError as error:
                seconds = time.perf_counter() - began
                raise transport.explain(self._doing, seconds, error) from error
        transport.check()  # NCCL returns from what was aborted as if it had come
        self._work = None


class _Told:
    """A message from a neighbour, who says where it lies."""

    __slots__ = ("_doing", "_dtype", "_elements", "_transport")

    def __init__(
        self, transport: Processes, doing: Doing, elements: int, dtype: torch.dtype
    ) -> None:
        self._transport, self._doing = transport, doing
        self._elements, self._dtype = elements, dtype

    def wait(self) -> Tensor:
        return self._transport.told(self._doing, self._elements, self._dtype)


class _Staged(_Pending):
    """Goes through the host's memory: gloo sends from and receives into nothing else."""

    __slots__ = ("_buffer", "_host")

    def __init__(
        self,
        transport: Processes,
        work: dist.Work | None,
        doing: Doing,
        host: Tensor,
        buffer: Tensor,
    ) -> None:
        super().__init__(transport, work, doing)
        self._host, self._buffer = host, buffer

    def wait(self) -> None:
        if self._work is not None:
            super().wait()
            self._buffer.detach().copy_(self._host, non_blocking=True)


def _close_connections(group: dist.ProcessGroup) -> None:
    """gloo cannot abort, but a receive that runs out of time closes its group's connections."""
    if group.size() == 1:
        return
    peer = 1 if group.rank() == 0 else 0
    with contextlib.suppress(RuntimeError):
        work = dist.irecv(torch.empty(1), group=group, tag=LAST_TAG + 1, group_src=peer)
        assert work is not None
        work.wait(timedelta(milliseconds=1))


def _can_abort(group: dist.ProcessGroup) -> bool:
    return hasattr(group, "abort")  # not in torch 2.6: there, NCCL's watchdog ends the process


def _abort(group: dist.ProcessGroup) -> None:
    if _can_abort(group):
        with contextlib.suppress(RuntimeError):
            group.abort()


def _bytes(buffer: Tensor) -> bytes:
    """Of a short message, whatever its type."""
    return ctypes.string_at(buffer.data_ptr(), buffer.nbytes)


def _host(buffer: Tensor) -> Tensor:
    return torch.empty(buffer.shape, dtype=buffer.dtype, pin_memory=True)


def _join(backend: str, limit: timedelta) -> None:
    try:
        dist.init_process_group(backend, timeout=limit)
    except ValueError as error:
        raise InputError(
            f"no process group and none to join ({error}): start with torchrun --nproc-per-node N"
        ) from error
