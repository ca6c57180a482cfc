"""Captures a module again for another number of samples: the last micro-batch of a step may be smaller.

A graph has fixed sizes, so every number of samples needs its own graph (`Graph.for_batch`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from raddle.graph.arguments import Path, map_leaves

if TYPE_CHECKING:
    from raddle.graph.graph import Graph

# Ranks may be threads that share a module, and torch.export is not thread-safe.
CAPTURE_LOCK = threading.RLock()


def resize_batch(batch: Any, letters: Mapping[Path, str], samples: int) -> Any:
    """Returns a batch with `samples` samples: the first ones, repeated if they are too few.

    letters: the letters of the dimensions of every tensor, by its path (arguments.py).
    """

    def resize(path: Path, leaf: Any) -> Any:
        if "n" not in letters.get(path, ""):
            return leaf
        dim = letters[path].index("n")
        rows = torch.arange(samples, device=leaf.device) % leaf.shape[dim]
        return leaf.detach().index_select(dim, rows)

    return map_leaves(resize, batch)


def capture_once_per_size(
    model: nn.Module, capture_again: Callable[[int], Graph]
) -> Callable[[int], Graph]:
    """Returns a function from batch size to graph that captures once for each size.

    It sets the modes (`train` or `eval`) that the modules have now, captures, and then gives every module
    the mode back that it had just before.
    """
    modes = {module: module.training for module in model.modules()}
    graphs: dict[int, Graph] = {}

    def graph_for(batch: int) -> Graph:
        with CAPTURE_LOCK:
            if batch not in graphs:
                modes_before = {module: module.training for module in modes}
                try:
                    _set_modes(modes)
                    graphs[batch] = capture_again(batch)
                finally:
                    _set_modes(modes_before)
            return graphs[batch]

    return graph_for


def _set_modes(modes: Mapping[nn.Module, bool]) -> None:
    for module, training in modes.items():
        module.training = training
