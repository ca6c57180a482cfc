"""The verb `schedule`: the schedules of pipelines, as pictures and figures."""

from typing import Annotated

import typer

from raddle.cli.options import Json
from raddle.cli.output import show


def schedule(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A schedule, or a file with its rows.")
    ] = None,
    stages: Annotated[int, typer.Option(metavar="P", min=1, help="Stages.")] = 4,
    microbatches: Annotated[int, typer.Option(metavar="M", min=1, help="Micro-batches.")] = 8,
    workers: Annotated[
        int | None,
        typer.Option(metavar="W", min=1, help="Rows; interleaved has fewer than stages."),
    ] = None,
    backward: Annotated[
        int, typer.Option(metavar="B", min=1, help="A backward's time, of a forward's.")
    ] = 1,
    as_json: Json = False,
) -> None:
    """List schedules, or draw one: what each worker does when, its bubble, what is alive."""
    from raddle.api.schedules import make_schedule
    from raddle.reports import schedules as report

    if name is None:
        show(report.schedule_names(), report.show_names, as_json=as_json)
        return
    chosen_schedule = make_schedule(name, stages=stages, microbatches=microbatches, workers=workers)
    result = report.describe_schedule(chosen_schedule, name, backward)
    show(result, report.show_schedule, as_json=as_json)
