"""Messages from rank to rank: by torch.distributed, or between neighbours through shared memory."""

from __future__ import annotations

from collections import defaultdict

import torch
import torch.distributed as dist
from torch import Tensor

from raddle.transport.base import DONE, Arriving, Doing, Expected, Pending, late
from raddle.transport.failures import Failures
from raddle.transport.local_peers import Neighbours
from raddle.transport.pending_work import Begun, begin, on_host
from raddle.transport.process_groups import Groups
from raddle.transport.rendezvous import Share
from raddle.transport.sender import Sender
from raddle.transport.shared_memory import LEAST, Pool


class Messages:
    """One rank's. `post` and `expect` take the fastest way; between CPUs, large sends have a thread."""

    def __init__(self, groups: Groups, failures: Failures, share: Share) -> None:
        self.sent: dict[int, int] = defaultdict(int)  # bytes, by target
        self._groups, self._failures, self._pool = groups, failures, Pool()
        self._sender: Sender | None = None
        self._neighbours: Neighbours | None = None
        if groups.early and groups.device.type == "cpu":
            self._neighbours = Neighbours(share, failures)
            seconds = failures.timeout
            self._sender = Sender(seconds, lambda doing: late(failures.rank, seconds, doing))

    def send(self, target: int, tag: int, buffer: Tensor, what: str) -> Pending:
        """Starts to send."""
        assert buffer.is_contiguous()
        self.sent[target] += buffer.nbytes
        doing = Doing("send to", target, tag, what)
        if buffer.is_cuda and self._groups.early:
            buffer = on_host(buffer).copy_(buffer)
        return self._start(target, tag, buffer, doing)

    def receive(self, source: int, tag: int, buffer: Tensor, what: str) -> Pending:
        """Posts a receive."""
        group, peer = self._groups.sources[source]
        return begin(
            self._failures, Doing("receive from", source, tag, what), buffer,
            lambda host: dist.irecv(host, group=group, tag=tag, group_src=peer),
            staged=buffer.is_cuda and self._groups.early, filled=False,
        )  # fmt: skip

    def post(self, target: int, tag: int, buffer: Tensor, what: str) -> Pending:
        """Starts to send by the fastest way that there is."""
        near = self._near(target)
        if self._sender is None or (near is None and buffer.nbytes < LEAST):
            return self.send(target, tag, buffer, what)
        self.sent[target] += buffer.nbytes
        doing = Doing("send to", target, tag, what)
        if near is None:
            return self._sender.start(lambda: self._start(target, tag, buffer, doing), doing)
        if buffer.nbytes < LEAST and not self._sender.busy:
            near.send(target, tag, buffer, doing)
            return DONE

        def send() -> Pending:
            near.send(target, tag, buffer, doing)
            return DONE

        # A copy takes long; and what comes after one must not overtake it.
        return self._sender.start(send, doing)

    def expect(self, source: int, tag: int, like: Tensor, elements: int, what: str) -> Arriving:
        """Makes ready for what is posted, in memory of the transport's."""
        dtype, early = like.dtype, self._groups.early
        if (near := self._near(source)) is not None:
            return _Told(near, Doing("receive from", source, tag, what), elements, dtype)
        if self._sender is not None and elements * dtype.itemsize >= LEAST:
            buffer = self._pool.take(elements, dtype)
        else:
            # gloo receives into the host's memory: the device's is not needed before it has arrived.
            pinned = like.is_cuda and early
            place = torch.device("cpu") if pinned else like.device
            buffer = torch.empty(elements, dtype=dtype, device=place, pin_memory=pinned)
        pending = self.receive(source, tag, buffer, what)
        return Expected(pending, lambda: buffer.to(like.device, non_blocking=True))

    def hang_up(self) -> None:
        """A rank has failed: whoever waits for a neighbour raises."""
        if self._neighbours is not None:
            self._neighbours.hang_up()

    def close(self) -> None:
        if self._sender is not None:
            self._sender.close()
        if self._neighbours is not None:
            self._neighbours.close()

    def _near(self, rank: int) -> Neighbours | None:
        near = self._neighbours
        return near if near is not None and rank in near.ranks else None

    def _start(self, target: int, tag: int, buffer: Tensor, doing: Doing) -> Pending:
        group, peer = self._groups.targets[target]
        try:
            work = dist.isend(buffer, group=group, tag=tag, group_dst=peer)
        except RuntimeError as error:
            raise self._failures.explain(doing, 0.0, error) from error
        return Begun(self._failures, work, doing, buffer)


class _Told:
    """A message from a neighbour, who says where it lies."""

    __slots__ = ("_doing", "_dtype", "_elements", "_neighbours")

    def __init__(
        self, neighbours: Neighbours, doing: Doing, elements: int, dtype: torch.dtype
    ) -> None:
        self._neighbours, self._doing = neighbours, doing
        self._elements, self._dtype = elements, dtype

    def wait(self) -> Tensor:
        return self._neighbours.take(self._doing, self._elements, self._dtype)
