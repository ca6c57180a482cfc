"""The verbs `plan` and `compare`."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from raddle.api.loading import capture_model, load_measured
from raddle.cli.options import (
    Batch,
    Budget,
    ClusterOption,
    Json,
    Model,
    Pins,
    ProfileOption,
    Reduction,
    Seed,
    Statistics,
    Sync,
)
from raddle.cli.output import check_folder, show
from raddle.cli.scheduling import read_schedule
from raddle.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raddle.searches.settings import Settings

COMPARE_BUDGET = 10.0  # seconds of each search, where several are compared


def plan(
    model: Model,
    cluster: ClusterOption,
    method: Annotated[
        str, typer.Option(metavar="M", help="As `raddle compare` lists them.")
    ] = "auto",
    batch: Batch = None,
    bn: Statistics = "local",
    sync: Sync = "auto",
    recompute: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            help="Keep values for the backward at the borders of K blocks, and compute the rest again.",
        ),
    ] = None,
    budget: Budget = 30.0,
    seed: Seed = 0,
    pin: Pins = None,
    reduction: Reduction = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            metavar="S",
            help="Of a pipeline, as `raddle schedule` lists them, or a file with its rows; "
            "threaded:4 with any method.",
        ),
    ] = None,
    stages: Annotated[
        int | None, typer.Option(metavar="P", min=1, help="Stages of a pipeline.")
    ] = None,
    microbatches: Annotated[
        int | None, typer.Option(metavar="M", min=1, help="Micro-batches of a pipeline.")
    ] = None,
    epsilon: Annotated[
        float, typer.Option(metavar="E", min=0.0, help="Imbalance that hypergraph-* may leave.")
    ] = 0.1,
    from_partition: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Another partitioner's answer; see `raddle export`."),
    ] = None,
    profile: ProfileOption = None,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE", help="Write the plan as JSON.")
    ] = None,
    text: Annotated[bool, typer.Option("--text", help="The plan in plain text notation.")] = False,
    as_json: Json = False,
) -> None:
    """Make a plan by a method, and predict what it takes. An interrupted search keeps its best."""
    from dataclasses import replace

    from raddle import clusters
    from raddle.plans import file
    from raddle.plans.notation import write_tiles
    from raddle.reports import terminal
    from raddle.searches.figures import planned, speedup_over_data
    from raddle.searches.planning import check_pipeline

    if from_partition is not None:
        method = "partition"
    settings = settings_of(
        [] if from_partition else [method], bn, sync, budget, seed, pin, reduction, profile
    )
    settings = replace(
        settings, schedule=read_schedule(schedule), stages=stages, microbatches=microbatches
    )
    check_pipeline(method, settings)
    if text and as_json:
        raise InputError("--text and --json are two forms of one output: ask for one of them.")
    if output is not None:
        check_folder(output)  # before the work, and not after it
    on = clusters.cluster(cluster)
    with terminal.progress(f"capturing {model}"):
        graph = capture_model(model, batch)
    _compile([method])
    from raddle.searches.hypergraph.searching import given

    with terminal.progress_bar(f"planning {model}, {method}") as heard:
        own = replace(settings, heard=heard, epsilon=epsilon)
        found = None if from_partition is None else given(graph, on, from_partition)
        judged = planned(
            graph, on, method, model=model, settings=own, recompute=recompute, found=found
        )
        made, row, timeline = judged
        row["speedup"] = speedup_over_data(judged, settings.profile)
    if output is not None:
        file.save(made, timeline.program.graph, output)
    if text:
        print(write_tiles(timeline.program.graph, made.tiles), end="")
    else:
        show({**row, "file": output}, terminal.show_plan, as_json=as_json)


def compare(
    model: Model,
    cluster: ClusterOption,
    batch: Batch = None,
    methods: Annotated[
        str | None, typer.Option(metavar="A,B,…", help="Methods; all if none are named.")
    ] = None,
    bn: Statistics = "local",
    sync: Sync = "auto",
    budget: Budget = COMPARE_BUDGET,
    seed: Seed = 0,
    pin: Pins = None,
    reduction: Reduction = None,
    profile: ProfileOption = None,
    as_json: Json = False,
) -> None:
    """Compare methods: one row each, with the time of a step and what it moves."""
    from raddle import clusters
    from raddle.reports import terminal
    from raddle.searches import figures
    from raddle.searches.baselines import METHODS
    from raddle.searches.planning import SEARCHES

    every = [*METHODS, *SEARCHES]
    names = every if methods is None else [m.strip() for m in methods.split(",")]
    settings = settings_of(names, bn, sync, budget, seed, pin, reduction, profile)
    on = clusters.cluster(cluster)
    with terminal.progress(f"capturing {model}"):
        graph = capture_model(model, batch)
    _compile(names)
    with terminal.progress_bar(f"{model} on {on.name}") as heard:
        rows = figures.compare(graph, on, names, heard=heard, model=model, settings=settings)
    show(rows, terminal.show_comparison, as_json=as_json)


def settings_of(
    methods: "Sequence[str]",
    bn: str,
    sync: str,
    budget: float,
    seed: int,
    pins: "Sequence[str] | None",
    reduction: bool | None,
    profile: str | None,
) -> "Settings":
    """Looks at everything that can be wrong before anything is captured."""
    from raddle.searches.pins import read_pin
    from raddle.searches.planning import check_settings
    from raddle.searches.settings import Settings

    check_settings(methods, bn=bn, sync=sync)
    return Settings(
        bn=bn,
        sync=sync,
        budget=budget,
        seed=seed,
        pins=tuple(read_pin(text) for text in pins or ()),
        reduction=reduction,
        profile=load_measured(profile),
    )


def _compile(methods: "Sequence[str]") -> None:
    from raddle.searches.planning import PARTITIONS, SEARCHES

    if any(name in SEARCHES for name in methods):
        compile_searches()
    if any(name in PARTITIONS for name in methods):
        compile_partitioners()


def compile_searches() -> None:
    """Searches are compiled on their first use on a machine; who waits is told why."""
    from raddle.searches import compiling

    _compile_once(compiling, "the search", seconds=30)


def compile_partitioners() -> None:
    """The same for partitions."""
    from raddle.searches.hypergraph import compiling

    _compile_once(compiling, "the partitioners", seconds=50)


def _compile_once(compiling: Any, what: str, *, seconds: int) -> None:
    from raddle.reports import terminal

    if not compiling.is_compiled():
        said = f"raddle: compiling {what}, once on this machine (about {seconds} s)"
        typer.echo(said, err=True)
        with terminal.progress("compiling"):
            compiling.compile_all()
