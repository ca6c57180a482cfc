"""Move a workload to a device, its weights and examples alike."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from raddle.zoo.workload import Workload


def place(workload: Workload, device: str, dtype: torch.dtype | None = None) -> Workload:
    """Move all tensors to `device`, and those of floats to `dtype` where one is given."""

    def move(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(
            t.to(device=device, dtype=dtype if t.is_floating_point() else t.dtype) for t in tensors
        )

    if device == "meta":
        _forget_weights(workload.model)
    loss = workload.loss
    if isinstance(loss, nn.Module):  # it may hold weights of the classes
        loss = loss.to(device=device, dtype=dtype)
    return replace(
        workload,
        model=workload.model.to(device=device, dtype=dtype),
        inputs=move(workload.inputs),
        targets=move(workload.targets),
        loss=loss,
    )


def _forget_weights(model: nn.Module) -> None:
    # Module.to("meta") would give each name of a tied parameter a tensor of its own.
    empty = {p: nn.Parameter(p.to("meta"), p.requires_grad) for p in model.parameters()}
    for module in model.modules():
        for name, p in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if not p.is_meta:
                setattr(module, name, empty[p])
