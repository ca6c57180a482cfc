"""The verb `report`: writes an HTML page that compares methods and plans.

A given plan is one that the user names, by --plan or as the plan of a measured run (--run).
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

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
from raddle.cli.preparation import capture_with_spinner, warm_up_jit
from raddle.errors import InputError
from raddle.files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raddle.api.clusters import Cluster
    from raddle.api.models import Graph
    from raddle.reports.page.page_report import GivenPlan


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
    sync: Sync = "allreduce",
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
    from raddle.api.jit_warmup import EVALUATOR, jit_functions_for
    from raddle.api.planning import method_names, read_search_settings
    from raddle.reports.page import html, page_report
    from raddle.reports.page.summary import summary
    from raddle.reports.progress import progress_bar, progress_lines
    from raddle.reports.tables.plan_metrics import show_report

    names = ["data"] if methods is None and (plan or run) else method_names(methods)
    settings = read_search_settings(
        names, bn=bn, sync=sync, precision=precision, optimizer=optimizer, budget=budget, seed=seed,
        pins=pin, reduction=reduction, profile=profile,
    )  # fmt: skip
    check_folder(output)
    graph, target_cluster, given_plans = _load(model, cluster, batch, plan or (), run or ())
    if given_plans and methods is None and any(g.plan.method == "data" for g in given_plans):
        names = []  # data parallelism is among the given plans
    if given_plans:
        first = given_plans[0].plan  # the methods are compared under the settings of this plan
        settings = replace(
            settings, bn=first.bn, sync=first.sync, precision=first.precision,
            optimizer=first.optimizer,
        )  # fmt: skip
    # EVALUATOR: the numba functions of the fast simulation.
    warm_up_jit(dict.fromkeys([EVALUATOR, *jit_functions_for(names)]))
    # title: the model's name in the page
    title = model or given_plans[0].plan.model or graph.name
    bar = progress_lines if json_progress else progress_bar
    with bar(f"{title} on {target_cluster.name}") as on_progress:
        data = page_report.build_page_data(
            graph, target_cluster, given_plans, names, model=title, settings=settings,
            alternatives=alternatives, on_progress=on_progress,
        )  # fmt: skip
    write_atomically(output, html.render_page(data))
    show(summary(data, output), show_report, as_json=as_json)


def _load(
    model: str | None,
    cluster: str | None,
    batch: int | None,
    plans: "Sequence[str]",
    runs: "Sequence[str]",
) -> "tuple[Graph, Cluster, list[GivenPlan]]":
    """Return the model's graph, the cluster, and the given plans with their measured runs.

    plans: paths of plan files; runs: paths of outputs of `raddle run --json`, each of which names its plan.
    """
    from raddle.api import clusters
    from raddle.api.loading import load_plans
    from raddle.reports.page.measured_run import read_run
    from raddle.reports.page.page_report import GivenPlan
    from raddle.reports.progress import spinner

    # Path of a plan file -> its measured run
    measured = {str(result["plan"]): result for result in map(read_run, runs)}
    paths = list(dict.fromkeys([*plans, *measured]))
    if not paths:
        if model is None or cluster is None:
            raise InputError(
                "name a model and a cluster, as `raddle report vgg16 --cluster p100:4x4`, or a plan "
                "with --plan."
            )
        target_cluster = clusters.cluster(cluster)
        return capture_with_spinner(model, batch), target_cluster, []
    if batch is not None:
        raise InputError("the batch is the plans' own: leave out --batch, or plan again for it.")
    with spinner(f"capturing the model of {paths[0]}"):
        graph, loaded_plans, target_cluster = load_plans(paths, cluster=cluster, model=model)
    return (
        graph,
        target_cluster,
        [
            GivenPlan(p, path, measured.get(path))
            for p, path in zip(loaded_plans, paths, strict=True)
        ],
    )
