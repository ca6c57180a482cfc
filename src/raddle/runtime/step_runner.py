"""Steps of a trainer: on batches of the planned size, of another one, and several that overlap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from raddle.program.lower import lower
from raddle.runtime.batches import BatchCutter
from raddle.runtime.executor import Executor
from raddle.runtime.resized_step import ResizedStep, SharedState
from raddle.runtime.setup import Setup
from raddle.runtime.weight_stash import WeightUse


class StepRunner:
    """Runs one rank's executor, or, for batches of other sizes, others that it lends its parameters to.

    `accumulate`: the gradients of so many steps add up before an update.
    """

    def __init__(self, setup: Setup, executor: Executor, *, accumulate: int = 1) -> None:
        self.setup, self.executor, self.accumulate = setup, executor, accumulate
        self.batch_cutter = BatchCutter(setup.program, executor.rank_actions)
        self.weight_uses: list[WeightUse] | None = (
            None  # which weights steps used that overlapped, if asked for
        )
        self._resized_steps: dict[
            int, ResizedStep
        ] = {}  # by samples, for batches of other sizes than planned
        self._running_executor = executor  # the one that runs the present step

    def run_step(self, batch: Sequence[Tensor], step: int) -> Tensor:
        """The loss of a step."""
        samples = self.batch_cutter.unplanned_size(batch)
        if samples is not None and self.accumulate == 1:
            resized = self._resized_step(samples)
            self._running_executor = resized.executor
            return self._report_failure(partial(resized.run, batch, step), step)
        self._running_executor = self.executor
        run = partial(
            self.executor.run,
            self.batch_cutter.reader([batch], self.setup.rank, self.setup.place),
            step,
            update=(step + 1) % self.accumulate == 0,
            weight=1 / self.accumulate,
        )
        loss = self._report_failure(run, step)
        return loss * self.accumulate if self.accumulate > 1 else loss

    def run_overlapping(self, batches: Sequence[Sequence[Tensor]], step: int) -> list[Tensor]:
        """The losses of steps that overlap, no more of them than the program has; all end."""
        read_input = self.batch_cutter.reader(batches, self.setup.rank, self.setup.place)
        executor, shared_state = self.executor, None
        if len(batches) < self.setup.plan.steps:  # the last ones
            program = lower(self.setup.graph, replace(self.setup.plan, steps=len(batches)))
            executor = self.setup.make_executor(program, seed=self.executor.input_feeder.seed)
            shared_state = SharedState(self.executor, executor)
            shared_state.lend_tensors()
        self._running_executor = executor
        losses = self._report_failure(partial(executor.run_steps, read_input, step), step)
        if shared_state is not None:
            shared_state.return_buffers()
        if self.weight_uses is not None:
            # Nothing is under way between two runs: every parameter has had an update a step.
            self.weight_uses += [
                used._replace(step=used.step + step, version=used.version + step)
                for used in executor.parameter_updater.weight_uses()
            ]
        return list(losses)

    def current_loss(self) -> Tensor:
        """Of the present step, on every rank, before it ends: all ranks ask for it."""
        return self._running_executor.losses.wait()

    def set_seed(self, seed: int) -> None:
        """What random numbers are drawn from, in steps on batches of any size."""
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
        """All ranks hear why one cannot go on."""
        try:
            return run()
        except BaseException as error:
            self.setup.transport.fail(f"{type(error).__name__} in step {step}: {error}")
            raise
