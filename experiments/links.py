"""Measures the network links of a lab between ranks, and describes the lab as a Cluster to simulate.

A lab is a set of network namespaces on this machine (hosts), each behind a link of limited rate.

A SocketWire (raddle/transport/socket_wire.py) sends payloads between ranks by TCP, for parameter servers.
Each payload has a header, a *frame* (wire.py), with three fields: the kind (PUSH: a gradient for a server),
the item (the number of a slice of a parameter) and the clock (counts the pushes of that item). Here
nothing is trained: all messages are pushes of item 0 with a payload of zeros, and the clock is the number
of the message.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from raddle.api.clusters import Cluster
from raddle.api.lab import Lab
from raddle.api.transports import PUSH, Frame, SocketWire
from raddle.errors import InputError

MEGABYTE = torch.zeros(2**18)  # float32: 1 MiB
FRAMES = 24  # messages of 1 MiB that are sent to measure the bandwidth of a link
ALL_REDUCES = 50  # small all-reduces in one measurement
TIMEOUT = 60.0  # seconds in which all ranks must be connected

# Describes one CPU core. Operators are measured, so only updates and searches use these numbers.
DEVICE = {
    "flops": {"float32": "60 GFLOP/s"}, "bandwidth": "8 GB/s", "memory": "8 GB", "overhead": "10 us",
}  # fmt: skip


class LabUnavailable(Exception):
    """This machine cannot run a lab; the message says why."""


@contextmanager
def start_lab(hosts: int, rate: str) -> Iterator[Lab]:
    """Starts a lab and removes it at the end of the `with` block. rate: of each link, such as "1gbit"."""
    try:
        lab = Lab.up(hosts=hosts, rate=rate, name="reproduce-sync")
    except InputError as error:
        raise LabUnavailable(str(error)) from None
    with lab:
        yield lab


def lab_cluster(
    count: int,
    bandwidth: float,
    latency: float = 2e-4,
    host_overhead: Mapping[str, float] | None = None,
) -> Cluster:
    """Returns the lab as a cluster of `count` hosts with one core each.

    bandwidth: bytes/s; latency: seconds; host_overhead: seconds that a core loses per "message", "byte",
    "sum" (all-reduce) and "slice". duplex: a link sends and receives at the same time; per_device false:
    one network adapter for each host.
    """
    return Cluster.from_dict(
        {
            "name": "lab",
            "devices": {"core": {**DEVICE, "host_overhead": dict(host_overhead or {})}},
            "nodes": [{"count": count, "devices": ["core"]}],
            "network": {
                "bandwidth": bandwidth, "latency": latency, "duplex": True, "per_device": False,
            },
        }
    )  # fmt: skip


def measure_link(rank: int, size: int) -> dict[str, float]:
    """Returns the bandwidth (bytes/s) and latency (seconds) to the next rank while all ranks send.

    All ranks must call it.
    """
    wire = SocketWire(rank, size, _address_exchange(size), timeout=TIMEOUT)
    all_received = threading.Event()
    outstanding = [0]  # messages still to come; a list, so that `arrive` can change it

    def arrive(source: int, frame: Frame, payload: Tensor) -> None:
        """Counts a message; the wire calls it for each message that this rank receives."""
        outstanding[0] -= 1
        if not outstanding[0]:
            all_received.set()

    wire.expect({0: MEGABYTE.nbytes})  # by item: bytes of its largest payload
    wire.start(arrive, lambda reason: None)  # the second function is called if a peer is lost
    seconds_by_count: dict[int, list[float]] = {1: [], FRAMES: []}
    # one short message (4 KiB) measures the latency, FRAMES long ones the bandwidth
    for count in (1, 1, 1, 1, 1, 1, FRAMES, FRAMES, FRAMES):
        outstanding[0] = count
        all_received.clear()
        payload = MEGABYTE if count > 1 else MEGABYTE[:1024]
        dist.barrier()
        start = time.perf_counter()
        for clock in range(count):
            wire.send((rank + 1) % size, Frame(PUSH, 0, clock + 1), payload, 0)  # priority 0
        if not all_received.wait(TIMEOUT):
            raise RuntimeError(f"rank {rank} waits for {outstanding[0]} of {count} messages")
        seconds_by_count[count].append(time.perf_counter() - start)
    dist.barrier()
    wire.close()
    latency = min(seconds_by_count[1])
    return {
        "bandwidth": FRAMES * MEGABYTE.nbytes / (min(seconds_by_count[FRAMES]) - latency),
        "latency": latency,
    }


def measure_all_reduce(size: int) -> float:
    """Returns the seconds of a message of a ring all-reduce of 1 KiB, which are mostly latency.

    Such an all-reduce has 2 (size - 1) messages one after the other. All ranks must call the function.
    """
    small = torch.zeros(256)
    dist.barrier()
    start = time.perf_counter()
    for _ in range(ALL_REDUCES):
        dist.all_reduce(small)
    return (time.perf_counter() - start) / ALL_REDUCES / (2 * (size - 1))


@contextmanager
def background_traffic(rank: int, size: int, rate: float) -> Iterator[None]:
    """Sends `rate` bytes/s to the next rank during the `with` block, at an even rate."""
    wire, finished = (
        SocketWire(rank, size, _address_exchange(size), timeout=TIMEOUT),
        threading.Event(),
    )
    wire.expect({0: MEGABYTE.nbytes})
    wire.start(lambda source, frame, payload: None, lambda reason: None)

    def send_evenly() -> None:
        """Sends a megabyte whenever the average rate so far is below `rate`."""
        sent, begun = 0, time.perf_counter()
        while not finished.is_set():
            due = sent * MEGABYTE.nbytes < rate * (time.perf_counter() - begun)
            # due: the average rate is below `rate`. counters.messages: messages that have left; at most
            # three wait in the queue.
            if due and sent - wire.counters.messages < 3:
                wire.send((rank + 1) % size, Frame(PUSH, 0, sent + 1), MEGABYTE, 0)
                sent += 1
            else:
                time.sleep(0.001)

    thread = threading.Thread(target=send_evenly)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()
        dist.barrier()
        wire.close()


def _address_exchange(size: int) -> Callable[[Any], list[Any]]:
    """Returns a function that every rank calls with its address and that returns all ranks' addresses."""

    def share(address: Any) -> list[Any]:
        by_rank: list[Any] = [None] * size
        dist.all_gather_object(by_rank, address)
        return by_rank

    return share
