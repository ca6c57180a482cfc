"""The verb `capacity`: the largest batch that fits with each method, and what a larger one needs."""

from typing import Annotated

import typer

from raddle.cli.options import (
    ClusterOption,
    CompileOption,
    Json,
    Methods,
    Model,
    OptimizerOption,
    PrecisionOption,
    Statistics,
)
from raddle.cli.output import show
from raddle.cli.preparation import progress


def capacity(
    model: Model,
    cluster: ClusterOption,
    batch: Annotated[
        int | None,
        typer.Option(metavar="B", min=1, help="Also say what this global batch needs to fit."),
    ] = None,
    methods: Methods = None,
    bn: Statistics = "local",
    precision: PrecisionOption = "float32",
    optimizer: OptimizerOption = "sgd",
    compile: CompileOption = False,  # predicts a run with torch.compile
    as_json: Json = False,
) -> None:
    """Find the largest batch that fits: one row for each method (data, zero2 and fsdp, or --methods)."""
    from raddle.api import capacity as capacities
    from raddle.reports.tables.capacity import show_capacities

    names = capacities.METHODS if methods is None else [name.strip() for name in methods.split(",")]
    with progress(f"{model} on {cluster}") as on_progress:
        results = capacities.capacity(
            model, cluster=cluster, methods=names, wanted=batch, bn=bn, precision=precision,
            optimizer=optimizer, compile=compile, on_progress=on_progress,
        )  # fmt: skip
    show([result.to_dict() for result in results], show_capacities, as_json=as_json)
