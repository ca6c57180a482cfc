"""Sends and receives messages between processes: with torch.distributed, or through shared memory.

Local peers are ranks on this machine whose memory this process can map; messages to them use shared memory.
`early_receives` (base.py) says that a receive may be started long before its send, because tags match them.
It is True with gloo and False with NCCL, which has no tags; so here it also tells which of the two is used.
With NCCL, messages start in batches (message_batch.py). gloo works on host memory only: with gloo, GPU
tensors are copied to or from pinned host memory ("staged").
"""

from __future__ import annotations

from collections import defaultdict

import torch
import torch.distributed as dist
from torch import Tensor

from raddle.transport.base import (
    DONE,
    DOWN,
    UP,
    BufferedMessage,
    Pending,
    PendingMessage,
    WaitLabel,
    timeout_error,
)
from raddle.transport.failures import Failures
from raddle.transport.local_peers import LocalPeers
from raddle.transport.message_batch import MessageBatch
from raddle.transport.pending_work import PendingWork, pinned_like, start_work
from raddle.transport.process_groups import ProcessGroups
from raddle.transport.rendezvous import AllGather
from raddle.transport.sender import Sender
from raddle.transport.shared_memory import LARGE_BYTES, ReceivePool


class PointToPoint:
    """Sends and receives the messages of one rank.

    `send` and `receive` use torch.distributed. `post` and `expect` use shared memory for local peers and
    torch.distributed for other ranks; on CPUs, a thread sends messages of LARGE_BYTES or more (sender.py).
    With NCCL, all messages start at the next `flush`, or at the first wait.
    all_gather: gathers an object from every rank. failures: the failures that this rank knows of.
    """

    def __init__(self, groups: ProcessGroups, failures: Failures, all_gather: AllGather) -> None:
        self.sent: dict[int, int] = defaultdict(int)  # bytes, by target rank
        self._groups, self._failures, self._pool = groups, failures, ReceivePool()
        self._sender: Sender | None = None
        self._local_peers: LocalPeers | None = None
        self._batch = None if groups.early_receives else MessageBatch(groups, failures)
        if groups.early_receives and groups.device.type == "cpu":
            self._local_peers = LocalPeers(all_gather, failures)
            seconds = failures.timeout
            self._sender = Sender(
                seconds, lambda label: timeout_error(failures.rank, seconds, label)
            )

    def send(self, target: int, tag: int, buffer: Tensor, what: str) -> Pending:
        """Starts to send with torch.distributed."""
        self.sent[target] += buffer.nbytes
        return self._send(WaitLabel("send to", target, tag, what), target, tag, buffer)

    def _send(self, label: WaitLabel, target: int, tag: int, buffer: Tensor) -> Pending:
        if self._batch is not None:
            return self._batch.send(target, buffer, label)
        assert buffer.is_contiguous()
        if buffer.is_cuda and self._groups.early_receives:  # a GPU tensor with gloo
            buffer = pinned_like(buffer).copy_(buffer)
        return self._start(target, tag, buffer, label)

    def receive(self, source: int, tag: int, buffer: Tensor, what: str) -> Pending:
        """Starts to receive with torch.distributed."""
        label = WaitLabel("receive from", source, tag, what)
        if self._batch is not None:
            return self._batch.receive(source, buffer, label)
        group = self._groups.messages[UP if source < self._groups.rank else DOWN]
        # has_input=False: a receive only writes into `buffer`, which is not copied to the host first.
        return start_work(
            self._failures, label, buffer,
            lambda host: dist.irecv(host, group=group, tag=tag, group_src=source),
            staged=buffer.is_cuda and self._groups.early_receives, has_input=False,
        )  # fmt: skip

    def post(self, target: int, tag: int, buffer: Tensor, what: str) -> Pending:
        """Starts to send, through shared memory if the target is a local peer."""
        self.sent[target] += buffer.nbytes
        return self.post_uncounted(target, tag, buffer, what)

    def post_uncounted(self, target: int, tag: int, buffer: Tensor, what: str) -> Pending:
        """Starts to send like `post`, without counting bytes: a collective counts those of its messages."""
        local_peers = self._local_peers_with(target)
        label = WaitLabel("send to", target, tag, what)
        if self._sender is None or (local_peers is None and buffer.nbytes < LARGE_BYTES):
            return self._send(label, target, tag, buffer)
        if local_peers is None:
            return self._sender.start(lambda: self._start(target, tag, buffer, label), label)
        if buffer.nbytes < LARGE_BYTES and not self._sender.pending_count:
            local_peers.send(target, tag, buffer, label)
            return DONE

        def send() -> Pending:
            local_peers.send(target, tag, buffer, label)
            return DONE

        # The thread makes the copy, which takes long; later messages must not overtake it.
        return self._sender.start(send, label)

    def expect(
        self, source: int, tag: int, like: Tensor, elements: int, what: str
    ) -> PendingMessage:
        """Prepares for a message that is sent with `post`; allocates its memory."""
        dtype, early = like.dtype, self._groups.early_receives
        if (local_peers := self._local_peers_with(source)) is not None:
            return _LocalMessage(
                local_peers, WaitLabel("receive from", source, tag, what), elements, dtype
            )
        if self._sender is not None and elements * dtype.itemsize >= LARGE_BYTES:
            buffer = self._pool.take(elements, dtype)
        else:
            # gloo receives into host memory; GPU memory is allocated after the message has arrived.
            pinned = like.is_cuda and early
            device = torch.device("cpu") if pinned else like.device
            buffer = torch.empty(elements, dtype=dtype, device=device, pin_memory=pinned)
        pending = self.receive(source, tag, buffer, what)
        return BufferedMessage(pending, lambda: buffer.to(like.device, non_blocking=True))

    def flush(self) -> None:
        """Starts the messages that were added since the last call, with NCCL."""
        if self._batch is not None:
            self._batch.flush()

    def shut_down(self) -> None:
        """Makes all waits for local peers raise, because a rank has failed."""
        if self._local_peers is not None:
            self._local_peers.shut_down()

    def close(self) -> None:
        if self._sender is not None:
            self._sender.close()
        if self._local_peers is not None:
            self._local_peers.close()

    def _local_peers_with(self, rank: int) -> LocalPeers | None:
        """Returns the local peers if `rank` is one of them, else None."""
        local_peers = self._local_peers
        return local_peers if local_peers is not None and rank in local_peers.ranks else None

    def _start(self, target: int, tag: int, buffer: Tensor, label: WaitLabel) -> Pending:
        """Starts to send with torch.distributed, from memory that the backend can read."""
        group = self._groups.messages[UP if target > self._groups.rank else DOWN]
        try:
            work = dist.isend(buffer, group=group, tag=tag, group_dst=target)
        except RuntimeError as error:
            raise self._failures.explain(label, 0.0, error) from error
        return PendingWork(self._failures, work, label, buffer)


class _LocalMessage:
    """A message from a local peer, through shared memory."""

    __slots__ = ("_dtype", "_elements", "_label", "_local_peers")

    def __init__(
        self, local_peers: LocalPeers, label: WaitLabel, elements: int, dtype: torch.dtype
    ) -> None:
        self._local_peers, self._label = local_peers, label
        self._elements, self._dtype = elements, dtype

    def wait(self) -> Tensor:
        return self._local_peers.receive(self._label, self._elements, self._dtype)
