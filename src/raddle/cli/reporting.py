"""The verb `report`."""

import pathlib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raddle.api.loading import capture_model, load_plan
from raddle.cli.options import (
    Batch,
    Budget,
    Json,
    Pins,
    ProfileOption,
    Reduction,
    Seed,
    Statistics,
    Sync,
)
from raddle.cli.output import check_folder, show
from raddle.cli.planning import (
    COMPARE_BUDGET,
    compile_partitioners,
    compile_searches,
    settings_of,
)
from raddle.errors import InputError
from raddle.files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raddle.clusters import Cluster
    from raddle.graph.graph import Graph
    from raddle.reports.page.data import PageData
    from raddle.reports.page.gathering import Given


def report(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL", help="A model of the zoo or file.py:function; else the plans' own."
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="C", help="A preset, as p100:4x4, or a YAML file; else the plans'."),
    ] = None,
    batch: Batch = None,
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,…", help="Methods; all if none are named, and `data` beside given plans."
        ),
    ] = None,
    plan: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="A plan file. Repeatable.")
    ] = None,
    run: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE", help="What `raddle run PLAN --json` printed, measured. Repeatable."
        ),
    ] = None,
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="FILE", help="Where the page is written.")
    ] = "report.html",
    bn: Statistics = "local",
    sync: Sync = "allreduce",
    budget: Budget = COMPARE_BUDGET,
    seed: Seed = 0,
    pin: Pins = None,
    reduction: Reduction = None,
    profile: ProfileOption = None,
    alternatives: Annotated[
        float,
        typer.Option(
            metavar="S",
            min=0.0,
            help="Seconds for other splits of the layers of the plan that opens.",
        ),
    ] = 10.0,
    told: Annotated[
        bool, typer.Option("--progress", help="Progress as lines of JSON on stderr.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a page that shows methods and plans: one HTML file that needs no network."""
    from dataclasses import replace

    from raddle.reports import terminal
    from raddle.reports.page import gathering, html
    from raddle.searches.planning import PARTITIONS

    names = _method_names(methods, model, bool(plan or run))
    settings = settings_of(names, bn, sync, budget, seed, pin, reduction, profile)
    check_folder(output)
    graph, on, given = _load(model, cluster, batch, plan or (), run or ())
    if given and methods is None and any(g.plan.method == "data" for g in given):
        names = []
    if given:
        first = given[0].plan
        settings = replace(settings, bn=first.bn, sync=first.sync, optimizer=first.optimizer)
    compile_searches()
    if any(name in PARTITIONS for name in names):
        compile_partitioners()
    title = model or given[0].plan.model or graph.name
    bar = terminal.progress_lines if told else terminal.progress_bar
    with bar(f"{title} on {on.name}") as heard:
        data = gathering.gather(
            graph, on, given, names, model=title, settings=settings, alternatives=alternatives,
            heard=heard,
        )  # fmt: skip
    write_atomically(output, html.page(data))
    show(_summary(data, output), terminal.show_report, as_json=as_json)


def _method_names(methods: str | None, model: str | None, given: bool) -> list[str]:
    from raddle.searches.baselines import METHODS
    from raddle.searches.planning import SEARCHES

    if methods is not None:
        return [name.strip() for name in methods.split(",")]
    return ["data"] if given else [*METHODS, *SEARCHES]


def _load(
    model: str | None,
    cluster: str | None,
    batch: int | None,
    plans: "Sequence[str]",
    runs: "Sequence[str]",
) -> "tuple[Graph, Cluster, list[Given]]":
    """The model at the plans' batch, the cluster, and the given plans with what was measured of them."""
    from raddle import clusters
    from raddle.plans import file
    from raddle.plans.pipelining import micro_graph
    from raddle.reports import terminal
    from raddle.reports.page.gathering import Given
    from raddle.reports.page.measured import read_run

    measured = {str(result["plan"]): result for result in map(read_run, runs)}
    paths = list(dict.fromkeys([*plans, *measured]))
    if not paths:
        if model is None or cluster is None:
            raise InputError(
                "name a model and a cluster, as `raddle report vgg16 --cluster p100:4x4`, or a plan "
                "with --plan."
            )
        on = clusters.cluster(cluster)
        with terminal.progress(f"capturing {model}"):
            return capture_model(model, batch), on, []
    if batch is not None:
        raise InputError("the batch is the plans' own: leave out --batch, or plan again for it.")
    micro, first, on = load_plan(paths[0], cluster=cluster, model=model)
    graph = micro.at(first.batch) if first.batch else micro
    read = [file.read(path) for path in paths[1:]]
    rest = [file.from_dict(data, micro_graph(graph, data)) for data in read]
    given = [
        Given(plan, path, measured.get(path))
        for path, plan in zip(paths, [first, *rest], strict=True)
    ]
    return graph, on, given


def _summary(data: "PageData", output: str) -> dict[str, Any]:
    """The figures that the page shows, for scripts."""
    from raddle.searches.figures import FIGURES

    plain = data.plain
    keys = (
        "label", "method", *FIGURES, "bn", "sync", "lower_bound_ms", "error", "average", "bytes",
        "sentences",
    )  # fmt: skip
    return {
        "file": output,
        "bytes": pathlib.Path(output).stat().st_size,
        "model": plain["model"],
        "batch": plain["batch"],
        "cluster": plain["cluster"]["name"],
        "best": plain["methods"][plain["best"]]["label"],
        "opens": plain["methods"][plain["opens"]]["label"],
        "methods": [
            {
                **{key: method.get(key) for key in keys},
                "measured_ms": (method["measured"] or {}).get("step_ms"),
            }
            for method in plain["methods"]
        ],
    }
