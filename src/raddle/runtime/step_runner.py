"""Runs the steps of a trainer: on batches of the planned size, of other sizes, and overlapping steps.

An executor carries out the actions of one program (executor.py). Every batch size has its own executor; all
of them share parameters, buffers and optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from raddle.program.lower import lower
from raddle.runtime.batches import BatchCutter
from raddle.runtime.executor import Executor
from raddle.runtime.resized_step import ResizedStep, SharedState
from raddle.runtime.setup import Setup
from raddle.runtime.weight_stash import WeightUse


class StepRunner:
    """Chooses the executor for each step of one rank: the planned one, or one for another batch size.

    accumulate: number of steps whose gradients are added before an update.
    """

    def __init__(self, setup: Setup, executor: Executor, *, accumulate: int = 1) -> None:
        self.setup, self.executor, self.accumulate = setup, executor, accumulate
        self.batch_cutter = BatchCutter(setup.program, executor.rank_actions)
        # The weight versions that overlapping steps used; set it to a list to have them logged.
        self.weight_uses: list[WeightUse] | None = None
        self._resized_steps: dict[int, ResizedStep] = {}  # samples -> step for this batch size
        self._running_executor = executor  # the one that runs the current step

    def run_step(self, batch: Any, step: int) -> Tensor:
        """Runs one step on a batch; returns the loss. step: its number."""
        tensors = self.batch_cutter.tensors(batch)
        samples = self.batch_cutter.unplanned_size(tensors)
        if samples is not None and self.accumulate == 1:
            resized = self._resized_step(samples)
            self._running_executor = resized.executor
            return self._report_failure(partial(resized.run, tensors, step), step)
        self._running_executor = self.executor
        run = partial(
            self.executor.run,
            self.batch_cutter.reader([tensors], self.setup.rank, self.setup.place),
            step,
            update=(step + 1) % self.accumulate == 0,
            weight=1 / self.accumulate,
        )
        loss = self._report_failure(run, step)
        # The run has multiplied the loss by `weight`; the reported loss is that of the whole batch.
        return loss * self.accumulate if self.accumulate > 1 else loss

    def run_overlapping(self, batches: Sequence[Any], step: int) -> list[Tensor]:
        """Runs overlapping steps, one for each batch, until all have ended; returns their losses.

        There may not be more batches than the program has steps. step: the number of the first one.
        """
        steps = [self.batch_cutter.tensors(batch) for batch in batches]
        read_input = self.batch_cutter.reader(steps, self.setup.rank, self.setup.place)
        executor, shared_state = self.executor, None
        if len(batches) < self.setup.plan.steps:  # the last batches: a shorter program
            program = lower(self.setup.graph, replace(self.setup.plan, steps=len(batches)))
            executor = self.setup.make_executor(program, seed=self.executor.input_feeder.seed)
            shared_state = SharedState(self.executor, executor)
            shared_state.lend_tensors()
        self._running_executor = executor
        losses = self._report_failure(partial(executor.run_steps, read_input, step), step)
        if shared_state is not None:
            shared_state.return_buffers()
        if self.weight_uses is not None:
            # A run counts steps and versions from 0. Before it, each parameter has had one update per step.
            self.weight_uses += [
                used._replace(step=used.step + step, version=used.version + step)
                for used in executor.parameter_updater.weight_uses()
            ]
        return list(losses)

    def current_loss(self) -> Tensor:
        """Returns the current step's loss before the update, equal on all ranks; all ranks call it."""
        return self._running_executor.losses.wait()

    def metrics(self) -> list[dict[str, Tensor]]:
        """Returns the metrics of each step of the last run."""
        return self._running_executor.losses.metrics.by_step

    def executor_for(self, samples: int) -> Executor:
        """Returns the executor that runs the steps of batches with so many samples."""
        planned = self.setup.plan.batch or self.setup.graph.batch
        return self.executor if samples == planned else self._resized_step(samples).executor

    def set_seed(self, seed: int) -> None:
        """Sets the seed of random numbers in all executors."""
        for executor in (
            self.executor,
            *(resized.executor for resized in self._resized_steps.values()),
        ):
            executor.input_feeder.seed = seed

    def _resized_step(self, samples: int) -> ResizedStep:
        if samples not in self._resized_steps:
            self._resized_steps[samples] = ResizedStep(self.setup, self.executor, samples)
        return self._resized_steps[samples]

    def _report_failure(self, run: Callable[[], Tensor], step: int) -> Tensor:
        """Returns the result of `run`; if it raises, reports the error to all ranks."""
        try:
            return run()
        except BaseException as error:
            self.setup.transport.fail(f"{type(error).__name__} in step {step}: {error}")
            raise
