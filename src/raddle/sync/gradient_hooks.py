"""Hooks on parameters and on the model: they call the gradient handler of a wrapped optimizer.

A wrapped optimizer is a sync.Optimizer. Its gradient handler is a FirstStep in the first step, then a
Mechanism (mechanism.py).
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn

from raddle.sync.channels import Channels
from raddle.sync.first_step import FirstStep
from raddle.sync.mechanism import GradientHandler, Mechanism


class GradientHooks:
    """Registers the hooks. The first step replaces `handler`, if it is a FirstStep, by a mechanism.

    channels: the optimizer's communication with other ranks; it reports failures to them.
    """

    def __init__(self, handler: GradientHandler, model: nn.Module, channels: Channels) -> None:
        self.handler, self._channels = handler, channels
        self._handles: list[Any] = [
            p.register_post_accumulate_grad_hook(partial(self._on_gradient, index))  # type: ignore[no-untyped-call]
            for index, p in enumerate(handler.trained.parameters)
        ]
        for register in (
            model.register_state_dict_pre_hook,
            model.register_load_state_dict_pre_hook,
        ):
            self._handles.append(register(self.synchronize))  # type: ignore[no-untyped-call]

    def choose_mechanism(self, reason: str = "") -> Mechanism:
        """Returns the mechanism; the first call chooses it. reason: why a barrier is needed, or empty."""
        if isinstance(self.handler, FirstStep):
            self.handler = self.handler.choose_mechanism(reason)
        assert isinstance(self.handler, Mechanism)
        return self.handler

    def average(self, reason: str) -> None:
        """Puts the gradients averaged over all ranks into p.grad; see Mechanism.average.

        reason: why the caller needs the averages there.
        """
        with self._channels.reporting_failures():
            self.choose_mechanism(reason).average(reason)

    def synchronize(self, *_: Any) -> None:
        """Waits until parameters are up to date, because the caller reads or writes them."""
        with self._channels.reporting_failures():
            self.handler.synchronize()

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self.handler.close()

    def _on_gradient(self, index: int, p: Tensor) -> None:
        with self._channels.reporting_failures():
            self.handler.on_gradient(index)
