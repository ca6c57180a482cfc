"""Carries out RecordMetric: collects the metrics of micro-batches and gives every rank those of the step.

A metric of a step is the mean over its micro-batches, weighted by their samples, as the loss is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from raddle.plans.pipelining import is_asynchronous
from raddle.program.program import Program
from raddle.runtime.actions import RecordMetric
from raddle.runtime.execution.store import Store
from raddle.transport.base import Transport


class Metrics:
    """The metrics of one run (one step, or all overlapping steps) on one rank."""

    def __init__(self, program: Program, transport: Transport, store: Store) -> None:
        self.transport, self.store = transport, store
        self.names = list(program.graph.metrics)
        self.sizes = program.micro_batch_sizes  # samples of each micro-batch
        self.steps = program.plan.steps if is_asynchronous(program.plan) else 1  # of one run
        # The ranks that report a metric of some micro-batch; every rank receives what they report.
        values = program.graph.metrics.values()
        self.reporters = sorted(
            {v.devices_of(name)[0] for v in program.variants for name in values}
        )
        self.by_step: list[dict[str, Tensor]] = []  # of each step of the last run, by name
        self._recorded: list[tuple[int, str, Tensor]] = []  # (step, name, weighted metric)

    def begin(self) -> None:
        """Starts a run."""
        self._recorded = []

    def record(self, action: RecordMetric) -> None:
        """Notes the metric of a micro-batch, weighted by its samples."""
        if action.reports:
            fraction = self.sizes[action.key.micro_batch] / sum(self.sizes)
            metric = self.store.slots[action.slot].detach().to(torch.float64) * fraction
            self._recorded.append((action.key.step, action.name, metric))
        self.store.drop(action.dead_slots)

    def wait(self) -> None:
        """Sets `by_step` to the metrics of each step of the run, the same on every rank."""
        if not self.names:
            self.by_step = [{} for _ in range(self.steps)]
            return
        reported = torch.zeros(
            self.steps, len(self.names), dtype=torch.float64, device=self.store.place
        )
        for step, name, metric in self._recorded:
            reported[step, self.names.index(name)] += metric
        total = torch.zeros_like(reported)
        for reporter in self.reporters:
            part = reported.clone() if reporter == self.transport.rank else torch.zeros_like(total)
            if self.transport.size > 1:
                self.transport.broadcast(reporter, part).wait()
            total += part
        self.by_step = [dict(zip(self.names, row, strict=True)) for row in total]
