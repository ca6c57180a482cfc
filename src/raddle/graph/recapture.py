"""Captures a module again for another number of samples: micro-batches need not all have the same size."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from raddle.graph.graph import Graph

# Ranks may be threads that share a module, and neither export nor what reads a module is for several.
ONE_AT_A_TIME = threading.RLock()


def resized(
    inputs: Any, targets: Sequence[Any], letters: Sequence[str], batch: int
) -> tuple[Any, list[Any]]:
    """Inputs and targets with so many samples; `letters` name the dimensions of every leaf."""
    rest = iter(letters)
    return _resized(inputs, rest, batch), [_resized(t, rest, batch) for t in targets]


def _resized(given: Any, letters: Iterator[str], batch: int) -> Any:
    if isinstance(given, Mapping):
        return {key: _resized(value, letters, batch) for key, value in given.items()}
    if isinstance(given, (list, tuple)):
        return type(given)([_resized(value, letters, batch) for value in given])
    own = next(letters)
    if not isinstance(given, Tensor) or "n" not in own:
        return given
    dim = own.index("n")
    rows = torch.arange(batch, device=given.device) % given.shape[dim]
    return given.detach().index_select(dim, rows)


def once_each(model: nn.Module, again: Callable[[int], Graph]) -> Callable[[int], Graph]:
    """Captures once a size, in the mode (`train` or `eval`) that the module has now."""
    modes = {module: module.training for module in model.modules()}
    known: dict[int, Graph] = {}

    def at(batch: int) -> Graph:
        with ONE_AT_A_TIME:
            if batch not in known:
                before = {module: module.training for module in modes}
                try:
                    _set(modes)
                    known[batch] = again(batch)
                finally:
                    _set(before)
            return known[batch]

    return at


def _set(modes: Mapping[nn.Module, bool]) -> None:
    for module, training in modes.items():
        module.training = training
