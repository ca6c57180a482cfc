"""Prepares the work of verbs and shows what the user waits for: capturing a model, JIT compilation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from raddle.api.jit_warmup import JitFunctions
    from raddle.api.loading import LoadedPlan
    from raddle.api.models import Graph


def capture_with_spinner(model: str, batch: int | None) -> Graph:
    """Return the graph of a model. batch: samples of a step; None: the model's default."""
    from raddle.api.loading import capture_model
    from raddle.reports.progress import spinner

    with spinner(f"capturing {model}"):
        return capture_model(model, batch)


def load_plan_with_spinner(plan: str, cluster: str | None, model: str | None) -> LoadedPlan:
    """Return the graph (of one micro-batch), the plan and the cluster of a plan file.

    cluster, model: used instead of those that the file names, unless None.
    """
    from raddle.api.loading import load_plan
    from raddle.reports.progress import spinner

    with spinner(f"capturing the model of {plan}"):
        return load_plan(plan, cluster=cluster, model=model)


def warm_up_jit(functions: Iterable[JitFunctions]) -> None:
    """Compile the functions that are not in numba's cache on this machine, with a message for each set.

    functions: sets of functions, each with a name and the seconds that its compilation takes.
    """
    from raddle.reports.progress import spinner

    for function_set in functions:
        if not function_set.is_cached():
            message = (
                f"raddle: compiling {function_set.name}, once on this machine "
                f"(about {function_set.seconds} s)"
            )
            typer.echo(message, err=True)
            with spinner("compiling"):
                function_set.warm_up()
