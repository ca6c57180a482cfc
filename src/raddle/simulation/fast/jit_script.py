"""JIT-compiles the functions of program/step_script.py: lowering and the fast simulation share one source.

This module is a part of the fast simulation, with which searches time thousands of plans a second
(evaluator.py).

The step script says when gradients are sent or summed, and in which order parameters are updated. It is a
table with a row for each of these operations.
"""

from __future__ import annotations

from types import FunctionType, ModuleType
from typing import Any

from raddle.program import step_script
from raddle.simulation.heaps import allocates_nothing


def jit_module(module: ModuleType) -> dict[str, Any]:
    """Returns the names of a module, with its functions JIT-compiled.

    A compiled function calls the compiled forms of the others.
    """
    scope = dict(vars(module))
    for name, function in vars(module).items():
        if isinstance(function, FunctionType) and function.__module__ == module.__name__:
            # allocates_nothing: numba's njit, for functions that allocate no memory
            scope[name] = allocates_nothing(FunctionType(function.__code__, scope, name))
    return scope


# Appends to the table of the step script the rows that follow from events: when a gradient is complete, for
# example, the row of the all-reduce of its bucket, if the bucket is now full.
write_rows = jit_module(step_script)["write_rows"]
