"""What a wrapped optimizer asks of the way to synchronise that it uses: one class for each way.

Undecided   the first step: gradients stay in p.grad until it is known what is possible
Bucketed    gradients are all-reduced into p.grad, and every rank updates all parameters
Sliced      gradients leave p.grad slice by slice, and are updated at homes or by all ranks
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from typing import Any

from raddle.sync.item import UpdateEvent
from raddle.sync.trained_parameters import TrainedParameters


class GradientHandler(ABC):
    """What becomes of gradients and of the optimizer's state; by itself, both stay as they are."""

    barrier_reason = ""  # why all gradients are summed before any update

    def __init__(self, trained: TrainedParameters) -> None:
        self.trained = trained

    @abstractmethod
    def on_gradient(self, index: int) -> None:
        """A backward has completed a gradient, in p.grad; called on autograd's thread."""

    @abstractmethod
    def on_zero_grad(self) -> None:
        """Gradients in p.grad have been dropped."""

    def synchronize(self) -> None:  # noqa: B027, most have nothing to do
        """Parameters are up to date, and nothing of this rank is under way."""

    def synchronize_ranks(self) -> None:  # noqa: B027, most have nothing to do
        """Nothing is under way anywhere. All ranks call it."""

    def state_dict(self) -> dict[str, Any]:
        """As the plain optimizer has it. All ranks call it."""
        return self.trained.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes what a plain optimizer has. All ranks call it."""
        self.trained.optimizer.load_state_dict(state_dict)

    def report(self) -> dict[str, Any]:
        """What has been sent and waited for."""
        return {}

    @property
    def log(self) -> list[UpdateEvent]:
        """Updates at this rank's homes, in their order."""
        return []

    def close(self) -> None:  # noqa: B027, most have nothing to do
        """Ends hooks and threads."""


class Mechanism(GradientHandler):
    """A way that has been chosen."""

    @abstractmethod
    def step(self) -> None:
        """Updates, by the averages over all ranks."""

    @abstractmethod
    def average(self, reason: str) -> None:
        """Puts the averages into p.grad, or raises where `reason` asks for them too late."""


class GradientCounter:
    """How many gradients of each parameter a step has seen: `passes` at most."""

    def __init__(self, rank: int, names: list[str], backward_passes: int) -> None:
        self.counts: Counter[int] = Counter()
        self._rank, self._names, self._backward_passes = rank, names, backward_passes

    def add(self, index: int) -> bool:
        """Whether it was the last one of this parameter; raises for one too many."""
        self.counts[index] += 1
        if self.counts[index] > self._backward_passes:
            raise RuntimeError(
                f"rank {self._rank} got another gradient of '{self._names[index]}' before "
                f"step(), and backward_passes is {self._backward_passes}: set it to the number of backward calls "
                "in a step, and call step() after each; with checkpoints, use_reentrant=False"
            )
        return self.counts[index] == self._backward_passes
