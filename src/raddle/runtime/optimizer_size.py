"""Counts the elements of state that an optimizer keeps for each element of a parameter, by one update."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from raddle.runtime.tile_optimizer import MakeOptimizer, named_groups, rebuild

PROBE_SIZE = 4  # elements of the parameter that is updated


def state_elements(make: MakeOptimizer, model: nn.Module) -> int | None:
    """Returns the most elements of state for each element of a parameter; None if it cannot be counted.

    >>> state_elements(lambda pairs: torch.optim.Adam(pairs), nn.Linear(3, 2))
    2
    """
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    probes = {name: nn.Parameter(torch.zeros(PROBE_SIZE)) for name in names}
    if not probes:
        return 0
    pairs = list(probes.items())
    try:
        if isinstance(make, torch.optim.Optimizer):
            optimizer = rebuild(make, named_groups(make, model), pairs)
        else:
            optimizer = make(pairs)
        for probe in probes.values():
            probe.grad = torch.ones(PROBE_SIZE)
        optimizer.step()
    except (RuntimeError, TypeError, ValueError):  # it needs a GPU, a closure or other shapes
        return None
    return max(
        sum(
            value.numel() // PROBE_SIZE
            for value in optimizer.state.get(probe, {}).values()
            if isinstance(value, Tensor)
        )
        for probe in probes.values()
    )
