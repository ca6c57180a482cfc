"""Averages gradients in buckets: one all-reduce for many gradients, when all are complete (as in DDP).

Buckets are filled in the order in which the gradients of rank 0 were complete in the first backward. All
ranks issue the all-reduces in this one order, on a process group of their own: ranks with different
orders would get wrong sums without an error. The averages are written back into p.grad.

Unused parameters. A bucket has one more element for every parameter: the number of ranks that have a
gradient of it. A rank without a gradient contributes zeros. If no rank has one, p.grad is left as it was,
so the optimizer does not move the parameter. DistributedDataParallel does the same with
find_unused_parameters=True, but with a separate collective. A rank reads the number only for parameters
without a gradient, because reading from a GPU makes the host wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from raddle.sync.consistency import check_same
from raddle.sync.stall_inspector import StallInspector
from raddle.transport.base import Pending, Transport

BUCKET_BYTES = 25 * 2**20  # as in DistributedDataParallel
RecordSpan = Callable[[str, str, float, float], None]  # name, lane (row) of the trace, start, end


class Bucket:
    """Some parameters whose gradients are in one tensor, `flat`, which is all-reduced.

    At its end `flat` has one element for each parameter: the number of ranks that have its gradient.
    members: the argument has indices of parameters; the attribute is index -> parameter.
    views, counts: index of a parameter -> its gradient and its number of ranks, both parts of `flat`.
    """

    def __init__(
        self, members: Sequence[int], names: Sequence[str], parameters: Sequence[Tensor],
        dtype: torch.dtype,
    ) -> None:  # fmt: skip
        self.members = {i: parameters[i] for i in members}
        sizes = [p.numel() for p in self.members.values()]
        device = parameters[members[0]].device
        self.flat = torch.zeros(sum(sizes) + len(sizes), dtype=dtype, device=device)
        *parts, counts = torch.split(self.flat, [*sizes, len(sizes)])
        self.views = {
            i: part.view(parameters[i].shape) for i, part in zip(members, parts, strict=True)
        }
        self.counts = dict(zip(members, counts, strict=True))
        to_last = f" to '{names[members[-1]]}'" if len(members) > 1 else ""
        self.name = f"the gradients of '{names[members[0]]}'{to_last}"
        self.filled: set[int] = set()  # indices whose gradients are in `flat`
        self.pending: Pending | None = None  # the all-reduce
        self.start_time = 0.0  # of the all-reduce (time.perf_counter)

    def fill(self, index: int, size: int) -> None:
        """Copies p.grad / size into the bucket, if this rank has a gradient. size: number of ranks."""
        gradient = self.members[index].grad
        if index in self.filled or gradient is None:
            return
        view = self.views[index]
        if view.dtype == gradient.dtype:
            torch.div(gradient, size, out=view)
        else:
            view.copy_(gradient).div_(size)  # cast, then divide: as torch's bf16 hook for DDP
        self.counts[index].fill_(1)
        self.filled.add(index)

    def start(self, transport: Transport, number: int) -> None:
        """Starts the all-reduce. Parameters without a gradient contribute zeros. number: its tag."""
        for i in self.members:
            if i not in self.filled:
                self.views[i].zero_()
                self.counts[i].zero_()
        self.start_time = time.perf_counter()
        flat = torch.view_as_real(self.flat) if self.flat.is_complex() else self.flat
        everyone = tuple(range(transport.size))
        self.pending = transport.all_reduce(everyone, number, flat, self.name)

    def write_averages(self) -> None:
        """Copies the averages into p.grad, except for parameters of which no rank has a gradient."""
        for index, p in self.members.items():
            if index not in self.filled and not bool(self.counts[index].abs() > 0):
                continue
            if p.grad is None:
                p.grad = torch.empty_like(p)
            p.grad.detach().copy_(self.views[index])
        self.pending = None
        self.filled.clear()


def cut_buckets(
    order: Sequence[int],
    names: Sequence[str],
    parameters: Sequence[Tensor],
    nbytes: int,
    compressed_dtype: torch.dtype | None,
) -> list[Bucket]:
    """Returns buckets of one dtype each, of at most `nbytes`; a larger parameter has its own bucket.

    order: indices of parameters; those that it lacks come last. compressed_dtype: the dtype of the buckets;
    None: that of the parameters.
    """
    buckets: list[Bucket] = []
    # dtype -> the members, and the bytes so far, of the bucket that still takes parameters
    open_members: dict[torch.dtype, list[int]] = {}
    open_bytes: dict[torch.dtype, int] = {}
    for index in dict.fromkeys([*order, *range(len(parameters))]):
        p = parameters[index]
        dtype = compressed_dtype or p.dtype
        size_bytes = p.numel() * dtype.itemsize
        if dtype in open_members and open_bytes[dtype] + size_bytes > nbytes:
            buckets.append(Bucket(open_members.pop(dtype), names, parameters, dtype))
        open_members.setdefault(dtype, []).append(index)
        open_bytes[dtype] = size_bytes + (open_bytes[dtype] if len(open_members[dtype]) > 1 else 0)
    return [
        *buckets,
        *(Bucket(members, names, parameters, dtype) for dtype, members in open_members.items()),
    ]


class Buckets:
    """All buckets of an optimizer. Call `submit` for each complete gradient, `finish` after the backward.

    exchange: gathers an object from every rank. nbytes: the largest size of a bucket.
    compressed_dtype: the dtype of the all-reduce; None: that of the gradients.
    debug: ranks compare their buckets in every step, before any all-reduce.
    stall_inspector: warns which ranks are missing in an all-reduce. record_span: adds a bar to the trace.
    """

    def __init__(
        self,
        names: Sequence[str],
        parameters: Sequence[nn.Parameter],
        transport: Transport,
        exchange: Callable[[Any], list[Any]],
        stall_inspector: StallInspector,
        *,
        nbytes: int = BUCKET_BYTES,
        compressed_dtype: torch.dtype | None = None,
        debug: bool = False,
        record_span: RecordSpan | None = None,
    ) -> None:
        self.buckets: list[Bucket] = []
        self.sum_count = 0  # all-reduces issued
        self.waited = 0.0  # seconds
        self._names, self._transport, self._exchange = names, transport, exchange
        self._stall_inspector, self._record_span, self._debug = stall_inspector, record_span, debug
        self._make_buckets = partial(
            cut_buckets,
            names=names,
            parameters=parameters,
            nbytes=nbytes,
            compressed_dtype=compressed_dtype,
        )
        self._first_order: list[int] = []  # parameters, as completed in the first backward
        self._next_bucket = 0  # the next bucket to start

    @torch.no_grad()
    def submit(self, index: int) -> None:
        """Takes the gradient in p.grad, which is complete. Starts all buckets that are full, in order."""
        if not self.buckets:
            self._first_order.append(index)
            return
        self._fill(index)
        while not self._debug and self._next_bucket < len(self.buckets):
            bucket = self.buckets[self._next_bucket]
            if len(bucket.filled) < len(bucket.members):
                break
            self._start(bucket)

    @torch.no_grad()
    def finish(self, with_gradient: Sequence[int]) -> None:
        """Puts the averages into p.grad. with_gradient: all parameters with a gradient on this rank."""
        if not self.buckets:  # all ranks use the order of rank 0
            self.buckets = self._make_buckets(self._exchange(self._first_order or with_gradient)[0])
        for index in with_gradient:
            self._fill(index)
        if self._debug:
            check_same(self._exchange(self._describe()))
        for bucket in self.buckets[self._next_bucket :]:
            self._start(bucket)
        for bucket in self.buckets:
            self._wait_for(bucket)
        self._next_bucket = 0

    def _fill(self, index: int) -> None:
        """Copies a parameter's gradient into its bucket."""
        bucket = next(b for b in self.buckets if index in b.members)
        gradient = bucket.members[index].grad
        if gradient is not None:
            check_dense(self._names[index], gradient)
        bucket.fill(index, self._transport.size)

    def _start(self, bucket: Bucket) -> None:
        """Starts the all-reduce of the next bucket."""
        bucket.start(self._transport, self._next_bucket)
        self._next_bucket += 1
        self.sum_count += 1

    def _wait_for(self, bucket: Bucket) -> None:
        """Waits for the all-reduce of a bucket, and writes the averages into p.grad."""
        assert bucket.pending is not None
        begin = time.perf_counter()
        with self._stall_inspector.waiting_for(f"to sum {bucket.name}"):
            bucket.pending.wait()
        end = time.perf_counter()
        self.waited += end - begin
        if self._record_span is not None:
            self._record_span(bucket.name, "sum", bucket.start_time, end)
        bucket.write_averages()

    def _describe(self) -> list[tuple[str, str]]:
        """Returns (name, value) pairs, which check_same compares between ranks."""
        return [
            (f"sum {number}", ", ".join(f"'{self._names[i]}' {list(b.views[i].shape)}" for i in b.members))
            for number, b in enumerate(self.buckets)
        ]  # fmt: skip


def check_dense(name: str, gradient: Tensor) -> None:
    """Raises ValueError for a sparse gradient."""
    if gradient.layout != torch.strided:
        raise ValueError(
            f"the gradient of '{name}' is {gradient.layout}, and only dense ones are summed: "
            "make the embedding with sparse=False"
        )
