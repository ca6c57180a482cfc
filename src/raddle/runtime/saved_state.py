"""Saves and loads the state of a trainer under the module's names, which do not depend on the plan."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from raddle.errors import InputError
from raddle.runtime.checkpoint_file import RunState, read_run, write_run
from raddle.runtime.executor import Executor
from raddle.runtime.plain_module import plain_module
from raddle.runtime.plain_optimizer import by_name, by_number
from raddle.runtime.setup import Setup
from raddle.runtime.state import TrainingState
from raddle.runtime.step_runner import StepRunner


class SavedState:
    """The methods of a trainer that save and load; all ranks call them together."""

    setup: Setup
    steps: int  # number of steps so far
    executor: Executor
    state: TrainingState
    step_runner: StepRunner

    # -- a folder --------------------------------------------------------------------------------------

    def save(self, folder: str | pathlib.Path) -> None:
        """Writes all that a run needs to go on to one file in a folder, which rank 0 makes.

        The file, in the format of safetensors, is replaced only when the new one is complete. It has the
        module, the optimizer with its learning rates, the number of steps, and the state of torch's
        generator on every rank's CPU and GPU, from which data loaders draw their order.
        """
        optimizer = self.optimizer_state_dict()
        run = RunState(self.state_dict(), optimizer, self.setup.exchange(_generators(self.setup)))
        self._on_all_ranks(lambda: write_run(folder, run) if self.setup.rank == 0 else None)

    def load(self, folder: str | pathlib.Path) -> None:
        """Loads what `save` wrote, under this plan or another one; every rank reads the folder.

        With the same plan the run goes on bit for bit. With another number of ranks, torch's generator is
        set only if it was the same on all ranks, so that data loaders draw the same order.
        """
        run = self._on_all_ranks(lambda: read_run(folder))
        self.load_state_dict(run.model)
        self.load_optimizer_state_dict(run.optimizer)
        _set_generators(self.setup, run.generators)

    def _on_all_ranks(self, action: Callable[[], Any]) -> Any:
        """Returns the result of an action; if it fails on any rank, raises InputError on all of them."""
        result, sentence = None, ""
        try:
            result = action()
        except InputError as error:
            sentence = str(error)
        sentences = self.setup.exchange(sentence)
        if problem := sentence or next(filter(None, sentences), ""):
            raise InputError(problem)
        return result

    def module(self) -> nn.Module:
        """Returns a plain copy of the module with the trained parameters and buffers, on every rank."""
        return plain_module(self.setup.model, self.state.module_state(persistent_only=False))

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise InputError(
            "a trainer has connections to other ranks and cannot be copied or pickled: use "
            "trainer.save(folder), or trainer.module() for a plain copy of the model."
        )

    # -- dictionaries ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        """Returns full parameters and buffers under the module's own names, on every rank's CPU."""
        return self.state.module_state()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Loads parameters and buffers from a state of the module, from any plan or from plain PyTorch."""
        self.state.load_module_state(state)

    def optimizer_state_dict(self, *, plain: bool = False) -> dict[str, Any]:
        """Returns all that a run needs, with `state_dict`, to continue as if it had not been stopped.

        "state": the full optimizer state by parameter name; "param_groups": the options of the optimizer,
        with current learning rates and with parameter names; "steps" and "seed": dropout masks depend on
        them; "scaler": the factor of the loss, with fp16. plain: by numbers instead of names, as
        `load_state_dict` of a plain optimizer takes it, whose groups have the same parameters in the same
        order.
        """
        self._refuse_unfinished(self.steps)
        saved = self.state.optimizer_state()
        state = {**saved, "steps": self.steps, "seed": self.executor.input_feeder.seed}
        if self.setup.scaler is not None:
            state["scaler"] = self.setup.scaler.state_dict()
        return by_number(state) if plain else state

    def load_optimizer_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads the result of `optimizer_state_dict`, to continue a run; the plan may be another one.

        It may also be the `state_dict()` of a plain torch.optim optimizer; its parameters without names
        count as those of this optimizer, in their order. Steps and seed then stay as they are.
        """
        is_plain = "steps" not in state and "seed" not in state
        given = by_name(state, self.state.group_names()) if is_plain else state
        given = {"steps": self.steps, "seed": self.executor.input_feeder.seed, **given}
        needed = ("state", "param_groups")
        if missing := next((key for key in needed if key not in given), None):
            raise InputError(
                f"the optimizer's state has no '{missing}', so a run cannot go on from it: save it with "
                "this version's optimizer_state_dict()."
            )
        self._refuse_unfinished(given["steps"])
        self.state.load_optimizer_state(given)
        if self.setup.scaler is not None and "scaler" in given:
            self.setup.scaler.load_state_dict(given["scaler"])
        self.steps = given["steps"]
        self.step_runner.set_seed(given["seed"])

    def _refuse_unfinished(self, steps: int) -> None:
        """Raises InputError if gradients were accumulated since the last update: they are not saved."""
        if steps % self.step_runner.accumulate:
            raise InputError(
                f"step {steps} is in the middle of {self.step_runner.accumulate} that are accumulated, and "
                "gradients are not saved: save after an update."
            )


def _generators(setup: Setup) -> Tensor:
    """Returns the states of the generators of this rank, of the CPU and then of its GPU."""
    states = [torch.get_rng_state()]
    if setup.place.type == "cuda":
        states.append(torch.cuda.get_rng_state(setup.place))
    return torch.cat(states)


def _set_generators(setup: Setup, by_rank: Sequence[Tensor]) -> None:
    """Sets the generators of this rank; by_rank: what `_generators` returned on each rank."""
    count = torch.get_rng_state().numel()
    cpu_states = [states[:count] for states in by_rank]
    if len(by_rank) == setup.transport.size:
        states = by_rank[setup.rank]
        torch.set_rng_state(states[:count].clone())
        if setup.place.type == "cuda" and states.numel() > count:
            torch.cuda.set_rng_state(states[count:].clone(), setup.place)
    elif cpu_states and all(torch.equal(state, cpu_states[0]) for state in cpu_states):
        torch.set_rng_state(cpu_states[0].clone())
