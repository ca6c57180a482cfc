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
        places = {v.loss_devices for v in program.variants}
        self.known = all(len(devices) == transport.size for devices in places)  # on every rank
        self.tellers = sorted({devices[0] for devices in places})  # to those that lack it
        self.weight = 1.0
        self._noted: list[tuple[int, Tensor]] = []  # of micro-batches, with their step
        self._telling: list[tuple[Pending, Tensor]] = []

    def begin(self, weight: float) -> None:
        """A run begins, whose loss counts for so much."""
        self.weight = weight
        self._noted, self._telling = [], []
        if self._early and self.transport.rank != self.tellers[0]:
            self._tell()

    def note(self, action: RecordLoss) -> None:
        """A micro-batch's loss is there: its gradient starts here."""
        share = self.weight * self.sizes[action.key.micro_batch] / sum(self.sizes)
        loss = self.store.slots[action.slot]
        if action.reports or self.known:
            self._noted.append((action.key.step, loss.detach() * share))
        if action.starts_backward:
            self.store.grads[action.slot] = torch.full_like(loss, share)
        if action.reports and self._early and len(self._noted) == len(self.sizes) * self.steps:
            self._tell()
        self.store.drop(action.dead_slots)

    def all(self) -> Tensor:
        """By step: told by the ranks that have it, as soon as they have it."""
        if not self._telling:
            self._tell()
        for pending, _ in self._telling:
            pending.wait()
        parts = [part for _, part in self._telling]
        return torch.stack(parts).sum(0) if parts else self._own()

    @property
    def _early(self) -> bool:
        """One rank has all of the loss: it tells it while others still work."""
        return self.transport.early and not self.known and len(self.tellers) == 1

    def _own(self) -> Tensor:
        total = torch.zeros(self.steps, dtype=self.dtype, device=self.store.place)
        for step, loss in self._noted:
            total[step] += loss
        return total

    def _tell(self) -> None:
        """Replicas may end on several ranks: each tells what it has."""
        for teller in () if self.known else self.tellers:
            part = self._own()
            self._telling.append((self.transport.broadcast(teller, part), part))
