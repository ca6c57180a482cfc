"""Hooks on parameters and on the model: they tell a wrapped optimizer's mechanism what has happened."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn

from raddle.sync.channels import Channels
from raddle.sync.first_step import FirstStep
from raddle.sync.mechanism import GradientHandler, Mechanism


class GradientHooks:
    """Gradients that arrive go to `phase`, which is another one from the first step on."""

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
        """The mechanism, chosen now if it has not been; `reason`: why there has to be a barrier."""
        if isinstance(self.handler, FirstStep):
            self.handler = self.handler.choose_mechanism(reason)
        assert isinstance(self.handler, Mechanism)
        return self.handler

    def average(self, reason: str) -> None:
        """Puts averages into p.grad, or raises: somebody wants to look at them there."""
        with self._channels.reporting_failures():
            self.choose_mechanism(reason).average(reason)

    def synchronize(self, *_: Any) -> None:
        """Parameters are up to date: somebody reads or writes them."""
        with self._channels.reporting_failures():
            self.handler.synchronize()

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self.handler.close()

    def _on_gradient(self, index: int, p: Tensor) -> None:
        with self._channels.reporting_failures():
            self.handler.on_gradient(index)
