"""The loss of a step: noted where it is computed, and told to the ranks that lack it."""

from __future__ import annotations

import torch
from torch import Tensor

from raddle.plans.pipelining import is_asynchronous
from raddle.program.program import Program
from raddle.runtime.actions import RecordLoss
from raddle.runtime.execution.store import Store
from raddle.transport.base import Pending, Transport


class Losses:
    """The losses of the steps of a run, on one rank."""

    def __init__(self, program: Program, transport: Transport, store: Store) -> None:
        self.transport, self.store = transport, store
        self.sizes = program.micro_batch_sizes
        self.steps = program.plan.steps if is_asynchronous(program.plan) else 1  # of a run
        self.dtype = program.graph.values[program.graph.loss or ""].dtype
        loss_devices = {v.loss_devices for v in program.variants}
        self.on_all_ranks = all(
            len(devices) == transport.size for devices in loss_devices
        )  # on every rank
        self.broadcasters = sorted(
            {devices[0] for devices in loss_devices}
        )  # to those that lack it
        self.weight = 1.0
        self._recorded: list[tuple[int, Tensor]] = []  # of micro-batches, with their step
        self._broadcasts: list[tuple[Pending, Tensor]] = []

    def begin(self, weight: float) -> None:
        """A run begins, whose loss counts for so much."""
        self.weight = weight
        self._recorded, self._broadcasts = [], []
        if self._broadcasts_early and self.transport.rank != self.broadcasters[0]:
            self._start_broadcasts()

    def record(self, action: RecordLoss) -> None:
        """A micro-batch's loss is there: its gradient starts here."""
        fraction = self.weight * self.sizes[action.key.micro_batch] / sum(self.sizes)
        loss = self.store.slots[action.slot]
        if action.reports or self.on_all_ranks:
            self._recorded.append((action.key.step, loss.detach() * fraction))
        if action.starts_backward:
            self.store.grads[action.slot] = torch.full_like(loss, fraction)
        if (
            action.reports
            and self._broadcasts_early
            and len(self._recorded) == len(self.sizes) * self.steps
        ):
            self._start_broadcasts()
        self.store.drop(action.dead_slots)

    def wait(self) -> Tensor:
        """By step: told by the ranks that have it, as soon as they have it."""
        if not self._broadcasts:
            self._start_broadcasts()
        for pending, _ in self._broadcasts:
            pending.wait()
        parts = [part for _, part in self._broadcasts]
        return torch.stack(parts).sum(0) if parts else self._local_losses()

    @property
    def _broadcasts_early(self) -> bool:
        """One rank has all of the loss: it tells it while others still work."""
        return (
            self.transport.early_receives and not self.on_all_ranks and len(self.broadcasters) == 1
        )

    def _local_losses(self) -> Tensor:
        total = torch.zeros(self.steps, dtype=self.dtype, device=self.store.place)
        for step, loss in self._recorded:
            total[step] += loss
        return total

    def _start_broadcasts(self) -> None:
        """Replicas may end on several ranks: each tells what it has."""
        for source in () if self.on_all_ranks else self.broadcasters:
            losses = self._local_losses()
            self._broadcasts.append((self.transport.broadcast(source, losses), losses))
