"""Moves a workload (model, example batch and loss; workload.py) to a device and a floating-point type."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from raddle.graph.arguments import Path, map_leaves
from raddle.graph.dtypes import carries_gradient
from raddle.graph.supervised import Loss, Supervised
from raddle.zoo.workload import Workload


def move_workload(workload: Workload, device: str, dtype: torch.dtype | None = None) -> Workload:
    """Moves all tensors to `device` and, if `dtype` is given, converts floating-point tensors to it.

    Complex tensors get the complex type of the same precision.
    """

    def move_leaf(path: Path, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return leaf.to(device=device, dtype=_target_dtype(leaf, dtype))

    if device == "meta":
        _move_parameters_to_meta(workload.model)
    loss = workload.loss
    if (module := loss_module(loss)) is not None:
        _move_module(module, device, dtype)
    return replace(
        workload,
        model=_move_module(workload.model, device, dtype),
        batch=map_leaves(move_leaf, workload.batch),
    )


def loss_module(loss: Loss) -> nn.Module | None:
    """Returns the module in a loss, which may have tensors such as class weights; None: it has none."""
    criterion = loss.criterion if isinstance(loss, Supervised) else loss
    return criterion if isinstance(criterion, nn.Module) else None


def _target_dtype(tensor: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """Returns the type to convert a tensor to: integers keep theirs, complex numbers stay complex."""
    if dtype is None or not carries_gradient(tensor.dtype):
        return tensor.dtype
    return torch.promote_types(dtype, torch.complex32) if tensor.is_complex() else dtype


def _move_module(module: nn.Module, device: str, dtype: torch.dtype | None) -> nn.Module:
    """Does the same as Module.to, but keeps complex parameters complex, and returns the module.

    Module.to would drop their imaginary parts.
    """
    states = [*module.parameters(), *module.buffers()]
    if dtype is None or not any(t.is_complex() for t in states):
        return module.to(device=device, dtype=dtype)
    module.to(device=device)
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.data = tensor.data.to(_target_dtype(tensor, dtype))
    return module


def _move_parameters_to_meta(model: nn.Module) -> None:
    """Moves all parameters to the device "meta"; a parameter that modules share stays one tensor.

    Module.to("meta") would make separate tensors of it.
    """
    meta_parameters = {p: nn.Parameter(p.to("meta"), p.requires_grad) for p in model.parameters()}
    for module in model.modules():
        for name, p in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if not p.is_meta:
                setattr(module, name, meta_parameters[p])
