"""Runs one rank that times nets with several schedules in turn, then measures their memory.

run.py (part `gems`) starts the ranks with torchrun and shows the second table of README.md.
"""

from __future__ import annotations

import copy
import json
import pathlib
import statistics
import sys
import time
from typing import Any

import nets
import torch
import torch.distributed as dist
from rank import sgd
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import raddle

WARM_UP = 2


def main(settings: dict[str, Any]) -> None:
    """Measures all nets; settings: folder (plans, results), rounds (timed steps), nets (names)."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    folder = pathlib.Path(settings["folder"])
    rows = [measure(name, folder, settings["rounds"]) for name in settings["nets"]]
    if dist.get_rank() == 0:
        (folder / "rows.json").write_text(json.dumps(rows))
    dist.destroy_process_group()


def measure(name: str, folder: pathlib.Path, rounds: int) -> dict[str, Any]:
    """Returns the milliseconds of a step and each rank's peak in bytes, by schedule."""
    workload = nets.load(name, nets.NETS[name].micro * nets.MICROBATCHES)
    trainers = {
        schedule: raddle.parallelize(
            copy.deepcopy(workload.model),
            sgd,
            plan=folder / f"{name}.{dist.get_world_size()}.{schedule}.json",
            loss=workload.loss,
            example=workload.batch,
            device="cpu",
        )
        for schedule in nets.SCHEDULES
    }
    batch = workload.batch
    losses = {
        schedule: [float(trainer.step(batch)) for _ in range(WARM_UP)]
        for schedule, trainer in trainers.items()
    }
    for schedule_losses in losses.values():
        torch.testing.assert_close(
            torch.tensor(schedule_losses), torch.tensor(losses["sequential"]), rtol=1e-4, atol=1e-5
        )
    times: dict[str, list[float]] = {schedule: [] for schedule in trainers}
    for number in range(rounds):
        order = list(trainers)
        for schedule in order[number % len(order) :] + order[: number % len(order)]:
            times[schedule].append(_timed(trainers[schedule], batch))
    measured = {
        schedule: {
            "ms": 1e3 * statistics.median(times[schedule]),
            "all_ms": [round(1e3 * t, 1) for t in times[schedule]],
            "peak_bytes": _peaks(trainer, batch),
            "losses": losses[schedule],
        }
        for schedule, trainer in trainers.items()
    }
    for trainer in trainers.values():
        trainer.close()
    return {"net": name, "ranks": dist.get_world_size(), "measured": measured}


def _timed(trainer: Any, batch: list[Tensor]) -> float:
    """Returns the seconds that a step takes on the slowest rank."""
    dist.barrier()
    start = time.perf_counter()
    trainer.step(batch)
    spent = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
    dist.all_reduce(spent, dist.ReduceOp.MAX)
    return float(spent)


def _peaks(trainer: Any, batch: list[Tensor]) -> list[int]:
    """Returns the peak bytes by rank: persistent tensors, and what PyTorch allocates during a step."""
    dist.barrier()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        trainer.step(batch)
    level = peak = 0  # level: bytes allocated now; peak: the most so far
    for event in seen.profiler.kineto_results.events():  # every allocation and every release
        if event.name() == "[memory]":
            level += event.nbytes()
            peak = max(peak, level)
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, peak + _persistent_bytes(trainer))
    return ranks


def _persistent_bytes(trainer: Any) -> int:
    """Returns the bytes of parameters, buffers, gradient buckets and optimizer state."""
    executor = trainer.executor
    tensors = [t for t in executor.slots if isinstance(t, Tensor)] + list(
        executor.parameter_updater.bucket_buffers
    )
    for state in trainer.optimizer.state.values():
        tensors += [t for t in state.values() if isinstance(t, Tensor)]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
