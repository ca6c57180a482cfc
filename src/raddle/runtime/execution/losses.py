"""Carries out RecordLoss: collects losses of micro-batches and gives every rank the loss of the step.

In a pipeline only the last stage computes the loss, so one of its ranks broadcasts it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from raddle.plans.pipelining import is_asynchronous
from raddle.program.program import Program
from raddle.runtime.actions import RecordLoss
from raddle.runtime.execution.metrics import Metrics
from raddle.runtime.execution.store import Store
from raddle.runtime.loss_scaler import LossScaler
from raddle.transport.base import Pending, Transport


class Losses:
    """The losses of one run (one step, or all overlapping steps) on one rank.

    If some ranks do not compute the loss, those that do broadcast it. scaler: the factor of the gradient
    of the loss, with fp16.
    """

    def __init__(
        self, program: Program, transport: Transport, store: Store, scaler: LossScaler | None = None
    ) -> None:
        self.transport, self.store, self.scaler = transport, store, scaler
        self.sizes = program.micro_batch_sizes  # samples of each micro-batch
        self.steps = program.plan.steps if is_asynchronous(program.plan) else 1  # of one run
        loss = program.graph.loss  # None: of a program that computes outputs alone
        self.dtype = torch.float32 if loss is None else program.graph.values[loss].dtype
        # For each variant (how some micro-batches run: their size, their devices), who computes the loss.
        loss_devices = {v.loss_devices for v in program.variants} if loss else set()
        self.on_all_ranks = all(len(devices) == transport.size for devices in loss_devices)
        # With replicated pipelines, several ranks have the losses of different micro-batches.
        self.broadcasters = sorted({devices[0] for devices in loss_devices})
        self.metrics = Metrics(program, transport, store)
        self.weight = 1.0
        self._recorded: list[tuple[int, Tensor]] = []  # (step, weighted loss) of micro-batches
        self._broadcasts: list[tuple[Pending, Tensor]] = []  # started, with their buffers

    def begin(self, weight: float) -> None:
        """Starts a run; weight: factor of its loss, for gradient accumulation over several runs."""
        self.weight = weight
        self._recorded, self._broadcasts = [], []
        self.metrics.begin()
        if self._broadcasts_early and self.transport.rank != self.broadcasters[0]:
            self._start_broadcasts()  # this rank only receives

    def record(self, action: RecordLoss) -> None:
        """Notes the loss of a micro-batch, weighted by its samples, and sets the gradient of the loss.

        action.reports: of all copies of the loss, this rank's is the reported one; action.starts_backward:
        the backward starts on this rank.
        """
        fraction = self.weight * self.sizes[action.key.micro_batch] / sum(self.sizes)
        loss = self.store.slots[action.slot]
        if action.reports or self.on_all_ranks:
            self._recorded.append((action.key.step, loss.detach() * fraction))
        if action.starts_backward:
            gradient = torch.full_like(loss, fraction)
            self.store.grads[action.slot] = (
                gradient if self.scaler is None else gradient * self.scaler.scale.to(loss.dtype)
            )
        if (
            action.reports
            and self._broadcasts_early
            and len(self._recorded) == len(self.sizes) * self.steps
        ):
            self._start_broadcasts()
        self.store.drop(action.dead_slots)

    def wait(self) -> Tensor:
        """Waits for the losses and returns them: one for each step of the run, the same on every rank."""
        if not self._broadcasts:
            self._start_broadcasts()
        for pending, _ in self._broadcasts:
            pending.wait()
        parts = [part for _, part in self._broadcasts]
        return torch.stack(parts).sum(0) if parts else self._local_losses()

    @property
    def _broadcasts_early(self) -> bool:
        """Whether the broadcast starts during the step: only if a single rank has the whole loss.

        `transport.early_receives`: a receive may be posted long before its send.
        """
        return (
            self.transport.early_receives and not self.on_all_ranks and len(self.broadcasters) == 1
        )

    def _local_losses(self) -> Tensor:
        """Returns this rank's part of the loss of each step."""
        total = torch.zeros(self.steps, dtype=self.dtype, device=self.store.place)
        for step, loss in self._recorded:
            total[step] += loss
        return total

    def _start_broadcasts(self) -> None:
        """Starts one broadcast from each rank that has a part of the loss; `wait` adds the parts."""
        for source in () if self.on_all_ranks else self.broadcasters:
            losses = self._local_losses()
            self._broadcasts.append((self.transport.broadcast(source, losses), losses))
