"""The compiled functions of a search: whether they are in numba's cache, and how to put them there."""

from __future__ import annotations

import os
from pathlib import Path

from raddle.simulation.fast import kernel


def is_compiled() -> bool:
    """Whether the cache holds the largest of them; False at worst means a needless message."""
    folders = [Path(kernel.__file__).parent / "__pycache__"]
    if os.environ.get("NUMBA_CACHE_DIR"):
        folders = [Path(os.environ["NUMBA_CACHE_DIR"])]
    return any(next(folder.rglob("kernel.step_time-*.nbi"), None) for folder in folders)


def compile_all() -> None:
    """Searches for a plan of a network of one layer, by all that is compiled."""
    import torch
    from torch import nn

    from raddle.clusters import cluster
    from raddle.graph.capture import capture
    from raddle.searches.planning import find
    from raddle.searches.settings import Settings

    model = nn.Linear(2, 2, device="meta")
    inputs = [torch.zeros(2, 2, device="meta")]
    graph = capture(model, inputs, loss=lambda y: y.sum(), name="tiny")
    find(graph, cluster("p100:1x2"), "flexflow", Settings(budget=30, proposals=8, reduction=True))
