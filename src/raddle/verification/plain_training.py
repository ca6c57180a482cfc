"""Trains the unmodified module serially with plain PyTorch: the reference for a plan.

The plain training uses the micro-batches, the dropout masks and the batch-norm statistics of the plan, so
that it computes the same numbers as the plan. A *job* (runtime/job.py) is all that a rank needs to train:
model, loss, batch, plan and program.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from raddle.errors import InputError
from raddle.graph.arguments import map_samples
from raddle.graph.dtypes import in_double
from raddle.graph.supervised import split_metrics
from raddle.program.program import Run
from raddle.runtime.job import Job, optimizer_for
from raddle.verification.local_statistics import LocalStatistics
from raddle.verification.precision import DoublePrecisionMode
from raddle.verification.replica_buffers import ReplicaBuffers
from raddle.verification.substitutes import Substitutes, refuse_random


@dataclass
class PlainRun:
    """The results of plain training."""

    losses: list[float] = field(default_factory=list)  # by step
    gradients: list[dict[str, Tensor]] = field(default_factory=list)  # by step and parameter name
    norms: list[float] = field(default_factory=list)  # by step, the norm of all gradients together
    state: dict[str, Tensor] = field(default_factory=dict)  # final parameters and buffers, by name
    # With `bn: local` every device has its own running statistics: by device and buffer name.
    running_statistics: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    seconds: float = 0.0  # seconds of the slowest step

    def buffer(self, device: int, name: str) -> Tensor:
        """Return the expected value of a buffer on a device."""
        return self.running_statistics.get(device, {}).get(name, self.state[name])


def batch_of_step(job: Job, step: int) -> Any:
    """Return the batch of a step: the samples are rotated, so that each device gets different ones."""
    return map_samples(lambda t: t.roll(step, 0), job.batch)


def train_plain(
    job: Job, steps: int, seed: int, on_progress: Callable[[int], None] = lambda step: None
) -> PlainRun:
    """Train a copy of the module for some steps, one micro-batch after the other, on this machine.

    on_progress: called with the number of each step.
    """
    refuse_random(job.graph)
    model = copy.deepcopy(job.workload.model)
    optimizer = optimizer_for(job.plan.optimizer)(list(model.parameters()))
    one_step = _PlainStep(job, model, seed)
    result = PlainRun()
    for step in range(steps):
        on_progress(step)
        start = time.perf_counter()
        optimizer.zero_grad()
        with _explain_out_of_memory():
            result.losses.append(one_step.run(step))
        result.gradients.append(_gradients(model))
        result.norms.append(_norm(iter(result.gradients[-1].values())))
        optimizer.step()
        result.seconds = max(result.seconds, time.perf_counter() - start)
    # The final buffers are those of variant 0, which runs the first micro-batch.
    one_step.replica_buffers.load(0)
    result.state = {n: p.detach() for n, p in [*model.named_parameters(), *model.named_buffers()]}
    result.running_statistics = one_step.running_statistics
    return result


class _PlainStep:
    """Runs forward and backward of all micro-batches of a step, with the plan's batch-norm statistics.

    A *variant* of a program is how some of the micro-batches run: the graph for their size, and the tiles
    on the devices that run them.
    """

    def __init__(self, job: Job, model: nn.Module, seed: int) -> None:
        self.job, self.model, self.seed = job, model, seed
        self.running_statistics: dict[int, dict[str, Tensor]] = {}
        self.local_statistics = [
            LocalStatistics(
                v.graph, replace(job.plan, tiles=v.tiles), model, self.running_statistics
            )
            for v in (job.program.variants if job.plan.bn == "local" else ())
        ]
        self.replica_buffers = ReplicaBuffers(job.program, model)
        # By micro-batch, the number of its variant; taken from the instructions of step 0.
        self.variants = {
            i.key.micro_batch: i.key.variant
            for i in job.program.instructions
            if isinstance(i, Run) and not i.key.step
        }

    def run(self, step: int) -> float:
        """Add the gradients of all micro-batches; return the loss, a mean over all samples."""
        total = 0.0
        for micro_batch, batch in enumerate(micro_batches(self.job, batch_of_step(self.job, step))):
            variant = self.variants[micro_batch]
            local = self.local_statistics[variant] if self.local_statistics else None
            if local is not None:
                local.begin()
            self.replica_buffers.load(variant)
            loss = micro_batch_loss(
                self.job, self.model, batch, self.seed, step, micro_batch, local
            )
            self.replica_buffers.store(variant)
            backward(loss)
            total += loss.item()
        return total


def micro_batches(job: Job, batch: Any) -> Iterator[Any]:
    """Split the tensors of a batch into micro-batches, whose sizes may differ."""
    first = 0  # number of the first sample
    for size in job.program.micro_batch_sizes:
        yield map_samples(partial(torch.narrow, dim=0, start=first, length=size), batch)
        first += size


def micro_batch_loss(
    job: Job, model: nn.Module, batch: Any, seed: int, step: int, micro_batch: int,
    local: LocalStatistics | None = None,
) -> Tensor:  # fmt: skip
    """Run the forward of a micro-batch; return its loss times its fraction of the step's samples.

    batch: of the micro-batch. local: replaces batch norms if `bn` is local.
    """
    sizes = job.program.micro_batch_sizes
    graph = job.graph.for_batch(sizes[micro_batch])
    with (
        Substitutes(graph, _seed(seed, step, micro_batch), local) as substitutes,
        DoublePrecisionMode(),
    ):
        loss, _ = split_metrics(job.workload.loss(model, batch))
    substitutes.finish()
    return loss * (sizes[micro_batch] / sum(sizes))


def backward(loss: Tensor) -> None:
    """Run the backward.

    DoublePrecisionMode is for the forwards that activation checkpointing repeats: they also compute in
    float64.
    """
    with DoublePrecisionMode():
        torch.autograd.backward(loss)


def _seed(seed: int, step: int, micro_batch: int) -> int:
    """Return the seed of the dropout masks of a micro-batch, the same as in the runtime's executor."""
    # 1_000_003 is a prime: steps with fewer micro-batches than that have different seeds.
    return seed + 1_000_003 * step + micro_batch


def _gradients(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of all gradients, by parameter name."""
    gradients = ((name, p.grad) for name, p in model.named_parameters())
    return {name: grad.clone() for name, grad in gradients if grad is not None}


def _norm(tensors: Iterator[Tensor]) -> float:
    """Return the norm of all tensors together."""
    return math.hypot(*(float(torch.linalg.vector_norm(in_double(t))) for t in tensors))


@contextmanager
def _explain_out_of_memory() -> Iterator[None]:
    """Turn out-of-memory errors of the `with` block into an InputError."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        raise InputError(
            "the plain module needs more memory than there is here: "
            "verify on a larger machine, or a plan for a smaller batch."
        ) from error
