"""Starts messages in batches, for NCCL: all messages of a rank in one direction start together.

NCCL has no tags and runs the operations of a communicator one after the other. So a rank collects the
messages of one instruction, sent and received, and starts them with `batch_isend_irecv`: no message of a
batch waits for another message of the batch. There is a group for each direction: up, to higher ranks, and
down (process_groups.py). All ranks start their batches in the order of the program, so the earliest batch
that is not complete can always proceed.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from raddle.transport.base import DOWN, UP, Pending, WaitLabel
from raddle.transport.failures import Failures
from raddle.transport.pending_work import PendingWork
from raddle.transport.process_groups import ProcessGroups


class BatchedMessage(NamedTuple):
    """A message that has not started yet."""

    operation: dist.P2POp
    pending: BatchedWork


class MessageBatch:
    """Collects the messages of one rank until `flush` starts them: a batch up, and a batch down."""

    def __init__(self, groups: ProcessGroups, failures: Failures) -> None:
        self._groups, self._failures = groups, failures
        self._messages: dict[int, list[BatchedMessage]] = {UP: [], DOWN: []}  # by direction

    def send(self, target: int, buffer: Tensor, label: WaitLabel) -> Pending:
        """Adds a message to another rank."""
        assert buffer.is_contiguous()
        direction = UP if target > self._groups.rank else DOWN
        operation = dist.P2POp(dist.isend, _real(buffer), target, self._groups.messages[direction])
        return self._add(direction, operation, label)

    def receive(self, source: int, buffer: Tensor, label: WaitLabel) -> Pending:
        """Adds a message from another rank."""
        assert buffer.is_contiguous()
        direction = UP if source < self._groups.rank else DOWN
        operation = dist.P2POp(dist.irecv, _real(buffer), source, self._groups.messages[direction])
        return self._add(direction, operation, label)

    def _add(self, direction: int, operation: dist.P2POp, label: WaitLabel) -> Pending:
        pending = BatchedWork(self, self._failures, label, operation.tensor)
        self._messages[direction].append(BatchedMessage(operation, pending))
        return pending

    def flush(self) -> None:
        """Starts all messages that were added."""
        for direction, messages in self._messages.items():
            if not messages:
                continue
            self._messages[direction] = []
            device = messages[0].operation.tensor.device
            try:  # NCCL uses the current device
                with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
                    works = dist.batch_isend_irecv([m.operation for m in messages])
            except RuntimeError as error:
                raise self._failures.explain(messages[0].pending.label, 0.0, error) from error
            if len(works) == 1:  # with NCCL: one for the whole batch
                works *= len(messages)
            for message, work in zip(messages, works, strict=True):
                message.pending.start(work)


class BatchedWork(PendingWork):
    """A message of a batch. `wait` starts the batch, if it has not started."""

    __slots__ = ("_batch",)

    def __init__(
        self, batch: MessageBatch, failures: Failures, label: WaitLabel, buffer: Tensor
    ) -> None:
        super().__init__(failures, None, label, buffer)
        self._batch: MessageBatch | None = batch

    @property
    def label(self) -> WaitLabel:
        return self._label

    def start(self, work: dist.Work) -> None:
        """Stores torch's handle of the message; called when the batch starts."""
        self._work, self._batch = work, None

    def wait(self) -> None:
        if self._batch is not None:
            self._batch.flush()
        super().wait()


def _real(buffer: Tensor) -> Tensor:
    """Returns a view of real numbers: NCCL has no complex ones."""
    return torch.view_as_real(buffer) if buffer.is_complex() else buffer
