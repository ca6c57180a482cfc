"""Prepares the work of verbs and shows what the user waits for: capturing a model, JIT compilation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from raddle.api.jit_warmup import JitFunctions
    from raddle.api.models import Graph
    from raddle.api.plan_result import PlanResult

OnProgress = Callable[[Mapping[str, Any]], None]


def capture_with_spinner(model: str, batch: int | None) -> Graph:
    """Return the graph of a model. batch: samples of a step; None: the model's default."""
    from raddle.api.loading import capture_model
    from raddle.reports.progress import spinner

    with spinner(f"capturing {model}"):
        return capture_model(model, batch)


def load_plan_with_spinner(
    plan: str, cluster: str | None, model: str | None, profile: str | None = None
) -> PlanResult:
    """Return the plan of a plan file, with the graph of its model and a cluster.

    cluster, model: used instead of those that the file names, unless None. profile: path of a profile.
    """
    from raddle.api.costs import load_optional_profile
    from raddle.api.loading import load_plan
    from raddle.reports.progress import spinner

    # Before the capture, which takes long: the path may be wrong.
    measured_profile = load_optional_profile(profile)
    with spinner(f"capturing the model of {plan}"):
        return load_plan(plan, cluster=cluster, model=model, profile=measured_profile)


@contextmanager
def progress(message: str, *, as_lines: bool = False) -> Iterator[OnProgress]:
    """Show progress on stderr, and yield the function that takes reports of it.

    What takes long and happens once is also said where stderr is no terminal. as_lines: show the progress
    as lines of JSON, for another program.
    """
    from raddle.reports.progress import progress_bar, progress_lines

    with (progress_lines if as_lines else progress_bar)(message) as show_step:

        def on_progress(step: Mapping[str, Any]) -> None:
            if step.get("once"):
                typer.echo(f"raddle: {step['step']}", err=True)
            show_step(step)

        yield on_progress


def warm_up_jit(functions: Iterable[JitFunctions]) -> None:
    """Compile the functions that are not in numba's cache on this machine, with a message for each set."""
    from raddle.api.jit_warmup import warm_up

    with progress("raddle") as on_progress:
        warm_up(functions, on_progress)
