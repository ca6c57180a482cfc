"""The verb `schedule`: the schedules of pipelines, as pictures and figures."""

from typing import Annotated, Any

import typer

from raddle.cli.options import Json
from raddle.cli.output import show
from raddle.files import read_text


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
    from raddle.reports import schedules as report

    if name is None:
        show(report.names(), report.show_names, as_json=as_json)
        return
    result = report.describe(_found(name, stages, workers, microbatches), name, backward)
    show(result, report.show_schedule, as_json=as_json)


def _found(name: str, stages: int, workers: int | None, microbatches: int) -> Any:
    from raddle.plans.schedule import read
    from raddle.plans.schedules import NAMES, named

    if name in NAMES:
        rows = workers or (max(1, stages // 2) if name == "interleaved" else stages)
        return named(name, stages, rows, microbatches)
    return read(read_schedule(name))


def read_schedule(given: str | None) -> str:
    """A name as it is; a file's rows."""
    from raddle.plans.schedules import NAMES

    if not given or given in NAMES or given.startswith("threaded"):
        return given or ""
    advice = (
        f"choose {', '.join(NAMES)}, threaded:4, or a file with a row of actions for each worker"
    )
    return read_text(given, "schedule", missing=advice)
