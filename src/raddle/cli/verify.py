"""The verb `verify`: checks that training with a plan gives the values of the plain module."""

import math
from typing import Annotated

import typer

from raddle.cli.end_signals import end_by_sigterm
from raddle.cli.options import Json, ModelOption, PlanFile, RunSeed
from raddle.cli.output import show
from raddle.errors import InputError


def verify(
    plan: PlanFile,
    steps: Annotated[int, typer.Option(metavar="K", min=1, help="Number of training steps.")] = 3,
    threads: Annotated[
        bool, typer.Option("--threads", help="Run ranks as threads of this process.")
    ] = False,
    tolerance: Annotated[
        float, typer.Option(metavar="X", help="Largest relative deviation that is accepted.")
    ] = 1e-9,
    model: ModelOption = None,
    seed: RunSeed = 0,
    as_json: Json = False,
) -> None:
    """Train with a plan and with the plain module, and compare: exit code 1 if they differ.

    Losses, gradients, parameters and buffers are compared in float64; the bytes sent are compared with the
    program's and the simulator's. Exit code 2 if the plan cannot be run on this machine.
    """
    from raddle.api.verifying import verify as verify_plan
    from raddle.reports.progress import progress_bar
    from raddle.reports.verification import show_verdict

    if not (tolerance >= 0 and math.isfinite(tolerance)):
        raise InputError(f"--tolerance is {tolerance}: give a small positive number, as 1e-9.")
    end_by_sigterm()  # the ranks end too
    with progress_bar(f"verifying {plan}") as on_progress:
        verdict = verify_plan(
            plan, steps=steps, threads=threads, tolerance=tolerance, model=model or "", seed=seed,
            on_progress=on_progress,
        )  # fmt: skip
    show(verdict, show_verdict, as_json=as_json)
    if not verdict.holds:
        raise typer.Exit(1)
