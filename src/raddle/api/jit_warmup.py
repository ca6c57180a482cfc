"""What numba compiles on its first use on a machine, so that who waits for it can be told."""

from __future__ import annotations

from collections.abc import Sequence

from raddle.searches.hypergraph.partitioner import SOLVERS
from raddle.searches.hypergraph.partitioner_warmup import PARTITIONERS
from raddle.searches.jit_warmup import EVALUATOR, JitFunctions
from raddle.searches.registry import jit_functions_of

__all__ = ["EVALUATOR", "PARTITIONERS", "JitFunctions", "jit_functions_for"]


def jit_functions_for(methods: Sequence[str]) -> list[JitFunctions]:
    """What methods of plans, or of partitions, need."""
    functions = jit_functions_of(methods)
    if PARTITIONERS not in functions and not SOLVERS.keys().isdisjoint(methods):
        functions.append(PARTITIONERS)
    return functions
