"""Makes a plain module with the trained state, from the module that a trainer was made with."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn


def plain_module(model: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    """Returns a copy of a module with these parameters and buffers; tied parameters stay tied.

    state: full tensors by name. Tensors on the meta device are replaced by new ones on the CPU.
    """
    module = copy.deepcopy(model)
    replaced: dict[int, Tensor] = {}  # id of a tensor on meta -> its replacement
    named = [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
    for name, tensor in named:
        if name not in state:
            continue
        if not tensor.is_meta:
            with torch.no_grad():
                tensor.copy_(state[name])
            continue
        if id(tensor) not in replaced:
            value = state[name].clone()
            is_parameter = isinstance(tensor, nn.Parameter)
            replaced[id(tensor)] = (
                nn.Parameter(value, tensor.requires_grad) if is_parameter else value
            )
        owner, _, attribute = name.rpartition(".")
        setattr(module.get_submodule(owner), attribute, replaced[id(tensor)])
    return module
