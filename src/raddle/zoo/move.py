"""Moves a workload (model, example batch and loss; workload.py) to a device and a floating-point type."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from raddle.graph.dtypes import carries_gradient
from raddle.zoo.workload import Workload


def move_workload(workload: Workload, device: str, dtype: torch.dtype | None = None) -> Workload:
    """Moves all tensors to `device` and, if `dtype` is given, converts floating-point tensors to it.

    Complex tensors get the complex type of the same precision.
    """

    def move_tensors(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(t.to(device=device, dtype=_target_dtype(t, dtype)) for t in tensors)

    if device == "meta":
        _move_parameters_to_meta(workload.model)
    loss = workload.loss
    if isinstance(loss, nn.Module):  # the loss may have tensors, such as weights of classes
        loss = _move_module(loss, device, dtype)
    return replace(
        workload,
        model=_move_module(workload.model, device, dtype),
        inputs=move_tensors(workload.inputs),
        targets=move_tensors(workload.targets),
        loss=loss,
    )


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
