"""Updates the parameters of a rank after a step: checks the loss, clips gradients, calls the optimizer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from raddle.runtime.clipping import clip
from raddle.runtime.executor import Executor
from raddle.runtime.setup import Setup
from raddle.runtime.state import owners_of


class OptimizerStep:
    """Checks the loss, clips gradients and updates; called when all gradients of a step are complete.

    step: returns the number of the step; loss: returns the loss of the step.
    """

    def __init__(
        self, setup: Setup, executor: Executor, optimizer: torch.optim.Optimizer,
        step: Callable[[], int], loss: Callable[[], Tensor], *, clip_norm: float | None = None,
        check_finite: bool = False,
    ) -> None:  # fmt: skip
        self.setup, self.executor, self.optimizer = setup, executor, optimizer
        self.step, self.loss = step, loss
        self.clip_norm, self.check_finite = clip_norm, check_finite
        self.grad_norm: Tensor | None = None  # before clipping, at the last update
        # (parameter, box) -> the one rank that counts it in the global norm
        self._owners = owners_of(setup.program)

    @property
    def barrier_reason(self) -> str:
        """The reason why an update needs all gradients of the step first; "" if it does not."""
        if self.clip_norm is not None:
            return "gradients are clipped by their global norm."
        if self.setup.scaler is not None:
            return "an update is skipped if a gradient is not finite, as the precision is fp16."
        return "the loss is to be finite before anything is updated." if self.check_finite else ""

    def __call__(self) -> None:
        """Updates the parameters of this rank."""
        if self.check_finite:
            loss = self.loss()
            if not torch.isfinite(loss).all():
                raise FloatingPointError(
                    f"the loss is {loss.item()} in step {self.step()}: nothing was updated."
                )
        scaler, found_inf = self.setup.scaler, None
        # With slices or shards, each rank has the gradients of those that it updates, and no others.
        in_pieces = bool(self.setup.program.updated_pieces)
        parameters = self.executor.updated_parameters() if in_pieces else self.executor.parameters()
        if scaler is not None:
            found_inf = scaler.unscale(p for _, p in parameters)
        if self.clip_norm is not None:
            # s: the source, which names the parameter and its box; p: the tensor on this rank
            counted = [(p, self.setup.rank == self._owners[s.name, s.box]) for s, p in parameters]
            self.grad_norm = clip(self.setup.transport, self.setup.place, counted, self.clip_norm)
        if scaler is None or found_inf is None:
            self.optimizer.step()
        else:
            scaler.step(self.optimizer, found_inf)
