"""Defines how a wrapped optimizer (sync.Optimizer) calls its way of synchronising gradients.

FirstStep            the first step: gradients stay in p.grad until all ranks have chosen a mechanism
BucketedMechanism    gradients are all-reduced into p.grad, and every rank updates all parameters
SlicedMechanism      gradients leave p.grad slice by slice; servers or all ranks update the slices

A wrapped optimizer has one GradientHandler at a time: FirstStep, then one of the two mechanisms.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from typing import Any

from raddle.sync.item import UpdateEvent
from raddle.sync.trained_parameters import TrainedParameters


class GradientHandler(ABC):
    """Decides what happens to gradients and to the optimizer's state. By default it changes neither.

    trained: the parameters of the wrapped optimizer, by index (trained_parameters.py).
    """

    # Why all gradients must be summed before any update; empty: they need not be.
    barrier_reason = ""

    def __init__(self, trained: TrainedParameters) -> None:
        self.trained = trained

    @abstractmethod
    def on_gradient(self, index: int) -> None:
        """Called on autograd's thread when the gradient in p.grad of parameter `index` is complete."""

    @abstractmethod
    def on_zero_grad(self) -> None:
        """Called after the gradients in p.grad were set to zero or to None."""

    def synchronize(self) -> None:  # noqa: B027, most have nothing to do
        """Waits until this rank's parameters are up to date and all its messages are sent."""

    def synchronize_ranks(self) -> None:  # noqa: B027, most have nothing to do
        """Waits until all messages of all ranks have arrived. All ranks call it."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the state in the format of the plain optimizer. All ranks call it."""
        return self.trained.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state in the format of the plain optimizer. All ranks call it."""
        self.trained.optimizer.load_state_dict(state_dict)

    def report(self) -> dict[str, Any]:
        """Returns counters: bytes and messages sent, seconds waited."""
        return {}

    @property
    def log(self) -> list[UpdateEvent]:
        """The updates that this rank has made as a server, in their order."""
        return []

    def close(self) -> None:  # noqa: B027, most have nothing to do
        """Removes hooks and ends threads."""


class Mechanism(GradientHandler):
    """A gradient handler that averages gradients and updates parameters; chosen in the first step."""

    @abstractmethod
    def step(self) -> None:
        """Updates the parameters with the gradients averaged over all ranks."""

    @abstractmethod
    def average(self, reason: str) -> None:
        """Puts the gradients averaged over all ranks into p.grad.

        Raises if the gradients have left p.grad already. reason: why the caller needs the averages there;
        it begins the error message.
        """


class GradientCounter:
    """Counts the gradients of each parameter in a step.

    backward_passes: how many gradients a parameter gets in a step: one from each call of backward.
    """

    def __init__(self, rank: int, names: list[str], backward_passes: int) -> None:
        self.counts: Counter[int] = Counter()
        self._rank, self._names, self._backward_passes = rank, names, backward_passes

    def add(self, index: int) -> bool:
        """Counts a gradient. Returns whether it is the step's last one; raises if there are too many."""
        self.counts[index] += 1
        if self.counts[index] > self._backward_passes:
            raise RuntimeError(
                f"rank {self._rank} got another gradient of '{self._names[index]}' before "
                f"step(), and backward_passes is {self._backward_passes}: set it to the number of "
                "backward calls in a step, and call step() after that many; with checkpoints, "
                "use_reentrant=False"
            )
        return self.counts[index] == self._backward_passes
