"""Captures a module again for another number of samples: the last micro-batch of a step may be smaller.

A graph has fixed sizes, so every number of samples needs its own graph (`Graph.for_batch`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from raddle.graph.graph import Graph

# Ranks may be threads that share a module, and torch.export is not thread-safe.
CAPTURE_LOCK = threading.RLock()


def resize_inputs(
    inputs: Any, targets: Sequence[Any], letters: Sequence[str], batch: int
) -> tuple[Any, list[Any]]:
    """Returns inputs and targets with `batch` samples: the first ones, repeated if they are too few.

    letters: the letters of the dimensions of every leaf (arguments.py), in order.
    """
    remaining_letters = iter(letters)
    return _resize(inputs, remaining_letters, batch), [
        _resize(t, remaining_letters, batch) for t in targets
    ]


def _resize(arguments: Any, letters: Iterator[str], batch: int) -> Any:
    """Returns nested arguments with `batch` samples; takes the letters of each leaf from the iterator."""
    if isinstance(arguments, Mapping):
        return {key: _resize(value, letters, batch) for key, value in arguments.items()}
    if isinstance(arguments, (list, tuple)):
        return type(arguments)([_resize(value, letters, batch) for value in arguments])
    leaf_letters = next(letters)
    if not isinstance(arguments, Tensor) or "n" not in leaf_letters:
        return arguments
    dim = leaf_letters.index("n")
    rows = torch.arange(batch, device=arguments.device) % arguments.shape[dim]
    return arguments.detach().index_select(dim, rows)


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
