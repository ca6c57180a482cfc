"""The two phases of a split backward as functions of their own, so that they can be compiled (zero bubble).

Phase "B" computes gradients of activations, phase "W" later those of weights. Without a compiler both run
through one autograd graph. A compiled backward cannot run twice, so there the forward runs without
autograd, and each phase is a function of the forward's arguments and of the gradients of its results:

    forward   y = f(x, w)           saved: x, w
    B         dx = (df/dx)(x, w)(dy)    saved: dy
    W         dw = (df/dw)(x, w)(dy)

A phase describes f again, but the compiler removes what the gradients do not need: all of it for a linear
layer or a convolution. Segments with a split backward have a single operator with parameters
(program/segments.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from raddle.runtime.actions import Call

Function = Callable[..., Any]


@dataclass(frozen=True)
class SplitCall:
    """What the phases of one call are compiled from; equal objects have equal phases.

    function: runs the call; its first arguments are activations with a gradient, then weights. results: the
    indices of its results that have a gradient; dtypes: of these. autocast: the dtype of mixed precision.
    """

    function: Function
    activations: int
    weights: int
    results: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]
    autocast: torch.dtype | None

    @staticmethod
    def of(call: Call, function: Function, autocast: torch.dtype | None) -> SplitCall:
        """Returns the split call of a call; function: its generated function, not compiled."""
        results = tuple(call.active_results)
        return SplitCall(
            function, len(call.differentiable), len(call.weights), results,
            tuple(call.dtypes[r] for r in results), autocast,
        )  # fmt: skip

    def phase(self, phase: str) -> Function:
        """Returns the function of phase "B" or "W".

        It takes a list with the gradients of the results, and the arguments of the call. It returns a
        tuple of gradients: of the activations ("B") or of the weights ("W").
        """
        first = 0 if phase == "B" else self.activations
        end = self.activations if phase == "B" else self.activations + self.weights

        def run(gradients: list[Tensor], *arguments: Tensor) -> tuple[Tensor, ...]:
            def forward(*varied: Tensor) -> tuple[Tensor, ...]:
                all_arguments = (*arguments[:first], *varied, *arguments[end:])
                with torch.autocast(
                    varied[0].device.type, dtype=self.autocast, enabled=self.autocast is not None
                ):
                    results = self.function(*all_arguments)
                return tuple(
                    results[r].to(dtype) for r, dtype in zip(self.results, self.dtypes, strict=True)
                )

            backward = torch.func.vjp(forward, *arguments[first:end])[1]
            given: tuple[Tensor, ...] = backward(tuple(gradients))
            return given

        # torch.compile counts compilations by code object, and gives up after a few of one. So each phase
        # gets a code object of its own.
        return FunctionType(
            run.__code__.replace(), run.__globals__, f"phase_{phase}", None, run.__closure__
        )
