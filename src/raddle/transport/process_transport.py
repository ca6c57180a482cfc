"""A transport whose ranks are processes that use torch.distributed, with NCCL or gloo.

`Failures` (failures.py) informs all ranks of a failure; then process groups are aborted, and all waits
raise. Sizes and dtypes of messages are not checked here: gloo aborts the process if a message is longer
than its buffer, fills only a part of the buffer if it is shorter, and ignores dtypes. The program is
checked instead, before it runs.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Sequence
from contextlib import ExitStack

import torch
from torch import Tensor

from raddle.transport.base import (
    DOWN,
    UP,
    GroupsMade,
    Pending,
    PendingMessage,
    ShardTransfers,
    total_sent,
)
from raddle.transport.failures import Failures, ReportsFailures
from raddle.transport.orphans import end_with_parent
from raddle.transport.patient_wire import PatientWire
from raddle.transport.point_to_point import PointToPoint
from raddle.transport.process_collectives import ProcessCollectives
from raddle.transport.process_groups import ProcessGroups
from raddle.transport.shard_messages import ShardMessages
from raddle.transport.socket_wire import SocketWire
from raddle.transport.wire import Wire


class ProcessTransport(ReportsFailures):
    """The transport of this process. It joins the user's process group, or torchrun's job if there is none.

    timeout: seconds after which a wait fails; with NCCL: see failures.py.

    `Transport` in base.py explains the methods. A message goes from `send` to `receive`, or from `post` to
    `expect`, which use shared memory on one machine; with NCCL, `flush` starts the messages.
    """

    def __init__(
        self, device: torch.device, backend: str | None = None, timeout: float = 300.0
    ) -> None:
        end_with_parent()
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        backend = backend or ("nccl" if device.type == "cuda" else "gloo")
        self._groups = groups = ProcessGroups(device, backend, timeout)
        self.rank, self.size, self.early_receives = groups.rank, groups.size, groups.early_receives
        self.timeout = timeout  # seconds
        # limited: torch.distributed gets the limit of a wait with gloo only, where early_receives is True.
        self.failures = Failures(self.rank, timeout, limited=groups.early_receives)
        self._collectives = ProcessCollectives(groups, self.failures)
        self._wire: Wire | None = None
        all_gather = self._collectives.all_gather_objects
        with ExitStack() as undo:  # it closes what was opened if another rank does not connect
            undo.callback(groups.close, failed=False)
            groups.connect()
            self._point_to_point = point_to_point = PointToPoint(groups, self.failures, all_gather)
            undo.callback(point_to_point.close)
            # Last: from here on a failure may be reported at any time, and aborts all of the above.
            self.failures.start_listening(
                self.size, all_gather, [point_to_point.shut_down, groups.abort]
            )
            undo.pop_all()
        self.sent = point_to_point.sent
        self.collective_bytes = self._collectives.collective_bytes
        self.shards: ShardTransfers = self._collectives  # NCCL's collectives
        if self.early_receives:  # gloo
            self.shards = ShardMessages(
                self.rank,
                point_to_point.post_uncounted,
                point_to_point.expect,
                self.collective_bytes,
            )
        atexit.register(self.close)  # threads inside torch would crash at the end of Python

    def prepare(
        self, groups: Sequence[tuple[int, ...]], directions: Sequence[int] = (UP, DOWN)
    ) -> GroupsMade:
        return self._groups.prepare(groups, directions)

    def flush(self) -> None:
        self._point_to_point.flush()

    def send(self, target: int, tag: int, buffer: Tensor, what: str = "") -> Pending:
        return self._point_to_point.send(target, tag, buffer, what)

    def receive(self, source: int, tag: int, buffer: Tensor, what: str = "") -> Pending:
        return self._point_to_point.receive(source, tag, buffer, what)

    def post(self, target: int, tag: int, buffer: Tensor, what: str = "") -> Pending:
        return self._point_to_point.post(target, tag, buffer, what)

    def expect(
        self, source: int, tag: int, like: Tensor, elements: int, what: str = ""
    ) -> PendingMessage:
        return self._point_to_point.expect(source, tag, like, elements, what)

    def all_reduce(
        self, ranks: tuple[int, ...], tag: int, buffer: Tensor, what: str = ""
    ) -> Pending:
        return self._collectives.all_reduce(ranks, tag, buffer, what)

    def broadcast(self, source: int, buffer: Tensor) -> Pending:
        return self._collectives.broadcast(source, buffer)

    def barrier(self) -> None:
        self._collectives.barrier()

    def wire(self) -> Wire:
        if self._wire is None:
            all_gather, seconds = self._collectives.all_gather_objects, self.failures.timeout
            wire = SocketWire(self.rank, self.size, all_gather, timeout=seconds)
            self._wire = PatientWire(wire, self.failures.wait_for_failure)
        return self._wire

    def total_sent(self) -> dict[int, int]:
        return total_sent(self, self._wire)

    def close(self) -> None:
        if self._groups.service is None:  # closed already
            return
        atexit.unregister(self.close)
        self.failures.close()
        if self._wire is not None:
            self._wire.close()
        self._point_to_point.close()
        # In torch 2.6, destroying a group holds the GIL and waits for threads, which may need the GIL to
        # free the last tensors.
        time.sleep(0.05)
        self._groups.close(failed=self.failures.first_failure is not None)
