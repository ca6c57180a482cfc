"""Optimizers that a plan may name: how they are made, and what they cost. A new one is an entry here.

A parameter has a gradient beside it, and what the optimizer keeps of both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch


class OptimizerInfo(NamedTuple):
    make: Callable[..., torch.optim.Optimizer]  # of parameters and `lr`
    default_lr: float  # what a step moves, if nobody says
    state_elements: int  # what it keeps for each element, in elements
    passes: int  # how often it reads and writes an element: parameter, gradient, and what it keeps

    @property
    def memory_elements(self) -> int:
        """Elements that are there for each one of a parameter: itself, its gradient, and the state."""
        return 2 + self.state_elements


def _momentum(parameters: Iterable[Any], lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


OPTIMIZERS = {
    "sgd": OptimizerInfo(torch.optim.SGD, default_lr=0.01, state_elements=0, passes=3),
    "momentum": OptimizerInfo(_momentum, default_lr=0.01, state_elements=1, passes=5),
    "adam": OptimizerInfo(torch.optim.Adam, default_lr=0.001, state_elements=2, passes=7),
}


def optimizer_info(name: str) -> OptimizerInfo:
    """What an optimizer costs; one that nobody has entered counts as Adam, which keeps most."""
    return OPTIMIZERS.get(name, OPTIMIZERS["adam"])
