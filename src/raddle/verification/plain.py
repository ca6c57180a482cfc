"""The unmodified module, trained serially by plain PyTorch: what a plan's run is held against."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from raddle.errors import InputError
from raddle.run.job import Job, optimizer_for
from raddle.verification.statistics import LocalStatistics
from raddle.verification.substitutes import Substitutes, refuse_random


@dataclass
class Plain:
    """What steps of plain training leave."""

    losses: list[float] = field(default_factory=list)
    gradients: list[dict[str, Tensor]] = field(default_factory=list)  # by step
    norms: list[float] = field(default_factory=list)  # of all gradients of a step
    state: dict[str, Tensor] = field(default_factory=dict)  # parameters and buffers, at the end
    running: dict[int, dict[str, Tensor]] = field(default_factory=dict)  # by device, with bn: local
    seconds: float = 0.0  # of the slowest step

    def buffer(self, device: int, name: str) -> Tensor:
        """A buffer as a device should have it."""
        return self.running.get(device, {}).get(name, self.state[name])


def batch_of_step(job: Job, step: int) -> list[Tensor]:
    """Every step has the samples in another order, so that each device sees others."""
    return [t.roll(step, 0) if t.ndim else t for t in job.batch]


def train_plain(
    job: Job, steps: int, seed: int, heard: Callable[[int], None] = lambda step: None
) -> Plain:
    """Trains a copy of the module micro-batch by micro-batch; needs memory for the whole batch."""
    refuse_random(job.graph)
    model = copy.deepcopy(job.work.model)
    optimizer = optimizer_for(job.plan.optimizer)(list(model.parameters()))
    local = LocalStatistics(job.graph, job.plan, model) if job.plan.bn == "local" else None
    result = Plain()
    for step in range(steps):
        heard(step)
        begun = time.perf_counter()
        optimizer.zero_grad()
        with _enough_memory():
            result.losses.append(_step(job, model, local, seed, step))
        result.gradients.append(_gradients(model))
        result.norms.append(_norm(iter(result.gradients[-1].values())))
        optimizer.step()
        result.seconds = max(result.seconds, time.perf_counter() - begun)
    result.state = {n: p.detach() for n, p in [*model.named_parameters(), *model.named_buffers()]}
    result.running = local.running if local is not None else {}
    return result


def _step(job: Job, model: nn.Module, local: LocalStatistics | None, seed: int, step: int) -> float:
    """Forward and backward of all micro-batches; the loss is their mean."""
    count, total = job.plan.microbatches, 0.0
    inputs = len(job.work.inputs)
    tensors = batch_of_step(job, step)
    for micro in range(count):
        batch = [t.chunk(count)[micro] if t.ndim else t for t in tensors]
        if local is not None:
            local.begin()
        with Substitutes(job.graph, _seed(seed, step, micro), local) as substitutes:
            value = job.work.loss(model(*batch[:inputs]), *batch[inputs:]) / count
        substitutes.finish()
        value.backward()  # type: ignore[no-untyped-call]
        total += value.item()
    return total


def _seed(seed: int, step: int, micro: int) -> int:
    """As the executor numbers micro-batches."""
    return seed + 1_000_003 * step + micro


def _gradients(model: nn.Module) -> dict[str, Tensor]:
    found = ((name, p.grad) for name, p in model.named_parameters())
    return {name: grad.clone() for name, grad in found if grad is not None}


def _norm(tensors: Iterator[Tensor]) -> float:
    return math.sqrt(sum(float(t.double().square().sum()) for t in tensors))


@contextmanager
def _enough_memory() -> Iterator[None]:
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        raise InputError(
            "the plain module needs more memory than there is here: "
            "verify on a larger machine, or a plan for a smaller batch."
        ) from error
