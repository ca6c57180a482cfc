"""Measures one rank of `raddle probe`: compute rates, then messages to other ranks over loopback.

launch.py starts a process with this module for each rank, gives it settings as JSON in the first argument,
and reads the lines of JSON that it prints:

    {"step": "conv float32", "done": 2, "of": 12}      rank 0, before each measurement
    {"result": {...}}                                  every rank, at the end
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from threading import Event, Thread

import torch
import torch.distributed as dist

from raddle.probe.kernels import kernels, rate
from raddle.probe.launch import end_in_time
from raddle.runtime.host_overhead import measure_host_overhead
from raddle.transport.base import Transport
from raddle.transport.process_transport import ProcessTransport

# Size of a message in bytes -> how often it is sent.
SIZES = {2**10: 100, 2**14: 100, 2**17: 60, 2**20: 40, 2**22: 20, 2**24: 10}
QUICK_SIZES = {2**10: 20, 2**17: 20, 2**21: 8}

Samples = list[tuple[int, float]]  # (bytes, seconds)
Pairs = list[tuple[int, int]]  # ranks that send messages to each other
Measurement = Callable[[], object]  # returns a value for the result
Exchange = Callable[[Transport, int, torch.Tensor], float]  # (transport, peer, buffer) -> seconds


def main() -> None:
    """Connect to the other ranks, make all measurements and print the result."""
    settings = json.loads(sys.argv[1])
    end_in_time(settings["seconds"])
    torch.set_num_threads(settings["threads"])
    rank, ranks = settings["rank"], settings["ranks"]
    limit = timedelta(seconds=settings["seconds"])
    store = dist.FileStore(settings["store"], ranks)  # type: ignore[attr-defined]  # it is public
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=limit)
    # The transport that plans run on.
    transport = ProcessTransport(torch.device("cpu"), "gloo", settings["seconds"])
    transport.prepare([])  # messages between all ranks, no further process groups
    measurements = {
        **_compute_measurements(settings["window"]),
        **_communication_measurements(transport, quick=settings["quick"]),
    }
    result = {}
    for i, (name, measurement) in enumerate(measurements.items()):
        if rank == 0:
            print(json.dumps({"step": name, "done": i, "of": len(measurements)}), flush=True)
        dist.barrier()  # all ranks measure the same at the same time
        result[name] = measurement()
    result["gpus"] = torch.cuda.device_count() if torch.cuda.is_available() else 0
    print(json.dumps({"result": result}), flush=True)
    dist.barrier()  # no rank ends while another rank may still need its connections
    transport.close()
    dist.destroy_process_group()


def _compute_measurements(window: float) -> dict[str, Measurement]:
    """Return the measurements of compute rates; each takes `window` seconds, in all ranks at once."""
    return {kernel.name: partial(rate, kernel, window, "cpu") for kernel in kernels("cpu")}


def _communication_measurements(transport: Transport, *, quick: bool) -> dict[str, Measurement]:
    """Return the measurements of messages, and of the time that they take from computing.

    Most are between ranks 0 and 1; "messages of all" is between all pairs (0, 1), (2, 3), ... at once.
    """
    ranks = transport.size
    if ranks == 1:
        return {}
    sizes = QUICK_SIZES if quick else SIZES
    largest = {max(sizes): sizes[max(sizes)]}  # only the largest size
    pairs = [(a, a + 1) for a in range(0, ranks - 1, 2)]
    first = pairs[:1]  # ranks 0 and 1
    return {
        "messages": partial(_messages, transport, first, sizes),
        "messages both ways": partial(_messages, transport, first, largest, exchange=_both_ways),
        "messages of all": partial(_messages, transport, pairs, largest),
        "messages under load": partial(_messages_under_load, transport, first, sizes),
        "host_overhead": partial(measure_host_overhead, transport, rounds=3 if quick else 9),
    }


def _messages_under_load(transport: Transport, pairs: Pairs, sizes: dict[int, int]) -> Samples:
    """Measure messages while all ranks compute; return samples.

    They are means, not medians: under load, a few messages take a hundred times as long, and they must
    count.
    """
    with _background_load():
        times = _messages(transport, pairs, sizes, average=statistics.mean)
        dist.barrier()  # the other ranks compute until the last message has arrived
    return times


def _messages(
    transport: Transport,
    pairs: Pairs,
    sizes: dict[int, int],
    *,
    exchange: Exchange | None = None,
    average: Callable[[Sequence[float]], float] = statistics.median,
) -> Samples:
    """Return the average time of a message for each size; [] if this rank is in no pair.

    sizes: bytes -> how often a message of this size is sent; exchange: by default a round trip.
    """
    peers, rank = dict(pairs) | {b: a for a, b in pairs}, transport.rank
    if rank not in peers:
        return []
    exchange = exchange or _round_trip
    times = []
    for nbytes, repeats in sizes.items():
        buffer = torch.zeros(nbytes, dtype=torch.uint8)
        seconds = [exchange(transport, peers[rank], buffer) for _ in range(repeats + 1)]
        times.append((nbytes, average(seconds[1:])))  # the first one is a warm-up
    return times


def _round_trip(transport: Transport, peer: int, buffer: torch.Tensor) -> float:
    """Send a message to the peer and back; return half the seconds.

    `post` sends and `expect` receives, without waiting; the second argument is the tag, always 0.
    """
    start = time.perf_counter()
    if transport.rank < peer:
        transport.post(peer, 0, buffer).wait()
        transport.expect(peer, 0, buffer, len(buffer)).wait()
    else:
        transport.expect(peer, 0, buffer, len(buffer)).wait()
        transport.post(peer, 0, buffer).wait()
    return (time.perf_counter() - start) / 2


def _both_ways(transport: Transport, peer: int, buffer: torch.Tensor) -> float:
    """Send a message in both directions at the same time, with tag 0; return the seconds."""
    start = time.perf_counter()
    sent = transport.post(peer, 0, buffer)
    transport.expect(peer, 0, buffer, len(buffer)).wait()
    sent.wait()
    return time.perf_counter() - start


@contextmanager
def _background_load() -> Iterator[None]:
    """Compute in a second thread while the `with` block runs, as a training step does meanwhile."""
    stop = Event()
    x = torch.randn(512, 512)

    def work() -> None:
        while not stop.is_set():
            x @ x

    thread = Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


if __name__ == "__main__":
    main()
