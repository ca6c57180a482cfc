"""What communication takes from a rank that computes meanwhile: messages, slices of parameters, and sums.

A rank starts one of a kind between two pieces of computing, again and again; how much longer that takes
than to compute alone is what they took from it. On a CPU that is most of what they cost: whoever copies,
adds and wakes up needs a core, and takes it from what computes there. How much depends on how long the
pieces are: between those of half a millisecond, a sum takes half of what it takes between those of three.
Pieces are long enough for one of each kind to arrive meanwhile: what a slow line takes is no rank's time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from raddle.sync.item import Item
from raddle.sync.server_synchroniser import ServerSynchroniser
from raddle.sync.slice_updater import SliceUpdater
from raddle.transport.base import Pending, Transport

REPEATS = 16  # of a kind, one after the other
SMALL, LARGE = 1024, 2**19  # bytes
MIN_PIECE, MAX_PIECE = 3e-3, 15e-3  # seconds of computing
Work = Callable[[], None]


def measure_host_overhead(transport: Transport, *, rounds: int = 7) -> dict[str, float]:
    """By name (clusters/devices.py, HOST_OVERHEAD), seconds; all ranks call it."""
    slices = _Slices(transport)
    operations: dict[str, Callable[[Work], None]] = {
        "compute only": _compute_only,
        "messages": lambda work: _messages(transport, SMALL, work),
        "sums": lambda work: _sums(transport, work),
        "slices": slices.synchronise_all,
    }
    piece = min(
        max(
            MIN_PIECE,
            2 * max(_seconds_each(transport, operation) for operation in operations.values()),
        ),
        MAX_PIECE,
    )
    large_nbytes = _bytes_within(transport, piece / 2)
    operations["large"] = lambda work: _messages(transport, large_nbytes, work)
    work = _work(piece)
    seconds: dict[str, list[float]] = {name: [] for name in operations}
    for round_number in range(rounds + 1):
        for name, run_operation in operations.items():
            transport.barrier()
            begin = time.perf_counter()
            run_operation(work)
            if round_number:  # the first one warms up
                seconds[name].append(time.perf_counter() - begin)
    slices.close(transport)
    compute_only, messages, sums, slice_seconds, large = (
        statistics.median(samples) for samples in seconds.values()
    )
    sends_and_receives = 2 * REPEATS  # as many are sent as received
    overheads = {
        "message": (messages - compute_only) / sends_and_receives,
        "byte": (large - messages) / sends_and_receives / (large_nbytes - SMALL),
        "sum": (sums - compute_only) / REPEATS,
        "slice": (slice_seconds - compute_only) / sends_and_receives,
    }
    return {name: max(0.0, overhead) for name, overhead in overheads.items()}


def _seconds_each(transport: Transport, operation: Callable[[Work], None]) -> float:
    """Seconds that one of a kind takes where nobody computes: on all ranks the same figure."""
    operation(lambda: None)  # warms up
    transport.barrier()
    begin = time.perf_counter()
    operation(lambda: None)
    seconds = torch.tensor([(time.perf_counter() - begin) / REPEATS], dtype=torch.float64)
    transport.all_reduce(tuple(range(transport.size)), REPEATS, seconds).wait()
    return float(seconds) / transport.size


def _bytes_within(transport: Transport, seconds: float) -> int:
    """Bytes of a message that arrives in so much time."""
    seconds_of_large = _seconds_each(transport, lambda work: _messages(transport, LARGE, work))
    return (
        LARGE
        if seconds_of_large <= seconds
        else max(2 * SMALL, int(LARGE * seconds / seconds_of_large))
    )


def _work(piece: float) -> Work:
    """Computes for about so many seconds, always as much."""
    x = torch.randn(192, 192)
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < 10 * piece:
        x @ x
        count += 1

    def work() -> None:
        for _ in range(max(1, count // 10)):
            x @ x

    return work


def _compute_only(work: Work) -> None:
    for _ in range(REPEATS):
        work()


def _messages(transport: Transport, nbytes: int, work: Work) -> None:
    """To the next rank, and from the one before."""
    rank, size = transport.rank, transport.size
    buffer = torch.zeros(nbytes, dtype=torch.uint8)
    for tag in range(REPEATS):
        sent = transport.post((rank + 1) % size, tag, buffer)
        arriving = transport.expect((rank - 1) % size, tag, buffer, nbytes)
        work()
        arriving.wait()
        sent.wait()


def _sums(transport: Transport, work: Work) -> None:
    everyone = tuple(range(transport.size))
    summing: list[Pending] = []
    for number in range(REPEATS):
        summing.append(transport.all_reduce(everyone, number, torch.zeros(SMALL // 4)))
        work()
    for pending in summing:
        pending.wait()


class _Slices:
    """Small parameters, whose homes are spread over the ranks and update them by a stock optimizer."""

    def __init__(self, transport: Transport) -> None:
        everyone = tuple(range(transport.size))
        items = [
            Item(n, f"slice {n}", everyone, n % transport.size, SMALL // 4, torch.float32, n)
            for n in range(REPEATS)
        ]
        rows = [nn.Parameter(torch.zeros(SMALL // 4)) for _ in items]
        served = {n: p for n, p in enumerate(rows) if items[n].server == transport.rank}
        optimizer = torch.optim.SGD(rows, lr=0.1, momentum=0.9)
        self._applying = SliceUpdater(optimizer, served)
        self._applying.snapshot(1)  # holds for all steps
        self._synchroniser = ServerSynchroniser(
            items, transport.wire(), self._applying, timeout=transport.timeout, fail=transport.fail
        )
        transport.on_failure(self._synchroniser.stop)
        for number, p in enumerate(rows):
            self._synchroniser.bind(number, p.detach())
        self._synchroniser.start()
        transport.barrier()  # nobody pushes before all listen

    def synchronise_all(self, work: Work) -> None:
        for number in range(REPEATS):
            self._synchroniser.submit(number, torch.zeros(SMALL // 4))
            work()
        for number in range(REPEATS):
            self._synchroniser.wait(number)

    def close(self, transport: Transport) -> None:
        self._synchroniser.synchronize()
        transport.barrier()
        self._synchroniser.close()
