"""JIT compiles the numba functions of a search before the search, and keeps them in numba's cache.

That takes up to half a minute, once per machine. The command line does it before a search and says so.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from raddle.graph.graph import Graph
from raddle.simulation import fast


@dataclass(frozen=True)
class JitFunctions:
    """A set of numba functions that are compiled together."""

    name: str  # shown to the user who waits: "compiling the search, ..."
    seconds: int  # roughly, to compile
    folder: str  # folder of the source files
    # Patterns of the cache files of those functions that take longest to compile.
    largest: tuple[str, ...]
    warm_up: Callable[[], None]  # calls all of the functions once, which compiles them

    def is_cached(self) -> bool:
        """Returns whether numba's cache holds the largest functions.

        A wrong answer does no harm: the user sees a needless message, or waits without one.
        """
        folder = Path(os.environ.get("NUMBA_CACHE_DIR") or f"{self.folder}/__pycache__")
        return all(next(folder.rglob(name), None) for name in self.largest)


def tiny_graph(*, layers: int, width: int) -> Graph:
    """Returns the graph of a few linear layers, with which a search calls all of its numba functions."""
    import torch
    from torch import nn

    from raddle.graph.capture import capture
    from raddle.graph.supervised import supervised

    model = nn.Sequential(*(nn.Linear(width, width, device="meta") for _ in range(layers)))
    x = torch.zeros(width, width, device="meta")
    return capture(model, x, supervised(torch.sum, targets=0), name="tiny")


def warm_up_evaluator() -> None:
    """Runs a short FlexFlow search for a network of one layer, which calls every function of EVALUATOR."""
    from raddle.clusters import cluster
    from raddle.searches.flexflow.method import search
    from raddle.searches.settings import Settings

    settings = Settings(budget=30, proposals=8, reduction=True)
    search(tiny_graph(layers=1, width=2), cluster("p100:1x2"), settings)


# The functions of the fast evaluator, which times a step without building a program (simulation/fast).
EVALUATOR = JitFunctions(
    "the search",
    30,  # seconds
    str(Path(fast.__file__).parent),
    ("kernel.step_time-*.nbi",),  # .nbi: index files of numba's cache
    warm_up_evaluator,
)
