"""Measures messages between ranks with the transport that plans use: link speed and host overhead."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch

from raddle.api.clusters import Link
from raddle.api.probing import fit
from raddle.api.running import measure_host_overhead
from raddle.api.transports import ProcessTransport, Transport

SIZES = (2**10, 2**14, 2**17, 2**20, 2**22)  # bytes of a message
TIMEOUT = 120.0  # seconds after which any wait for a message fails


def measure_messages(repeats: int) -> dict[str, Any]:
    """Measures a link; all ranks call it.

    repeats: timed messages of each size. Returns bandwidth (bytes/s), latency (seconds) and host_overhead
    (time that communication takes from the rank itself, see Device.host_overhead).
    """
    transport = ProcessTransport(torch.device("cpu"), "gloo", TIMEOUT)
    transport.prepare([])  # [], because no groups of ranks all-reduce; links are made for all ranks
    link = fit_link_with_burst(
        [(nbytes, _exchange_seconds(transport, nbytes, repeats)) for nbytes in SIZES]
    )
    result = {
        "bandwidth": link.bandwidth,
        "latency": max(1e-5, link.latency),
        "host_overhead": measure_host_overhead(transport, rounds=2 * repeats),
    }
    transport.barrier()
    transport.close()
    return result


def fit_link_with_burst(samples: Sequence[tuple[int, float]]) -> Link:
    """Fits a link that lets the first bytes of a message pass at full speed, as the lab's
    rate limiters (token buckets) do.

    The bandwidth comes from the two longest messages, which are both longer than that burst; the latency is
    the time of the shortest message. samples: (bytes, seconds) pairs.
    """
    (shorter, shorter_seconds), (longer, longer_seconds) = sorted(samples)[-2:]
    if longer_seconds <= shorter_seconds:  # noise
        return fit(samples)  # the line through all samples: latency + bytes / bandwidth
    return Link((longer - shorter) / (longer_seconds - shorter_seconds), min(samples)[1])


def _exchange_seconds(transport: Transport, nbytes: int, repeats: int) -> float:
    """Returns the median seconds of a message to the next rank, while all ranks send and receive."""
    rank, size = transport.rank, transport.size
    buffer, durations = torch.zeros(nbytes, dtype=torch.uint8), []
    for _ in range(repeats + 1):
        transport.barrier()
        start = time.perf_counter()
        sent = transport.post((rank + 1) % size, 0, buffer)  # 0: the message's tag
        transport.expect((rank - 1) % size, 0, buffer, nbytes).wait()
        sent.wait()
        durations.append(time.perf_counter() - start)
    return statistics.median(durations[1:])  # the first one warms up
