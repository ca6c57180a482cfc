"""Measures host overhead: the time that communication takes from a rank that computes at the same time.

It measures messages, all-reduces ("sums") and slices of parameters on servers. A rank starts one
operation, computes a piece of work, and repeats this; the overhead is the time beyond that of the work
alone. On a CPU, host overhead is most of the cost of communication: copying, adding and waking up threads
need a core, and the computation has to share it.

A piece of work is long enough for one operation to complete during it, so the speed of the network does not
count. The length matters: between pieces of 0.5 ms, a sum costs half as much as between pieces of 3 ms.
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

REPEATS = 16  # operations of one kind in a measurement
SMALL, LARGE = 1024, 2**19  # bytes of a message
MIN_PIECE, MAX_PIECE = 3e-3, 15e-3  # seconds of a piece of work
Work = Callable[[], None]  # computes one piece of work


def measure_host_overhead(transport: Transport, *, rounds: int = 7) -> dict[str, float]:
    """Returns the seconds of overhead per "message", "byte" of messages, "sum" (all-reduce) and "slice".

    The names are those of HOST_OVERHEAD in clusters/devices.py. All ranks call this function.
    "message", "byte" and "slice" count once for the sender and once for the receiver.
    """
    slices = _Slices(transport)
    operations: dict[str, Callable[[Work], None]] = {
        "compute only": _compute_only,
        "messages": lambda work: _messages(transport, SMALL, work),
        "sums": lambda work: _sums(transport, work),
        "slices": slices.synchronise_all,
    }
    # The seconds of a piece of work: twice those of the slowest operation, within the limits.
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
            if round_number:  # the first round is a warm-up
                seconds[name].append(time.perf_counter() - begin)
    slices.close(transport)
    compute_only, messages, sums, slice_seconds, large = (
        statistics.median(samples) for samples in seconds.values()
    )
    sends_and_receives = 2 * REPEATS  # each rank sends as many messages as it receives
    overheads = {
        "message": (messages - compute_only) / sends_and_receives,
        "byte": (large - messages) / sends_and_receives / (large_nbytes - SMALL),
        "sum": (sums - compute_only) / REPEATS,
        "slice": (slice_seconds - compute_only) / sends_and_receives,
    }
    return {name: max(0.0, overhead) for name, overhead in overheads.items()}


def _seconds_each(transport: Transport, operation: Callable[[Work], None]) -> float:
    """Returns the seconds of one operation without computation, averaged over all ranks."""
    operation(lambda: None)  # warm-up
    transport.barrier()
    begin = time.perf_counter()
    operation(lambda: None)
    seconds = torch.tensor([(time.perf_counter() - begin) / REPEATS], dtype=torch.float64)
    # The operations use the tags below REPEATS.
    transport.all_reduce(tuple(range(transport.size)), REPEATS, seconds).wait()
    return float(seconds) / transport.size


def _bytes_within(transport: Transport, seconds: float) -> int:
    """Returns the size, at most LARGE, of a message that arrives within this time."""
    seconds_of_large = _seconds_each(transport, lambda work: _messages(transport, LARGE, work))
    return (
        LARGE
        if seconds_of_large <= seconds
        else max(2 * SMALL, int(LARGE * seconds / seconds_of_large))
    )


def _work(piece: float) -> Work:
    """Returns a function that computes for about `piece` seconds: a fixed number of matrix products."""
    x = torch.randn(192, 192)
    # The number of products in ten pieces: more exact than that of one piece
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < 10 * piece:
        x @ x
        count += 1

    def work() -> None:
        for _ in range(max(1, count // 10)):
            x @ x

    return work


def _compute_only(work: Work) -> None:
    """Computes as many pieces of work as the other operations, without communication."""
    for _ in range(REPEATS):
        work()


def _messages(transport: Transport, nbytes: int, work: Work) -> None:
    """Sends REPEATS messages to the next rank and receives as many from the previous one, during work."""
    rank, size = transport.rank, transport.size
    buffer = torch.zeros(nbytes, dtype=torch.uint8)
    for tag in range(REPEATS):  # `post` starts a send, `expect` a receive
        sent = transport.post((rank + 1) % size, tag, buffer)
        arriving = transport.expect((rank - 1) % size, tag, buffer, nbytes)
        work()
        arriving.wait()
        sent.wait()


def _sums(transport: Transport, work: Work) -> None:
    """Starts one small all-reduce before each piece of work."""
    all_ranks = tuple(range(transport.size))
    summing: list[Pending] = []
    for number in range(REPEATS):
        summing.append(transport.all_reduce(all_ranks, number, torch.zeros(SMALL // 4)))
        work()
    for pending in summing:
        pending.wait()


class _Slices:
    """Small parameters on servers: each rank is the server of some and updates them with SGD.

    An Item (sync/item.py) describes one slice to the synchroniser, which sends gradients to the servers.
    """

    def __init__(self, transport: Transport) -> None:
        all_ranks = tuple(range(transport.size))
        # number, name, workers (ranks with gradients), server, elements (of 4 bytes), dtype, priority
        items = [
            Item(n, f"slice {n}", all_ranks, n % transport.size, SMALL // 4, torch.float32, n)
            for n in range(REPEATS)
        ]
        rows = [nn.Parameter(torch.zeros(SMALL // 4)) for _ in items]
        # The rows that this rank updates, as their server.
        served = {n: [p] for n, p in enumerate(rows) if items[n].server == transport.rank}
        optimizer = torch.optim.SGD(rows, lr=0.1, momentum=0.9)
        self._slice_updater = SliceUpdater(optimizer, served)
        self._slice_updater.snapshot(1)  # notes the optimizer's settings from step 1 on
        self._synchroniser = ServerSynchroniser(
            items,
            transport.wire(),  # sends slices of parameters, by priority
            self._slice_updater,
            timeout=transport.timeout,
            fail=transport.fail,
        )
        transport.on_failure(self._synchroniser.stop)
        for number, p in enumerate(rows):
            self._synchroniser.bind(number, p.detach())  # where the updated rows are put
        self._synchroniser.start()
        transport.barrier()  # all ranks listen before the first one sends

    def synchronise_all(self, work: Work) -> None:
        """Submits a gradient before each piece of work, then waits for all updates."""
        for number in range(REPEATS):
            self._synchroniser.submit(number, torch.zeros(SMALL // 4))
            work()
        for number in range(REPEATS):
            self._synchroniser.wait(number)

    def close(self, transport: Transport) -> None:
        self._synchroniser.synchronize()
        transport.barrier()
        self._synchroniser.close()
