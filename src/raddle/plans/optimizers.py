"""The optimizers that a plan may name: how they are made, and what they cost in memory and time.

A new optimizer is an entry in `OPTIMIZERS`. torch.optim keeps states in the dtype of the parameter that it
updates: under autocast that is float32, and with master weights (plans/precision.py) that of the master.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch

from raddle.errors import InputError, quote


class OptimizerInfo(NamedTuple):
    """Says how an optimizer is made, and what it costs for each element of a parameter."""

    make: Callable[..., torch.optim.Optimizer]  # (parameters, lr=...)
    default_lr: float
    state_elements: (
        int  # elements of state, such as momentum, in the dtype of the updated parameter
    )
    passes: int  # reads and writes of elements in an update: parameter, gradient and state

    @property
    def memory_elements(self) -> int:
        """Elements in memory for each element of a parameter: the element, its gradient and the state."""
        return 2 + self.state_elements


def _momentum(parameters: Iterable[Any], lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


OPTIMIZERS = {
    "sgd": OptimizerInfo(torch.optim.SGD, default_lr=0.01, state_elements=0, passes=3),
    "momentum": OptimizerInfo(_momentum, default_lr=0.01, state_elements=1, passes=5),
    "adam": OptimizerInfo(torch.optim.Adam, default_lr=0.001, state_elements=2, passes=7),
    "adamw": OptimizerInfo(torch.optim.AdamW, default_lr=0.001, state_elements=2, passes=7),
}


def optimizer_info(name: str) -> OptimizerInfo:
    """Returns the entry of an optimizer. An unknown optimizer counts as Adam, which has the most state."""
    return OPTIMIZERS.get(name, OPTIMIZERS["adam"])


def check_optimizer(name: str) -> None:
    """Raises InputError if raddle cannot make an optimizer of this name.

    >>> check_optimizer("adamw")
    """
    if name not in OPTIMIZERS:
        raise InputError(f"optimizer is {quote(name)}: choose one of {', '.join(OPTIMIZERS)}.")
