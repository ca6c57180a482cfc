"""A step on a batch of another size than planned: an epoch's last batch, say.

The module is captured for it and takes the plan's tiles, in proportion; parameters, optimizer and buffers
are the trainer's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from raddle.errors import InputError
from raddle.plans.adapt import resize
from raddle.program.checks.check import check
from raddle.program.lower import lower
from raddle.runtime.batches import BatchCutter
from raddle.runtime.builders.slot_table import SlotSource
from raddle.runtime.executor import Executor
from raddle.runtime.setup import Setup


class Resized:
    """A setup's plan for another number of samples; `training` is the executor of the planned number."""

    def __init__(self, setup: Setup, training: Executor, samples: int) -> None:
        self.setup, plan = setup, setup.plan
        count = min(plan.microbatches, samples)
        if count != plan.microbatches and plan.schedule and "\n" in plan.schedule:
            raise InputError(
                f"the schedule is written for {plan.microbatches} micro-batches, a batch of {samples} "
                f"gives {count}: drop it."
            )
        size = -(-samples // count)
        graph, chosen = resize(plan, setup.graph, setup.graph.for_batch(size))
        chosen = replace(
            chosen, microbatches=count, batch=samples, fingerprint=graph.fingerprint(), steps=1
        )
        program = lower(graph, replace(chosen, order=()))
        if program.regions != setup.program.regions:
            raise InputError(
                f"with {samples} samples some devices have none, and their parameters would not be "
                "updated: drop this batch, or plan for its size."
            )
        if chosen.order:  # of the same slices, as shares are the same
            program = lower(graph, chosen)
        check(program)
        self.executor = setup.executor(program, seed=training.input_feeder.seed)
        self.loan = Loan(training, self.executor)
        self.batches = BatchCutter(program, self.executor.rank_actions)

    def step(self, batch: Sequence[Tensor], step: int) -> Tensor:
        feed = self.batches.reader([batch], self.setup.rank, self.setup.place)
        self.loan.lend()
        loss = self.executor.run(feed, step)
        self.loan.give_back()
        return loss


class Loan:
    """What lasts, lent by one executor to another of the same rank, and how it is updated."""

    def __init__(self, own: Executor, other: Executor) -> None:
        self.own, self.other = own, other
        slots = {(s.name, s.box): s.slot for s in own.rank_actions.sources if _lasts(s)}
        self.pairs = [
            (s, slots[s.name, s.box]) for s in other.rank_actions.sources if _lasts(s)
        ]  # fmt: skip
        other.optimizer_step = lambda: own.optimizer_step()
        # The slots of parameters are the same, so what keeps them equal is.
        other.load(lambda s: own.slots[slots[s.name, s.box]], parameter_sync=own.parameter_sync)

    def lend(self) -> None:
        """Parameters are the same objects, so the optimizer's state is theirs; buffers as they are."""
        for source, slot in self.pairs:
            self.other.slots[source.slot] = self.own.slots[slot]

    def give_back(self) -> None:
        for source, slot in self.pairs:
            if source.role == "buffer":
                self.own.slots[slot] = self.other.slots[source.slot]


def _lasts(source: SlotSource) -> bool:
    return source.role in ("parameter", "buffer", "frozen")
