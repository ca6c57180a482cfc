"""What numba compiles on its first use on a machine, so that who waits for it can be told."""

from __future__ import annotations

from collections.abc import Sequence

from raddle.searches.compiling import EVALUATOR, Compiled
from raddle.searches.hypergraph.compiling import PARTITIONERS
from raddle.searches.hypergraph.partitioner import SOLVED
from raddle.searches.registry import to_compile

__all__ = ["EVALUATOR", "PARTITIONERS", "Compiled", "compiled_for"]


def compiled_for(methods: Sequence[str]) -> list[Compiled]:
    """What methods of plans, or of partitions, need."""
    found = to_compile(methods)
    if PARTITIONERS not in found and not SOLVED.keys().isdisjoint(methods):
        found.append(PARTITIONERS)
    return found
