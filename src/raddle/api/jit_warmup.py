"""Lists the functions that numba compiles on their first use on a machine.

The command line compiles them before its work, with a message, so that the user knows why to wait.
`EVALUATOR` has the functions of the fast simulation, `PARTITIONERS` those of the hypergraph partitioners.
A solver (`SOLVERS`) is a method of `raddle partition` that uses the functions of `PARTITIONERS`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from raddle.searches.hypergraph.partitioner import SOLVERS
from raddle.searches.hypergraph.partitioner_warmup import PARTITIONERS
from raddle.searches.jit_warmup import EVALUATOR, JitFunctions
from raddle.searches.registry import jit_functions_of
from raddle.searches.settings import OnProgress

__all__ = ["EVALUATOR", "PARTITIONERS", "JitFunctions", "jit_functions_for", "warm_up"]


def warm_up(functions: Iterable[JitFunctions], on_progress: OnProgress) -> None:
    """Compile the sets of functions that are not in numba's cache on this machine.

    Each of them is reported as progress, with the key "once": the next call does not have to wait.
    """
    for function_set in functions:
        if not function_set.is_cached():
            step = (
                f"compiling {function_set.name}, once on this machine "
                f"(about {function_set.seconds} s)"
            )
            on_progress({"step": step, "done": 0, "of": 1, "once": True})
            function_set.warm_up()


def jit_functions_for(methods: Sequence[str]) -> list[JitFunctions]:
    """Return the sets of functions that the named methods of planning or of partitioning need."""
    functions = jit_functions_of(methods)
    if PARTITIONERS not in functions and not SOLVERS.keys().isdisjoint(methods):
        functions.append(PARTITIONERS)
    return functions
