"""What verbs wait for before their own work, with a word about it: a captured model, compiled functions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from raddle.api.jit_warmup import JitFunctions
    from raddle.api.loading import LoadedPlan
    from raddle.api.models import Graph


def capture_with_spinner(model: str, batch: int | None) -> Graph:
    """The graph of a model by name."""
    from raddle.api.loading import capture_model
    from raddle.reports.progress import spinner

    with spinner(f"capturing {model}"):
        return capture_model(model, batch)


def load_plan_with_spinner(plan: str, cluster: str | None, model: str | None) -> LoadedPlan:
    """The plan of a file, its model's graph, and its cluster or another one."""
    from raddle.api.loading import load_plan
    from raddle.reports.progress import spinner

    with spinner(f"capturing the model of {plan}"):
        return load_plan(plan, cluster=cluster, model=model)


def warm_up_jit(functions: Iterable[JitFunctions]) -> None:
    """Searches are compiled on their first use on a machine; who waits is told why."""
    from raddle.reports.progress import spinner

    for part in functions:
        if not part.is_cached():
            message = (
                f"raddle: compiling {part.name}, once on this machine (about {part.seconds} s)"
            )
            typer.echo(message, err=True)
            with spinner("compiling"):
                part.warm_up()
