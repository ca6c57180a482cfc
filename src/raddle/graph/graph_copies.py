"""How a graph is pickled, copied and shown as text: the base class of `Graph`."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import fields, replace
from typing import Any, TypeVar

G = TypeVar("G", bound="GraphCopies")


class GraphCopies:
    """Copies of a graph keep the way to capture its module again; a pickled graph is without the module."""

    def __repr__(self) -> str:
        graph: Any = self
        return (
            f"<Graph {graph.name}: {len(graph.ops)} operators, {len(graph.parameters)} parameters, "
            f"batch {graph.batch}>"
        )

    def __getstate__(self) -> dict[str, Any]:
        """Returns what is pickled: all fields but `recapture`, which holds the module."""
        graph: Any = self
        return {f.name: getattr(graph, f.name) for f in fields(graph)} | {"recapture": None}

    def __deepcopy__(self: G, memo: dict[int, Any]) -> G:
        """Returns a copy that shares what cannot change, and the module that `recapture` holds."""
        graph: Any = self
        copy: G = replace(graph, constants=deepcopy(dict(graph.constants), memo))
        return copy
