"""The verb `plan`: makes a plan with one method, predicts its metrics and writes it to a file."""

from typing import Annotated

import typer

from raddle.api.defaults import ALIASES
from raddle.cli.options import (
    Batch,
    Budget,
    ClusterOption,
    CompileOption,
    Json,
    Model,
    OptimizerOption,
    Pins,
    PrecisionOption,
    ProfileOption,
    Reduction,
    Seed,
    Statistics,
    Sync,
)
from raddle.cli.output import check_folder, show
from raddle.cli.preparation import progress
from raddle.errors import InputError


def plan(
    model: Model,
    cluster: ClusterOption,
    method: Annotated[
        str,
        typer.Option(
            metavar="M", help=f"A method; `raddle compare` lists them. Other names are {ALIASES}."
        ),
    ] = "auto",
    batch: Batch = None,
    bn: Statistics = "local",  # batch norm: over the samples of a device, or of the whole batch
    sync: Sync = "auto",
    precision: PrecisionOption = "float32",
    optimizer: OptimizerOption = "sgd",
    compile: CompileOption = False,  # predicts a run with torch.compile
    recompute: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            help="Activation checkpointing: save values at the borders of K blocks, recompute the others.",
        ),
    ] = None,
    budget: Budget = 30.0,
    proposals: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="In place of --budget: stop after N proposals of the Markov chains of flexflow and auto. "
            "With the same seed, the plan is the same.",
        ),
    ] = None,
    seed: Seed = 0,
    pin: Pins = None,
    reduction: Reduction = None,  # whether dimensions that are summed over may be split
    schedule: Annotated[
        str | None,
        typer.Option(
            metavar="S",
            help="Schedule of a pipeline (`raddle schedule` lists them), or a file with its rows; "
            "threaded:4 (four steps that overlap) works with any method.",
        ),
    ] = None,
    stages: Annotated[
        int | None, typer.Option(metavar="P", min=1, help="Number of stages of a pipeline.")
    ] = None,
    microbatches: Annotated[
        int | None, typer.Option(metavar="M", min=1, help="Number of micro-batches of a pipeline.")
    ] = None,
    epsilon: Annotated[
        float,
        typer.Option(
            metavar="E", min=0.0, help="Allowed imbalance of the hypergraph-* methods; 0.1 is 10 %."
        ),
    ] = 0.1,
    from_partition: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Make the plan from another partitioner's result; see `raddle export`.",
        ),
    ] = None,
    profile: ProfileOption = None,
    output: Annotated[
        str | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Write the plan to this file, as JSON."
        ),
    ] = None,
    text: Annotated[
        bool, typer.Option("--text", help="Print the plan's tiles in text notation.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a plan with a method, and predict its metrics. Ctrl-C ends a search with its best plan."""
    from raddle.api.planning import plan as make_plan
    from raddle.api.plans import write_tiles
    from raddle.reports.tables.plan_metrics import show_plan

    if text and as_json:
        raise InputError("--text and --json are two forms of one output: ask for one of them.")
    if output is not None:
        check_folder(output)  # before the search, which may take long
    with progress(f"planning {model}, {method}") as on_progress:
        result = make_plan(
            model, batch, cluster=cluster, method=method, bn=bn, sync=sync,
            precision=precision, optimizer=optimizer, compile=compile, recompute=recompute,
            budget=budget, seed=seed, pins=pin or (), reduction=reduction, schedule=schedule, stages=stages,
            microbatches=microbatches, epsilon=epsilon, partition=from_partition, profile=profile,
            proposals=proposals, on_progress=on_progress,
        )  # fmt: skip
    if output is not None:
        result.save(output)
    if text:
        print(write_tiles(result.graph, result.plan.tiles), end="")
    else:
        show({**result.row, "file": output}, show_plan, as_json=as_json)
