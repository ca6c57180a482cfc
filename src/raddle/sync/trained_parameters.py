"""The parameters that a wrapped optimizer (sync.Optimizer) trains, with the model's names for them.

The other files of this package identify a parameter by its index in this list.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import nn
from torch.optim import Optimizer


class TrainedParameters:
    """The parameters of `optimizer` that need gradients, in its order. All are on one device.

    optimizer: the plain one of torch.optim, inside the wrapper.
    `names` and `parameters` are parallel lists; the position in them is a parameter's index.
    """

    def __init__(self, optimizer: Optimizer, model: nn.Module) -> None:
        self.optimizer = optimizer
        self.parameters, self.names = _collect_trained(optimizer, model)
        self.device = _only_device(self.names, self.parameters)

    @cached_property
    def index_by_id(self) -> dict[int, int]:
        """id(parameter) -> its index."""
        return {id(p): index for index, p in enumerate(self.parameters)}

    def check_frozen(self) -> None:
        """Raises if a parameter has a gradient but was frozen when the optimizer was wrapped."""
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None and id(p) not in self.index_by_id:
                    raise RuntimeError(
                        f"a parameter of shape {list(p.shape)} has a gradient and had requires_grad=False "
                        "when the optimizer was wrapped: wrap after it is unfrozen"
                    )


def _collect_trained(
    optimizer: Optimizer, model: nn.Module
) -> tuple[list[nn.Parameter], list[str]]:
    """Returns the parameters that need gradients, and their names in the model."""
    names_by_id = {id(p): name for name, p in model.named_parameters()}
    parameters, names = [], []
    for g, group in enumerate(optimizer.param_groups):
        for number, p in enumerate(group["params"]):
            if p.requires_grad:
                parameters.append(p)
                names.append(names_by_id.get(id(p), f"parameter {number} of group {g}"))
    if not parameters:
        raise ValueError("the optimizer has no parameter that needs a gradient: nothing to average")
    return parameters, names


def _only_device(names: Sequence[str], parameters: Sequence[nn.Parameter]) -> torch.device:
    """Returns the device of all parameters; raises if there are two."""
    first = parameters[0].device
    for name, p in zip(names, parameters, strict=True):
        if p.device != first:
            raise ValueError(
                f"'{names[0]}' is on {first} and '{name}' on {p.device}: a rank has one device"
            )
    return first
