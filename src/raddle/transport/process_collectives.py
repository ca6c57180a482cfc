"""Collectives between processes, with torch.distributed: sums, broadcasts, barriers, gathered objects.

`early_receives` (base.py: a receive may be started long before its send) is True with gloo and False with
NCCL; here it only tells which of the two is used. A *staged* operation works on a copy in host memory.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from raddle.transport.base import Pending, WaitLabel
from raddle.transport.failures import Failures
from raddle.transport.pending_work import PendingWork, start_work
from raddle.transport.process_groups import ProcessGroups


class ProcessCollectives:
    """Runs the collectives of one rank."""

    def __init__(self, groups: ProcessGroups, failures: Failures) -> None:
        # By kind and ranks of the group, bytes of the full buffers.
        self.collective_bytes: dict[tuple[str, tuple[int, ...]], int] = defaultdict(int)
        self._groups, self._failures = groups, failures

    def all_reduce(self, ranks: tuple[int, ...], tag: int, buffer: Tensor, what: str) -> Pending:
        """Starts to sum in place. tag, what: for error messages."""
        self.collective_bytes["all_reduce", ranks] += buffer.nbytes
        group = self._groups.collectives[ranks]
        return start_work(
            self._failures, WaitLabel("sum over", ranks, tag, what), buffer,
            lambda host: dist.all_reduce(host, group=group, async_op=True),
            staged=self._staged(buffer), has_input=True,
        )  # fmt: skip

    def all_gather(
        self, ranks: tuple[int, ...], tag: int, shard: Tensor, full: Tensor, what: str = ""
    ) -> Pending:
        """Starts to gather shards, with NCCL."""
        self.collective_bytes["all_gather", ranks] += full.nbytes
        group = self._groups.collectives[ranks]
        return start_work(
            self._failures, WaitLabel("gather over", ranks, tag, what), full,
            lambda out: dist.all_gather_into_tensor(
                _real(out), _real(shard), group=group, async_op=True
            ),
            staged=False, has_input=False, keep_alive=shard,
        )  # fmt: skip

    def reduce_scatter(
        self, ranks: tuple[int, ...], tag: int, full: Tensor, shard: Tensor, what: str = ""
    ) -> Pending:
        """Starts to sum, and to give every rank its part of the sum, with NCCL."""
        self.collective_bytes["reduce_scatter", ranks] += full.nbytes
        group = self._groups.collectives[ranks]
        return start_work(
            self._failures, WaitLabel("scatter the sum over", ranks, tag, what), shard,
            lambda out: dist.reduce_scatter_tensor(
                _real(out), _real(full), group=group, async_op=True
            ),
            staged=False, has_input=False, keep_alive=full,
        )  # fmt: skip

    def broadcast(self, source: int, buffer: Tensor) -> Pending:
        """Starts to copy the source's buffer to all ranks."""
        group = self._groups.service
        return start_work(
            self._failures, WaitLabel("broadcast from", source), buffer,
            lambda host: dist.broadcast(host, source, group=group, async_op=True),
            staged=self._staged(buffer), has_input=True,
        )  # fmt: skip

    def barrier(self) -> None:
        """Returns when all ranks have called it."""
        groups, label = self._groups, WaitLabel("barrier of", self._groups.everyone)
        devices = None if groups.early_receives else [groups.device.index]
        try:
            work = dist.barrier(group=groups.service, async_op=True, device_ids=devices)
        except RuntimeError as error:
            raise self._failures.explain(label, 0.0, error) from error
        PendingWork(self._failures, work, label).wait()

    def all_gather_objects(self, value: Any) -> list[Any]:
        """Returns the objects of all ranks, in rank order."""
        groups = self._groups
        values: list[Any] = [None] * groups.size
        began = time.perf_counter()
        try:
            on_gpu = groups.device.type == "cuda"  # else NCCL would use the current device
            with torch.cuda.device(groups.device) if on_gpu else contextlib.nullcontext():
                dist.all_gather_object(values, value, group=groups.service)
        except RuntimeError as error:
            # The objects are addresses, or what a rank needs to find local peers.
            label = WaitLabel("gather from", groups.everyone, what="addresses")
            raise self._failures.explain(label, time.perf_counter() - began, error) from error
        return values

    def _staged(self, buffer: Tensor) -> bool:
        """Returns whether an operation goes through host memory: a GPU tensor with gloo."""
        return buffer.is_cuda and self._groups.early_receives


def _real(buffer: Tensor) -> Tensor:
    """Returns a view of complex numbers as pairs of real ones: NCCL has no complex dtypes."""
    return torch.view_as_real(buffer) if buffer.is_complex() else buffer
