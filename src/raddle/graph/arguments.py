"""The tensors in a batch, which may be nested in lists, tuples, mappings and dataclasses.

A *leaf* is a part of a batch that is none of these: a tensor, a number, a text or None. A *path* leads to
it: the keys, indices and names of fields from the batch to the leaf.

>>> leaves({"ids": 0, "more": [1, None]})
[(('ids',), 0), (('more', 0), 1), (('more', 1), None)]
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from raddle.errors import InputError

Path = tuple[Any, ...]
MISSING = object()  # is at a path that a tree does not have
CONSTANTS = (int, float, complex, str, bytes, type(None))  # leaves that a graph has as they are


def leaves(tree: Any) -> list[tuple[Path, Any]]:
    """Returns the leaves of a tree with their paths, in order."""
    parts = _parts(tree)
    if parts is None:
        return [((), tree)]
    return [((key, *path), leaf) for key, part in parts for path, leaf in leaves(part)]


def map_leaves(function: Callable[[Path, Any], Any], tree: Any, path: Path = ()) -> Any:
    """Returns a tree of the same types with function(path, leaf) in place of each leaf.

    >>> map_leaves(lambda path, leaf: leaf + 1, {"ids": 0, "more": [1, 2]})
    {'ids': 1, 'more': [2, 3]}
    """
    parts = _parts(tree)
    if parts is None:
        return function(path, tree)
    mapped = [(key, map_leaves(function, part, (*path, key))) for key, part in parts]
    if isinstance(tree, (list, tuple)):
        values = [value for _, value in mapped]
        return type(tree)(*values) if hasattr(tree, "_fields") else type(tree)(values)
    result = copy.copy(tree)
    for key, value in mapped:
        if isinstance(tree, Mapping):
            result[key] = value
        else:
            object.__setattr__(result, key, value)  # a dataclass may be frozen
    return result


def map_samples(function: Callable[[Tensor], Any], batch: Any) -> Any:
    """Returns a batch with function(tensor) in place of each tensor that has dimensions."""
    return map_leaves(
        lambda _, leaf: function(leaf) if isinstance(leaf, Tensor) and leaf.ndim else leaf, batch
    )


def _parts(tree: Any) -> list[tuple[Any, Any]] | None:
    """Returns the parts of a tree with their keys, or None if it is a leaf."""
    if isinstance(tree, Mapping):
        return list(tree.items())
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return list(enumerate(tree))
    if isinstance(tree, (list, tuple)):
        return list(enumerate(tree))
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return [(f.name, getattr(tree, f.name)) for f in dataclasses.fields(tree)]
    return None


@dataclasses.dataclass(frozen=True)
class BatchTemplate:
    """What a graph was captured with: the tensors of a batch by name, and its constants."""

    names: Mapping[Path, str]  # path of each tensor -> its name in the graph
    constants: Mapping[
        Path, Any
    ]  # path of each other leaf -> its value, which is part of the graph

    def tensors(self, batch: Any) -> dict[str, Tensor]:
        """Returns the tensors of a batch by name. Raises InputError if the batch is not as captured."""
        given = dict(leaves(batch))
        for path, name in self.names.items():
            part = given[path] if path in given else _part_at(batch, path)
            if part is not MISSING and not isinstance(part, Tensor):
                raise InputError(f"'{name}' is a {type(part).__name__}: give a tensor.")
        if given.keys() != {*self.names, *self.constants}:
            raise InputError(self._difference(batch, given))
        for path, constant in self.constants.items():
            if type(given[path]) is not type(constant) or given[path] != constant:
                raise InputError(
                    f"'{path_name(path)}' is {_describe(given[path])}, but was captured as {constant!r}: "
                    "what is no tensor is part of the graph: make it a tensor, or leave it out."
                )
        return {name: given[path] for path, name in self.names.items()}

    def _difference(self, batch: Any, given: Mapping[Path, Any]) -> str:
        """Returns a sentence about a batch whose leaves have other paths than the captured one."""
        names = ", ".join(self.names.values())
        positions = {path[0] for path in (*self.names, *self.constants) if path}
        is_list = all(isinstance(position, int) for position in positions)
        if is_list and isinstance(batch, (list, tuple)) and len(batch) != len(positions):
            return f"a batch takes {len(positions)} tensors ({names}), not {len(batch)}."
        missing = [name for path, name in self.names.items() if path not in given]
        missing += [path_name(path) for path in self.constants if path not in given]
        extra = [
            path_name(path)
            for path in given
            if path not in self.names and path not in self.constants
        ]
        problems = [f"has no {_listed(missing)}"] * bool(missing)
        problems += [f"has {_listed(extra)}, which the example had not"] * bool(extra)
        return f"the batch {' and '.join(problems)}: give {names}, as at capture."


def _part_at(tree: Any, path: Path) -> Any:
    """Returns the part of a tree at a path, or MISSING."""
    for key in path:
        tree = dict(_parts(tree) or ()).get(key, MISSING)
    return tree


def path_name(path: Path) -> str:
    """Returns a name for a leaf: its keys, joined by dots; a key that is a position begins with `batch`.

    >>> path_name(("ids",)), path_name((0, "ids")), path_name(())
    ('ids', 'batch.0.ids', 'batch')
    """
    if not path or isinstance(path[0], int):
        path = ("batch", *path)
    return ".".join(map(str, path))


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(f"'{name}'" for name in names[:3]) + more


def _describe(leaf: Any) -> str:
    return "a tensor" if isinstance(leaf, Tensor) else repr(leaf)[:80]
