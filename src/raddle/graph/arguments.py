"""Names for the tensors in a module's arguments, which may be nested lists and mappings of tensors.

A *leaf* is an argument that is neither a list, a tuple nor a mapping: a tensor, a number or None.

>>> _leaf_names("x", {"ids": 0, "more": [1, 2]})
['x.ids', 'x.more.0', 'x.more.1']
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn


def input_names(
    model: nn.Module, inputs: Sequence[Any] | Mapping[str, Any], targets: Sequence[Any]
) -> list[str]:
    """Returns a name for every leaf of the inputs, then of the loss's targets (target, target1, ...)."""
    if isinstance(inputs, Mapping):
        named = list(inputs.items())
    else:
        parameters = inspect.signature(model.forward).parameters.values()
        positional = [p.name for p in parameters if p.kind == p.POSITIONAL_OR_KEYWORD]
        positional += [f"input{i}" for i in range(len(positional), len(inputs))]
        named = list(zip(positional, inputs, strict=False))
    named += [("target" if not i else f"target{i}", t) for i, t in enumerate(targets)]
    return [name for argument, value in named for name in _leaf_names(argument, value)]


def leaves(tree: Any) -> list[Any]:
    """Returns the leaves of nested arguments, in the order of `input_names`."""
    if isinstance(tree, Mapping):
        return [leaf for value in tree.values() for leaf in leaves(value)]
    if isinstance(tree, (list, tuple)):
        return [leaf for value in tree for leaf in leaves(value)]
    return [tree]


def _leaf_names(name: str, value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [n for k, v in value.items() for n in _leaf_names(f"{name}.{k}", v)]
    if isinstance(value, (list, tuple)):
        return [n for i, v in enumerate(value) for n in _leaf_names(f"{name}.{i}", v)]
    return [name]
