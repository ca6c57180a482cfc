"""The verb `report`: writes an HTML page that compares methods and plans."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from raddle.api.defaults import COMPARE_SECONDS as BUDGET
from raddle.cli.options import (
    Batch,
    Budget,
    Json,
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
from raddle.cli.preparation import capture_with_spinner, progress
from raddle.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from raddle.api.costs import Profile
    from raddle.api.plan_result import PlanResult


def report(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="A model of the zoo, or file.py:function; without it, the plans' own.",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="C",
            help="A preset such as p100:4x4, or a YAML file; without it, the plans' own.",
        ),
    ] = None,
    batch: Batch = None,
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,…",
            help="Methods to compare; without it, all methods, or only `data` if there are plans.",
        ),
    ] = None,
    plan: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="A plan file to show. Repeatable.")
    ] = None,
    run: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="A measured run: the output of `raddle run PLAN --json`. Repeatable.",
        ),
    ] = None,
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="FILE", help="The HTML file to write.")
    ] = "report.html",
    bn: Statistics = "local",  # batch norm: over the samples of a device, or of the whole batch
    sync: Sync = "auto",
    precision: PrecisionOption = "float32",
    optimizer: OptimizerOption = "sgd",
    budget: Budget = BUDGET,
    seed: Seed = 0,
    pin: Pins = None,
    reduction: Reduction = None,  # whether dimensions that are summed over may be split
    profile: ProfileOption = None,
    alternatives: Annotated[
        float,
        typer.Option(
            metavar="S",
            min=0.0,
            help="Seconds to spend on other splits of the layers of the plan shown first.",
        ),
    ] = 10.0,
    json_progress: Annotated[
        bool, typer.Option("--progress", help="Print progress as lines of JSON on stderr.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a page that shows methods and plans: one HTML file that works offline."""
    from raddle.api import reporting
    from raddle.api.clusters import cluster as find_cluster
    from raddle.api.planning import method_names, read_search_settings
    from raddle.reports.page.summary import summary
    from raddle.reports.tables.plan_metrics import show_report

    names = None if methods is None and (plan or run) else method_names(methods)
    settings = read_search_settings(
        names or [], bn=bn, sync=sync, precision=precision, optimizer=optimizer, budget=budget, seed=seed,
        pins=pin, reduction=reduction, profile=profile,
    )  # fmt: skip
    check_folder(output)
    runs = _read_runs(run or ())
    paths = list(dict.fromkeys([*(plan or ()), *runs]))
    if paths:
        if batch is not None:
            raise InputError(
                "the batch is the plans' own: leave out --batch, or plan again for it."
            )
        results = _load(paths, cluster, model, settings.profile)
        title = f"{model or results[0].plan.model} on {results[0].cluster.name}"
        with progress(title, as_lines=json_progress) as on_progress:
            data = reporting.report_results(
                results, output, names, settings, names=paths, runs=runs, alternatives=alternatives,
                on_progress=on_progress,
            )  # fmt: skip
    else:
        if model is None or cluster is None:
            raise InputError(
                "name a model and a cluster, as `raddle report vgg16 --cluster p100:4x4`, or a plan "
                "with --plan."
            )
        where = find_cluster(cluster)
        graph = capture_with_spinner(model, batch)
        with progress(f"{model} on {where.name}", as_lines=json_progress) as on_progress:
            data = reporting.report_methods(
                graph, where, names or (), output, settings, alternatives=alternatives,
                on_progress=on_progress,
            )  # fmt: skip
    show(summary(data, output), show_report, as_json=as_json)


def _read_runs(runs: "Sequence[str]") -> "dict[str, Mapping[str, Any]]":
    """Return measured runs by the path of their plan; runs: paths of outputs of `raddle run --json`."""
    from raddle.reports.page.measured_run import read_run

    return {str(result["plan"]): result for result in map(read_run, runs)}


def _load(
    paths: "Sequence[str]", cluster: str | None, model: str | None, profile: "Profile | None"
) -> "list[PlanResult]":
    """Return the plans of several plan files, with the graph of the model and the cluster of the first."""
    from raddle.api.loading import load_plans
    from raddle.reports.progress import spinner

    with spinner(f"capturing the model of {paths[0]}"):
        return load_plans(paths, cluster=cluster, model=model, profile=profile)
