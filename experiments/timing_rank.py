"""Runs one rank that times plans for timing.py, which starts it with torchrun:

    python -m experiments.timing_rank request.json

Plans and DDP take turns, in blocks of steps; each turn begins with another one of them.
"""

from __future__ import annotations

import copy
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

import raddle
from raddle.api.models import Graph, Workload, capture, load_workload
from raddle.api.plans import read_plan
from raddle.api.running import Trainer
from raddle.api.transports import end_with_parent
from raddle.files import read_scratch, write_scratch

WARM_UP = 2  # steps
Step = Callable[[], float]  # trains one step and returns its loss


def main(request: dict[str, Any]) -> None:
    """Times all plans of the request and writes the results to its file `out`.

    request: as `time_plans` (timing.py) wrote it; its `kinds` has, by label, the `kind` for `make_step`.
    """
    end_with_parent()  # this process ends when its parent does
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    workload = load_workload(request["spec"], batch=request["batch"], device="cpu")
    trainers: dict[str, Trainer] = {}
    graphs = GraphsBySize(workload)
    steps = {
        label: make_step(workload, kind, label, trainers, graphs)
        for label, kind in request["kinds"].items()
    }
    losses = {label: [step() for _ in range(WARM_UP)] for label, step in steps.items()}
    times: dict[str, list[float]] = {label: [] for label in steps}
    order = list(steps)
    for turn in range(request["rounds"]):
        for label in order[turn % len(order) :] + order[: turn % len(order)]:
            times[label].append(_block(steps[label], trainers.get(label), request["steps"]))
    results = {}
    for label, seconds in times.items():
        results[label] = {
            "seconds": statistics.median(seconds), "shortest": min(seconds), "longest": max(seconds),
            "losses": losses[label],
            "peaks": _peak_bytes(steps[label], trainers.get(label)) if request["peaks"] else [],
        }  # fmt: skip
    if dist.get_rank() == 0:
        write_scratch(request["out"], results)
    dist.barrier()
    for trainer in trainers.values():
        trainer.close()
    dist.destroy_process_group()


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """Returns the optimizer that all plans and DDP use."""
    return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)


class GraphsBySize:
    """The graphs of a workload by micro-batch size, each captured once."""

    def __init__(self, workload: Workload) -> None:
        self.full_batch = capture(workload.model, workload.batch, workload.loss, name=workload.name)
        self.by_size: dict[int, Graph] = {}

    def for_plan(self, path: str) -> Graph:
        """Returns the graph of a micro-batch of the plan in this file."""
        plan = read_plan(path)
        # samples of a micro-batch; 0: the whole batch
        size = -(-plan["batch"] // plan["microbatches"]) if plan["microbatches"] > 1 else 0
        if size not in self.by_size:
            self.by_size[size] = self.full_batch.for_batch(size) if size else self.full_batch
        return self.by_size[size]


def make_step(
    workload: Workload, kind: float | str | None, label: str, trainers: dict[str, Trainer],
    graphs: GraphsBySize,
) -> Step:  # fmt: skip
    """Returns a function that trains one step by a plan or by DDP.

    kind: file of the plan, or megabytes of a DDP bucket (None: torch's default). The trainer of a plan is
    added to `trainers`.
    """
    model = copy.deepcopy(workload.model)
    if isinstance(kind, str):
        trainer = raddle.parallelize(
            model, sgd, plan=kind, loss=workload.loss, graph=graphs.for_plan(kind), device="cpu"
        )
        trainers[label] = trainer
        # this rank's part of the batch
        part = trainer.part(workload.batch)
        return lambda: float(trainer.step(part))
    return ddp_step(workload, DistributedDataParallel(model, bucket_cap_mb=kind))


def ddp_step(workload: Workload, module: DistributedDataParallel) -> Step:
    """Returns a function that trains one step by DDP on this rank's samples."""
    optimizer = sgd(module.parameters())
    size, rank = dist.get_world_size(), dist.get_rank()
    batch = [tensor.tensor_split(size)[rank] for tensor in workload.batch]

    def step() -> float:
        optimizer.zero_grad()
        loss = workload.loss(module, batch)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def _block(step: Step, trainer: Trainer | None, count: int) -> float:
    """Returns the seconds per step of the slowest rank. Steps of a block may overlap, as in training.

    The first step is not timed: unlike later ones, it is not delayed by an earlier step's communication.
    """
    if trainer is not None:
        trainer.synchronize()
    step()
    dist.barrier()
    start = time.perf_counter()
    for _ in range(count):
        step()
    spent = torch.tensor((time.perf_counter() - start) / count, dtype=torch.float64)
    dist.all_reduce(spent, dist.ReduceOp.MAX)
    return float(spent)


def _peak_bytes(step: Step, trainer: Trainer | None) -> list[int]:
    """Returns the peak bytes by rank: persistent tensors, and what torch allocates during a step.

    For DDP, which has no trainer, persistent tensors are left out.
    """
    dist.barrier()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    level = peak = 0  # level: bytes allocated now; peak: the most so far
    for event in profiler.profiler.kineto_results.events():  # every allocation and every release
        if event.name() == "[memory]":
            level += event.nbytes()
            peak = max(peak, level)
    by_rank: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(by_rank, peak + (_persistent_bytes(trainer) if trainer else 0))
    return by_rank


def _persistent_bytes(trainer: Trainer) -> int:
    """Returns the bytes of parameters, buffers, gradient buckets and optimizer state."""
    executor = trainer.executor  # its slots hold parameters and buffers between steps
    tensors = [t for t in executor.slots if isinstance(t, Tensor)] + list(
        executor.parameter_updater.bucket_buffers
    )
    if trainer.optimizer is not None:
        for state in trainer.optimizer.state.values():
            tensors += [t for t in state.values() if isinstance(t, Tensor)]
    # tensors that share memory count once
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


if __name__ == "__main__":
    main(read_scratch(sys.argv[1]))
