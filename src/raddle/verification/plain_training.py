"""The unmodified module, trained serially by plain PyTorch: what a plan's run is held against."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from raddle.errors import InputError
from raddle.graph.dtypes import in_double
from raddle.program.program import Run
from raddle.runtime.job import Job, optimizer_for
from raddle.verification.local_statistics import LocalStatistics
from raddle.verification.precision import DoublePrecisionMode
from raddle.verification.replica_buffers import ReplicaBuffers
from raddle.verification.substitutes import Substitutes, refuse_random


@dataclass
class PlainRun:
    """What steps of plain training leave."""

    losses: list[float] = field(default_factory=list)
    gradients: list[dict[str, Tensor]] = field(default_factory=list)  # by step
    norms: list[float] = field(default_factory=list)  # of all gradients of a step
    state: dict[str, Tensor] = field(default_factory=dict)  # parameters and buffers, at the end
    running_statistics: dict[int, dict[str, Tensor]] = field(
        default_factory=dict
    )  # by device, with bn: local
    seconds: float = 0.0  # of the slowest step

    def buffer(self, device: int, name: str) -> Tensor:
        """A buffer as a device should have it."""
        return self.running_statistics.get(device, {}).get(name, self.state[name])


def batch_of_step(job: Job, step: int) -> list[Tensor]:
    """Every step has the samples in another order, so that each device sees others."""
    return [t.roll(step, 0) if t.ndim else t for t in job.batch]


def train_plain(
    job: Job, steps: int, seed: int, on_progress: Callable[[int], None] = lambda step: None
) -> PlainRun:
    """Trains a copy of the module micro-batch by micro-batch; needs memory for the whole batch."""
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
    one_step.replica_buffers.load(0)
    result.state = {n: p.detach() for n, p in [*model.named_parameters(), *model.named_buffers()]}
    result.running_statistics = one_step.running_statistics
    return result


class _PlainStep:
    """Forward and backward of all micro-batches, each with the statistics that the plan gives it."""

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
        self.variants = {
            i.key.micro_batch: i.key.variant
            for i in job.program.instructions
            if isinstance(i, Run) and not i.key.step
        }

    def run(self, step: int) -> float:
        """The loss: the mean over all samples."""
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


def micro_batches(job: Job, tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """A batch as its micro-batches, which may differ in size."""
    sizes = job.program.micro_batch_sizes
    parts = [torch.split(t, sizes) if t.ndim else [t] * len(sizes) for t in tensors]
    return (list(micro_batch) for micro_batch in zip(*parts, strict=True))


def micro_batch_loss(
    job: Job, model: nn.Module, batch: Sequence[Tensor], seed: int, step: int, micro_batch: int,
    local: LocalStatistics | None = None,
) -> Tensor:  # fmt: skip
    """A micro-batch's part of the loss, by its share of the samples."""
    inputs, sizes = len(job.workload.inputs), job.program.micro_batch_sizes
    graph = job.graph.for_batch(sizes[micro_batch])
    with (
        Substitutes(graph, _seed(seed, step, micro_batch), local) as substitutes,
        DoublePrecisionMode(),
    ):
        loss = job.workload.loss(model(*batch[:inputs]), *batch[inputs:])
    substitutes.finish()
    return loss * (sizes[micro_batch] / sum(sizes))


def backward(loss: Tensor) -> None:
    """Gradients of a loss; a forward that is done again for them is not rounded either."""
    with DoublePrecisionMode():
        torch.autograd.backward(loss)


def _seed(seed: int, step: int, micro_batch: int) -> int:
    """As the executor numbers micro-batches."""
    return seed + 1_000_003 * step + micro_batch


def _gradients(model: nn.Module) -> dict[str, Tensor]:
    gradients = ((name, p.grad) for name, p in model.named_parameters())
    return {name: grad.clone() for name, grad in gradients if grad is not None}


def _norm(tensors: Iterator[Tensor]) -> float:
    return math.hypot(*(float(torch.linalg.vector_norm(in_double(t))) for t in tensors))


@contextmanager
def _explain_out_of_memory() -> Iterator[None]:
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        raise InputError(
            "the plain module needs more memory than there is here: "
            "verify on a larger machine, or a plan for a smaller batch."
        ) from error
