"""What all ranks of a group do together: sums, broadcasts, barriers, and objects of all ranks."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from raddle.transport.base import Doing, Pending
from raddle.transport.failures import Failures
from raddle.transport.pending_work import Begun, begin
from raddle.transport.process_groups import Groups


class Collectives:
    """One rank's."""

    def __init__(self, groups: Groups, failures: Failures) -> None:
        self.reduced: dict[tuple[int, ...], int] = defaultdict(int)  # bytes, by group
        self._groups, self._failures = groups, failures

    def all_reduce(self, ranks: tuple[int, ...], tag: int, buffer: Tensor, what: str) -> Pending:
        """Starts to sum in place."""
        self.reduced[ranks] += buffer.nbytes
        group = self._groups.sums[ranks]
        return begin(
            self._failures, Doing("sum over", ranks, tag, what), buffer,
            lambda host: dist.all_reduce(host, group=group, async_op=True),
            staged=self._staged(buffer), filled=True,
        )  # fmt: skip

    def broadcast(self, source: int, buffer: Tensor) -> Pending:
        """Starts to copy the source's buffer to all ranks."""
        group = self._groups.service
        return begin(
            self._failures, Doing("broadcast from", source), buffer,
            lambda host: dist.broadcast(host, source, group=group, async_op=True),
            staged=self._staged(buffer), filled=True,
        )  # fmt: skip

    def barrier(self) -> None:
        """Returns when all ranks are here."""
        groups, doing = self._groups, Doing("barrier of", self._groups.everyone)
        devices = None if groups.early else [groups.device.index]
        try:
            work = dist.barrier(group=groups.service, async_op=True, device_ids=devices)
        except RuntimeError as error:
            raise self._failures.explain(doing, 0.0, error) from error
        Begun(self._failures, work, doing).wait()

    def gather(self, own: Any) -> list[Any]:
        """What every rank has, in their order."""
        groups = self._groups
        every: list[Any] = [None] * groups.size
        began = time.perf_counter()
        try:
            own_device = groups.device.type == "cuda"  # NCCL would take the current one
            with torch.cuda.device(groups.device) if own_device else contextlib.nullcontext():
                dist.all_gather_object(every, own, group=groups.service)
        except RuntimeError as error:
            doing = Doing("gather from", groups.everyone, what="addresses")
            raise self._failures.explain(doing, time.perf_counter() - began, error) from error
        return every

    def _staged(self, buffer: Tensor) -> bool:
        return buffer.is_cuda and self._groups.early
