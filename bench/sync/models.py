"""Provides the tasks of this benchmark: networks of experiments/nets.py, the same on every rank."""

from __future__ import annotations

import torch

from experiments import nets


def task(name: str, batch: int) -> nets.Task:
    """Return the network of this name, the same on every rank; batch: samples of all ranks together."""
    torch.manual_seed(0)
    made: nets.Task = getattr(nets, name)(batch)
    return made
