"""Saves and loads the state of a trainer under the module's names, which do not depend on the plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from raddle.errors import InputError
from raddle.runtime.executor import Executor
from raddle.runtime.state import TrainingState
from raddle.runtime.step_runner import StepRunner


class SavedState:
    """The methods of a trainer that save and load; all ranks call them together."""

    steps: int  # number of steps so far
    executor: Executor
    state: TrainingState
    step_runner: StepRunner

    def state_dict(self) -> dict[str, Tensor]:
        """Returns full parameters and buffers under the module's own names, on every rank's CPU."""
        return self.state.module_state()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Loads parameters and buffers from a state of the module, from any plan or from plain PyTorch."""
        self.state.load_module_state(state)

    def optimizer_state_dict(self) -> dict[str, Any]:
        """Returns all that a run needs, with `state_dict`, to continue as if it had not been stopped.

        "state": the full optimizer state by parameter name; "param_groups": the options of the optimizer,
        with current learning rates and with parameter names; "steps" and "seed": dropout masks depend on
        them.
        """
        self._refuse_unfinished(self.steps)
        saved = self.state.optimizer_state()
        return {**saved, "steps": self.steps, "seed": self.executor.input_feeder.seed}

    def load_optimizer_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads the result of `optimizer_state_dict`, to continue a run; the plan may be another one."""
        needed = ("state", "param_groups", "steps", "seed")
        if missing := next((key for key in needed if key not in state), None):
            raise InputError(
                f"the optimizer's state has no '{missing}', so a run cannot go on from it: save it with "
                "this version's optimizer_state_dict()."
            )
        self._refuse_unfinished(state["steps"])
        self.state.load_optimizer_state(state)
        self.steps = state["steps"]
        self.step_runner.set_seed(state["seed"])

    def _refuse_unfinished(self, steps: int) -> None:
        """Raises InputError if gradients were accumulated since the last update: they are not saved."""
        if steps % self.step_runner.accumulate:
            raise InputError(
                f"step {steps} is in the middle of {self.step_runner.accumulate} that are accumulated, and "
                "gradients are not saved: save after an update."
            )
