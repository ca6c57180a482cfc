"""Hooks on parameters and on the model: they tell a wrapped optimizer's mechanism what has happened."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn

from raddle.sync.channels import Channels
from raddle.sync.first_step import Undecided
from raddle.sync.mechanism import Mechanism, Phase


class Hooked:
    """Gradients that arrive go to `phase`, which is another one from the first step on."""

    def __init__(self, phase: Phase, model: nn.Module, lines: Channels) -> None:
        self.phase, self._lines = phase, lines
        self._handles: list[Any] = [
            p.register_post_accumulate_grad_hook(partial(self._arrived, index))  # type: ignore[no-untyped-call]
            for index, p in enumerate(phase.trained.parameters)
        ]
        for register in (
            model.register_state_dict_pre_hook,
            model.register_load_state_dict_pre_hook,
        ):
            self._handles.append(register(self.synchronize))  # type: ignore[no-untyped-call]

    def decided(self, reason: str = "") -> Mechanism:
        """The mechanism, chosen now if it has not been; `reason`: why there has to be a barrier."""
        if isinstance(self.phase, Undecided):
            self.phase = self.phase.decide(reason)
        assert isinstance(self.phase, Mechanism)
        return self.phase

    def average(self, reason: str) -> None:
        """Puts averages into p.grad, or raises: somebody wants to look at them there."""
        with self._lines.reporting_failures():
            self.decided(reason).average(reason)

    def synchronize(self, *_: Any) -> None:
        """Parameters are up to date: somebody reads or writes them."""
        with self._lines.reporting_failures():
            self.phase.synchronize()

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self.phase.close()

    def _arrived(self, index: int, p: Tensor) -> None:
        with self._lines.reporting_failures():
            self.phase.arrived(index)
