"""The verb `schedule`: lists pipeline schedules, or draws one."""

from typing import Annotated

import typer

from raddle.cli.options import Json
from raddle.cli.output import show


def schedule(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="A schedule, or a file with a row of actions for each worker."
        ),
    ] = None,
    stages: Annotated[int, typer.Option(metavar="P", min=1, help="Number of stages.")] = 4,
    microbatches: Annotated[
        int, typer.Option(metavar="M", min=1, help="Number of micro-batches.")
    ] = 8,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="W",
            min=1,
            help="Number of workers (rows); interleaved has fewer workers than stages.",
        ),
    ] = None,
    backward: Annotated[
        int,
        typer.Option(metavar="B", min=1, help="Time of a backward, as a multiple of a forward's."),
    ] = 1,
    as_json: Json = False,
) -> None:
    """List schedules, or draw one: each worker's actions over time, the bubble, and memory use."""
    from raddle.api.schedules import make_schedule
    from raddle.reports import schedules as report

    if name is None:
        show(report.schedule_names(), report.show_names, as_json=as_json)
        return
    chosen_schedule = make_schedule(name, stages=stages, microbatches=microbatches, workers=workers)
    result = report.describe_schedule(chosen_schedule, name, backward)
    show(result, report.show_schedule, as_json=as_json)
