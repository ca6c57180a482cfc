"""The compiled functions of partitioners: whether they are in numba's cache, and how to put them there."""

from __future__ import annotations

import os
from pathlib import Path

LARGEST = ("annealing._walk-*.nbi", "finemoves.anneal-*.nbi", "mixedanneal.anneal-*.nbi")


def is_compiled() -> bool:
    """Whether the cache holds the largest of each; False at worst means a needless message."""
    folder = Path(os.environ.get("NUMBA_CACHE_DIR") or Path(__file__).parent / "__pycache__")
    return all(next(folder.rglob(name), None) for name in LARGEST)


def compile_all() -> None:
    """Partitions a network of two layers, in every way."""
    import torch
    from torch import nn

    from raddle.graph.capture import capture
    from raddle.searches.hypergraph.answers import Asked, Partitioner

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).to("meta")
    inputs = [torch.zeros(4, 4, device="meta")]
    tiny = Partitioner(capture(model, inputs, loss=lambda y: y.sum(), name="tiny"))
    for method in ("coarse", "fine", "mixed"):
        tiny.answer(method, Asked(2, budget=0.2))
