"""Runs a program with all ranks as threads of this process: for tests, and for trying out."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from raddle.graph.box import Box
from raddle.graph.interpret import Pieces, whole
from raddle.program.program import Program
from raddle.run.transport import Threads
from raddle.run.worker import Batches, Optimizer, Worker


@dataclass(frozen=True)
class Result:
    """What a run leaves: the loss of each step, parameters and buffers put together, bytes by pair."""

    losses: list[float]
    state: dict[str, Tensor]
    sent: dict[tuple[int, int], int]


def run_threads(
    program: Program,
    state: Mapping[str, Tensor],
    optimizer: Optimizer,
    batches: Batches,
    seed: int = 0,
) -> Result:
    """Executes a program on as many threads as it has devices.

    `state` holds parameters and buffers; `batches(key)` gives the inputs of a micro-batch by name.
    """
    transport = Threads()
    workers = [
        Worker(program, d, transport, state, optimizer, batches, seed)
        for d in range(program.plan.devices)
    ]
    failures: list[tuple[int, BaseException]] = []

    def work(worker: Worker) -> None:
        try:
            worker.run()
        except BaseException as error:
            failures.append((worker.device, error))
            transport.failed.set()

    threads = [threading.Thread(target=work, args=(w,), name=f"rank {w.device}") for w in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        device, error = next((f for f in failures if "another rank" not in str(f[1])), failures[0])
        raise RuntimeError(f"rank {device} failed: {error}") from error
    return Result(_losses(workers, program), _state(workers, program), dict(transport.sent))


def _losses(workers: list[Worker], program: Program) -> list[float]:
    noted = next((w.losses for w in workers if w.losses), [])
    m = program.plan.microbatches
    return [float(sum(noted[i : i + m])) for i in range(0, len(noted), m)]


def _state(workers: list[Worker], program: Program) -> dict[str, Tensor]:
    """Parameters and buffers put together from the ranks' pieces."""
    result = {}
    for value in [*program.graph.parameters, *program.graph.buffers]:
        found: Pieces = []
        for worker in workers:
            if value.name in program.graph.updates and value.name not in worker.written:
                continue
            held = worker.parameters if value.role == "parameter" else worker.buffers
            found += [
                p for p in held.get(value.name, []) if not any(p[0] == box for box, _ in found)
            ]
        if found:
            with torch.no_grad():
                result[value.name] = whole(found, Box.full(value.shape)).clone()
    return result
