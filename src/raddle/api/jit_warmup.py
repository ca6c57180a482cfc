"""Lists the functions that numba compiles on their first use on a machine.

The command line compiles them before its work, with a message, so that the user knows why to wait.
`EVALUATOR` has the functions of the fast simulation, `PARTITIONERS` those of the hypergraph partitioners.
A solver (`SOLVERS`) is a method of `raddle partition` that uses the functions of `PARTITIONERS`.
"""

from __future__ import annotations

from collections.abc import Sequence

from raddle.searches.hypergraph.partitioner import SOLVERS
from raddle.searches.hypergraph.partitioner_warmup import PARTITIONERS
from raddle.searches.jit_warmup import EVALUATOR, JitFunctions
from raddle.searches.registry import jit_functions_of

__all__ = ["EVALUATOR", "PARTITIONERS", "JitFunctions", "jit_functions_for"]


def jit_functions_for(methods: Sequence[str]) -> list[JitFunctions]:
    """Return the sets of functions that the named methods of planning or of partitioning need."""
    functions = jit_functions_of(methods)
    if PARTITIONERS not in functions and not SOLVERS.keys().isdisjoint(methods):
        functions.append(PARTITIONERS)
    return functions
