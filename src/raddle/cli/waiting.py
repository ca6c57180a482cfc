"""What verbs wait for before their own work, with a word about it: a captured model, compiled functions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from raddle.api.compiling import JitFunctions
    from raddle.api.loading import Loaded
    from raddle.api.models import Graph


def captured(model: str, batch: int | None) -> Graph:
    """The graph of a model by name."""
    from raddle.api.loading import capture_model
    from raddle.reports.progress import progress

    with progress(f"capturing {model}"):
        return capture_model(model, batch)


def loaded(plan: str, cluster: str | None, model: str | None) -> Loaded:
    """The plan of a file, its model's graph, and its cluster or another one."""
    from raddle.api.loading import load_plan
    from raddle.reports.progress import progress

    with progress(f"capturing the model of {plan}"):
        return load_plan(plan, cluster=cluster, model=model)


def compile_once(wanted: Iterable[JitFunctions]) -> None:
    """Searches are compiled on their first use on a machine; who waits is told why."""
    from raddle.reports.progress import progress

    for part in wanted:
        if not part.is_cached():
            said = f"raddle: compiling {part.name}, once on this machine (about {part.seconds} s)"
            typer.echo(said, err=True)
            with progress("compiling"):
                part.warm_up()
