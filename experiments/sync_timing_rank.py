"""Runs one rank that measures the jobs of sync_timing.py in the lab, which starts it with torchrun:

    python -m experiments.sync_timing_rank request.json

A *variant* (sync_timing.py) is one way to train: by a plan, by torch's DDP, with a wrapped optimizer, or
without synchronisation.

Inside a block of steps there is no barrier, so that steps may overlap as in training. Blocks of different
variants take turns, so that a disturbance of the machine affects all of them.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import raddle
from experiments import nets
from experiments.links import background_traffic, measure_all_reduce, measure_link
from experiments.messages import measure_messages
from experiments.sync_timing import (
    DDP,
    MIB,
    NO_SYNC,
    SyncVariant,
    TimingJob,
    data_parallel_plan,
    job_from_dict,
)
from experiments.timing_rank import sgd
from raddle import sync
from raddle.api.costs import measure
from raddle.api.models import capture, load_workload
from raddle.api.programs import active_values
from raddle.api.transports import end_with_parent
from raddle.files import read_scratch, write_scratch

REPEATS = 5  # of an operator that is measured
# In place of a measured link, if there is one rank only. sum: latency of an all-reduce message.
NO_LINK = {"bandwidth": 1e9, "latency": 1e-4, "sum": 1e-4, "host_overhead": {}}
MESSAGE_REPEATS = 5  # messages of each size, to measure host overhead

Call = Callable[[], None]


def main(request: dict[str, Any]) -> None:
    """Measures the link and all jobs; rank 0 writes the results to a file.

    request: jobs, rounds (blocks of each variant), steps (of a block) and out (file of the result).
    """
    end_with_parent()  # this process ends when its parent does
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    sync.init()
    rank, size = dist.get_rank(), dist.get_world_size()
    link: dict[str, Any] = NO_LINK
    if size > 1:
        host_overhead = measure_messages(MESSAGE_REPEATS)["host_overhead"]
        link = {
            **measure_link(rank, size),
            "sum": measure_all_reduce(size),
            "host_overhead": host_overhead,
        }
    jobs = [JobRunner(job_from_dict(job), request, link).run() for job in request["jobs"]]
    if rank == 0:
        write_scratch(request["out"], {"link": link, "jobs": jobs})
    sync.close()
    dist.barrier()
    dist.destroy_process_group()


class JobRunner:
    """Measures all variants of one job, in turn."""

    def __init__(self, job: TimingJob, request: dict[str, Any], link: dict[str, Any]) -> None:
        self.job, self.request, self.link = job, request, link
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.workload = load_workload(nets.spec(job.net), batch=job.batch, device="cpu")
        self.graph = capture(
            self.workload.model,
            self.workload.batch,
            self.workload.loss,
            name=job.net,
        )
        self.waits: dict[str, Call] = {}  # by label: waits until all synchronisation is finished
        self.close_calls: list[Call] = []
        self.windows: list[tuple[str, float, float]] = []  # label, begin, end of each block

    def run(self) -> dict[str, Any]:
        """Returns the fields of JobTimes (sync_timing.py)."""
        profile = self._profile()
        self.windows.clear()  # removes the block that _profile measured
        steps = {label: self._step(label, variant) for label, variant in self.job.variants.items()}
        for step in steps.values():
            step()  # warms up
        blocks: dict[str, list[float]] = {label: [] for label in steps}
        order = list(steps)
        for turn in range(self.request["rounds"]):
            for label in order[turn % len(order) :] + order[: turn % len(order)]:
                blocks[label].append(self._block(label, steps[label], self.request["steps"]))
        dist.barrier()
        for close in self.close_calls:
            close()
        return {"blocks": blocks, "windows": self.windows, "profile": profile}

    def _block(self, label: str, step: Call, count: int) -> float:
        """Returns the seconds per step of the slowest rank.

        Communication still in flight at the end is not timed: it would overlap with the next step.
        """
        wait_for_sync = self.waits.get(label, _nothing)
        wait_for_sync()
        dist.barrier()
        step()  # not timed: unlike later steps, it is not delayed by an earlier step's communication
        start = time.perf_counter()
        for _ in range(count):
            step()
        end = time.perf_counter()
        wait_for_sync()
        self.windows.append((label, start, end))
        spent = torch.tensor((end - start) / count, dtype=torch.float64)
        dist.all_reduce(spent, dist.ReduceOp.MAX)
        return float(spent)

    def _step(self, label: str, variant: SyncVariant) -> Call:
        """Returns a function that trains one step by the variant, on a copy of the model."""
        model = copy.deepcopy(self.workload.model)
        if variant.runner == "ddp":
            # None keeps torch's smaller first bucket; naming even the default size would disable it. A
            # bucket of 0 becomes one byte, so that each tensor has a bucket of its own.
            size = None if variant == DDP else max(variant.bucket, 1) / MIB
            module = DistributedDataParallel(model, bucket_cap_mb=size)
            return self._torch_step(module, sgd(module.parameters()))
        if variant.runner == "alone":
            return self._torch_step(model, sgd(model.parameters()))
        if variant.runner == "wrapped":
            optimizer = sync.Optimizer(
                sgd(model.parameters()), model, sync=variant.sync, bucket=variant.bucket
            )
            self.waits[label] = optimizer.synchronize
            self.close_calls.append(optimizer.close)
            return self._torch_step(model, optimizer)
        plan = data_parallel_plan(self.graph, self.size, variant)
        trainer = raddle.parallelize(
            model,
            sgd,
            plan=plan,
            loss=self.workload.loss,
            graph=self.graph,
            device="cpu",
        )
        self.waits[label] = trainer.synchronize
        self.close_calls.append(trainer.close)
        # this rank's part of the batch
        part = trainer.part(self.workload.batch)
        return lambda: _discard(trainer.step(part))

    def _torch_step(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> Call:
        """Returns a function that trains one usual step of torch on this rank's samples."""
        batch = [t.tensor_split(self.size)[self.rank] for t in self.workload.batch]

        def step() -> None:
            optimizer.zero_grad()
            loss: Tensor = self.workload.loss(module, batch)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            float(loss.detach())  # read, as a training loop would

        return step

    def _profile(self) -> dict[str, float]:
        """Returns the seconds of a rank's operators, by the operator's key in a Profile.

        All ranks measure at once, while as much traffic is sent as in a step.
        """
        alone = self._step("", NO_SYNC)
        alone()
        compute = self._block("", alone, 2)
        plan = data_parallel_plan(self.graph, self.size, DDP)
        active = active_values(self.graph)  # values that have gradients
        # for each operator: the operands whose gradients are computed, and so measured too
        grad_operands = {
            op.name: [i for i, name in enumerate(op.inputs) if name in active]
            for op in self.graph.ops
        }
        boxes = [(op, tile.box) for op in self.graph.ops for tile in plan.tiles[op.name].tiles]
        # "core": the kind of device, a part of the keys in the profile
        with self._background_traffic(compute):
            return measure(self.graph, boxes, grad_operands, "core", repeats=REPEATS).seconds

    def _background_traffic(self, compute: float) -> AbstractContextManager[None]:
        """Sends as many bytes/s as data parallelism sends on average during a step.

        compute: seconds of a step without synchronisation.
        """
        if self.size == 1:
            return nullcontext()
        parameter_bytes = sum(p.nbytes for p in self.workload.model.parameters())
        # bytes that a rank sends in a ring all-reduce of all gradients
        sent = 2 * (self.size - 1) / self.size * parameter_bytes
        rate = sent / max(compute, sent / self.link["bandwidth"])
        return background_traffic(self.rank, self.size, rate)


def _nothing() -> None:
    pass


def _discard(_: object) -> None:
    pass


if __name__ == "__main__":
    main(read_scratch(sys.argv[1]))
