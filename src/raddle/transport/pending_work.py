"""Starts operations of torch.distributed and waits for them, with a clear error if a rank has failed.

gloo works on host memory only: with gloo, a GPU tensor is copied to host memory and back ("staged").
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from raddle.transport.base import Pending, WaitLabel
from raddle.transport.failures import Failures

Start = Callable[[Tensor], "dist.Work | None"]  # starts an operation on a tensor


class PendingWork:
    """A started operation.

    failures: knows which rank has failed, and turns torch's errors into clear ones (failures.py). label:
    describes the operation in error messages. keep_alive: a tensor that must stay in memory until the
    operation is complete.
    """

    __slots__ = ("_failures", "_keep_alive", "_label", "_work")

    def __init__(
        self,
        failures: Failures,
        work: dist.Work | None,
        label: WaitLabel,
        keep_alive: Tensor | None = None,
    ) -> None:
        self._failures, self._work, self._label = failures, work, label
        self._keep_alive = keep_alive

    def wait(self) -> None:
        """Waits for the operation; raises an error that says which rank has failed, or what is missing."""
        work = self._work
        if work is None:  # this is the second call of `wait`: gloo would block
            return
        failures = self._failures
        began = time.perf_counter()
        if failures.first_failure is None:
            try:
                work.wait(*failures.wait_args)
            except RuntimeError as error:
                seconds = time.perf_counter() - began
                raise failures.explain(self._label, seconds, error) from error
        failures.check()  # NCCL returns from an aborted operation as if it were complete
        self._work = None


class StagedWork(PendingWork):
    """An operation on host memory, whose result `wait` copies to the GPU."""

    __slots__ = ("_buffer", "_host")

    def __init__(
        self,
        failures: Failures,
        work: dist.Work | None,
        label: WaitLabel,
        host: Tensor,
        buffer: Tensor,
    ) -> None:
        super().__init__(failures, work, label)
        self._host, self._buffer = host, buffer

    def wait(self) -> None:
        if self._work is not None:
            super().wait()
            self._buffer.detach().copy_(self._host, non_blocking=True)


def start_work(
    failures: Failures,
    label: WaitLabel,
    buffer: Tensor,
    start: Start,
    *,
    staged: bool,
    has_input: bool,
    keep_alive: Tensor | None = None,
) -> Pending:
    """Starts an operation that writes into a buffer.

    start: a function that starts it on a tensor. staged: whether that tensor is in host memory, and is
    copied to the buffer. has_input: whether the operation also reads the buffer, as a sum does. keep_alive:
    another tensor that the operation reads.
    """
    assert buffer.is_contiguous()  # gloo would accept another one and give wrong results
    host = buffer
    if staged:
        host = pinned_like(buffer)
        if has_input:
            host.copy_(buffer)
    try:
        work = start(host)
    except RuntimeError as error:
        raise failures.explain(label, 0.0, error) from error
    if host is buffer:
        return PendingWork(failures, work, label, keep_alive)
    return StagedWork(failures, work, label, host, buffer)


def pinned_like(buffer: Tensor) -> Tensor:
    """Returns an empty tensor in pinned host memory, with a buffer's shape and dtype."""
    return torch.empty(buffer.shape, dtype=buffer.dtype, pin_memory=True)
