"""Clipping by the norm of all gradients, wherever their tiles are."""

from __future__ import annotations

import torch

from raddle.program.program import Program
from raddle.run.executor import Executor

CLIPPING = 2**31 - 3  # a tag that no program has


def clip(executor: Executor, program: Program, limit: float) -> torch.Tensor:
    """Scales this rank's gradients so that the global norm is at most `limit`; gives the norm.

    A share that several devices hold is counted by the first of them.
    """
    transport = executor.transport
    square = torch.zeros((), dtype=torch.float64, device=executor.place)
    parameters = [(s, p) for s, p in executor.parameters() if p.grad is not None]
    for source, parameter in parameters:
        share = next(s for s in program.shares[source.name] if s.box == source.box)
        if share.owner == transport.rank and parameter.grad is not None:
            square += parameter.grad.double().square().sum()
    everyone = tuple(range(transport.size))
    transport.all_reduce(everyone, CLIPPING, square.view(1), "the norm of gradients").wait()
    norm = square.sqrt()
    scale = torch.clamp(limit / (norm + 1e-6), max=1.0)
    for _, parameter in parameters:
        assert parameter.grad is not None
        parameter.grad = parameter.grad * scale.to(parameter.grad.dtype)
    return norm
