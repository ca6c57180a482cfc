"""Steps of a trainer: on batches of the planned size, of another one, and several that overlap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from raddle.program.lower import lower
from raddle.runtime.batches import BatchCutter
from raddle.runtime.executor import Executor
from raddle.runtime.resized_step import Loan, Resized
from raddle.runtime.setup import Setup
from raddle.runtime.weight_stash import Used


class Stepping:
    """Runs one rank's executor, or, for batches of other sizes, others that it lends its parameters to.

    `accumulate`: the gradients of so many steps add up before an update.
    """

    def __init__(self, setup: Setup, executor: Executor, *, accumulate: int = 1) -> None:
        self.setup, self.executor, self.accumulate = setup, executor, accumulate
        self.batches = BatchCutter(setup.program, executor.rank_actions)
        self.log: list[Used] | None = None  # which weights steps used that overlapped, if asked for
        self._sizes: dict[int, Resized] = {}  # by samples, for batches of other sizes than planned
        self._running = executor  # the one that runs the present step

    def one(self, batch: Sequence[Tensor], step: int) -> Tensor:
        """The loss of a step."""
        samples = self.batches.unplanned_size(batch)
        if samples is not None and self.accumulate == 1:
            resized = self._resized(samples)
            self._running = resized.executor
            return self._guarded(partial(resized.step, batch, step), step)
        self._running = self.executor
        run = partial(
            self.executor.run,
            self.batches.reader([batch], self.setup.rank, self.setup.place),
            step,
            update=(step + 1) % self.accumulate == 0,
            weight=1 / self.accumulate,
        )
        loss = self._guarded(run, step)
        return loss * self.accumulate if self.accumulate > 1 else loss

    def overlapped(self, chunk: Sequence[Sequence[Tensor]], step: int) -> list[Tensor]:
        """The losses of steps that overlap, no more of them than the program has; all end."""
        feed = self.batches.reader(chunk, self.setup.rank, self.setup.place)
        executor, loan = self.executor, None
        if len(chunk) < self.setup.plan.steps:  # the last ones
            program = lower(self.setup.graph, replace(self.setup.plan, steps=len(chunk)))
            executor = self.setup.executor(program, seed=self.executor.input_feeder.seed)
            loan = Loan(self.executor, executor)
            loan.lend()
        self._running = executor
        losses = self._guarded(partial(executor.run_steps, feed, step), step)
        if loan is not None:
            loan.give_back()
        if self.log is not None:
            # Nothing is under way between two runs: every parameter has had an update a step.
            self.log += [
                used._replace(step=used.step + step, version=used.version + step)
                for used in executor.parameter_updater.weight_uses()
            ]
        return list(losses)

    def loss(self) -> Tensor:
        """Of the present step, on every rank, before it ends: all ranks ask for it."""
        return self._running.losses.wait()

    def seed(self, seed: int) -> None:
        """What random numbers are drawn from, in steps on batches of any size."""
        for executor in (self.executor, *(own.executor for own in self._sizes.values())):
            executor.input_feeder.seed = seed

    def _resized(self, samples: int) -> Resized:
        if samples not in self._sizes:
            self._sizes[samples] = Resized(self.setup, self.executor, samples)
        return self._sizes[samples]

    def _guarded(self, run: Callable[[], Tensor], step: int) -> Tensor:
        """All ranks hear why one cannot go on."""
        try:
            return run()
        except BaseException as error:
            self.setup.transport.fail(f"{type(error).__name__} in step {step}: {error}")
            raise
