"""Measures on one rank in the lab: the links by round trips, then the steps of every exchange in turn.

run.py starts several ranks on each emulated host; the exchanges are in exchanges.py.
"""

from __future__ import annotations

import json
import os
import pathlib
import statistics
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from cores import Busy
from exchanges import PATTERNS, TOPOLOGIES, Topology
from torch.nn import functional as F

import raddle
from raddle.transport.process_transport import ProcessTransport

WARM_UP = 2  # steps that are not timed
SMALL, LARGE = 2**10, (2**22, 2**24)  # bytes of a message: for the latency, for the bandwidth


def main(name: str, rounds: int, out: str) -> None:
    """Measure on the topology of this name; rank 0 writes the measurements as JSON to the file `out`."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    topology = next(t for t in TOPOLOGIES if t.name == name)
    measured: dict[str, Any] = {"links": links(topology), "steps": {}}
    for pattern in PATTERNS:
        measured["steps"][pattern] = steps(topology, pattern, rounds)
    if dist.get_rank() == 0:
        pathlib.Path(out).write_text(json.dumps(measured))
    dist.destroy_process_group()


def links(topology: Topology) -> dict[str, Any]:
    """Return the link between two ranks of host 0 ("inside"), and those to each other host ("between")."""
    transport = ProcessTransport(torch.device("cpu"), "gloo", 300.0)
    transport.prepare([])
    peers = [topology.per_host * host for host in range(1, topology.hosts)]
    measured = {
        "inside": link(transport, 1, (2**20, 2**24)),
        "between": [link(transport, peer, LARGE) for peer in peers],
    }
    transport.barrier()
    transport.close()
    return measured


def link(transport: ProcessTransport, peer: int, large: tuple[int, int]) -> dict[str, float]:
    """Return latency (seconds) and bandwidth (bytes/s) of the link between rank 0 and another rank.

    large: bytes of two messages, whose difference in time gives the bandwidth.
    """
    transport.barrier()
    if transport.rank not in (0, peer):
        return {}
    latency = round_trip(transport, peer, SMALL, 40) / 2
    short, long = (round_trip(transport, peer, nbytes, 3) / 2 for nbytes in large)
    return {"latency": latency, "bandwidth": (large[1] - large[0]) / (long - short)}


def round_trip(transport: ProcessTransport, peer: int, nbytes: int, repeats: int) -> float:
    """Return the median seconds of a message to the peer and back."""
    buffer = torch.zeros(nbytes, dtype=torch.uint8)
    other = peer if transport.rank == 0 else 0
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        if transport.rank == 0:
            transport.post(other, 0, buffer).wait()
            transport.expect(other, 0, buffer, nbytes).wait()
        else:
            transport.expect(other, 0, buffer, nbytes).wait()
            transport.post(other, 0, buffer).wait()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def steps(topology: Topology, pattern: str, rounds: int) -> dict[str, Any]:
    """Return the seconds of each step, from a barrier to the end of the last rank, and two shares.

    busy: the share of the cores' time in which anything on this machine used them; by_ranks: the share that
    the ranks used, which includes most of the kernel's work for them.
    """
    exchange = PATTERNS[pattern](topology)
    trainer = raddle.parallelize(
        exchange.model,
        lambda p: torch.optim.SGD(p, lr=1e-3),
        plan=exchange.plan,
        loss=raddle.supervised(F.mse_loss),
        graph=exchange.graph,
        device="cpu",
    )
    part = trainer.part((exchange.inputs, exchange.target))
    seconds, busy, by_ranks = [], [], []
    for number in range(WARM_UP + rounds):
        dist.barrier()
        cores, start, used = Busy(), time.perf_counter(), time.process_time()
        trainer.step(part)
        trainer.synchronize()
        took = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
        cpu_seconds = torch.tensor(time.process_time() - used, dtype=torch.float64)
        dist.all_reduce(took, dist.ReduceOp.MAX)
        dist.all_reduce(cpu_seconds)
        if number >= WARM_UP:
            seconds.append(float(took))
            busy.append(cores.share())
            by_ranks.append(float(cpu_seconds / took) / (os.cpu_count() or 1))
    trainer.close()
    return {
        "seconds": seconds,
        "busy": statistics.median(busy),
        "by_ranks": statistics.median(by_ranks),
    }


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
