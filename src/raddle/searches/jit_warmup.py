"""What numba compiles once on a machine: whether its cache holds it, and how to put it there."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from raddle.graph.graph import Graph
from raddle.simulation import fast


@dataclass(frozen=True)
class JitFunctions:
    """Functions that are compiled together, before a search whose time counts."""

    name: str  # as who waits for it is told
    seconds: int  # about
    folder: str  # of their sources
    largest: tuple[str, ...]  # files of the cache: those that take longest to compile
    warm_up: Callable[[], None]

    def is_cached(self) -> bool:
        """Whether the cache holds the largest of them; False at worst means a needless message."""
        folder = Path(os.environ.get("NUMBA_CACHE_DIR") or f"{self.folder}/__pycache__")
        return all(next(folder.rglob(name), None) for name in self.largest)


def tiny_graph(*, layers: int, width: int) -> Graph:
    """A network of linear layers, as small as what is searched only in order to compile."""
    import torch
    from torch import nn

    from raddle.graph.capture import capture

    model = nn.Sequential(*(nn.Linear(width, width, device="meta") for _ in range(layers)))
    inputs = [torch.zeros(width, width, device="meta")]
    return capture(model, inputs, loss=lambda y: y.sum(), name="tiny")


def warm_up_evaluator() -> None:
    """Searches for a plan of a network of one layer, by all that is compiled."""
    from raddle.clusters import cluster
    from raddle.searches.flexflow.method import search
    from raddle.searches.settings import Settings

    settings = Settings(budget=30, proposals=8, reduction=True)
    search(tiny_graph(layers=1, width=2), cluster("p100:1x2"), settings)


EVALUATOR = JitFunctions(
    "the search",
    30,
    str(Path(fast.__file__).parent),
    ("kernel.step_time-*.nbi",),
    warm_up_evaluator,
)
