"""The verb `compare`."""

from raddle.api.defaults import COMPARE_SECONDS as BUDGET
from raddle.cli.options import (
    Batch,
    Budget,
    ClusterOption,
    Json,
    Methods,
    Model,
    Pins,
    ProfileOption,
    Reduction,
    Seed,
    Statistics,
    Sync,
)
from raddle.cli.output import show
from raddle.cli.waiting import captured, compile_once


def compare(
    model: Model,
    cluster: ClusterOption,
    batch: Batch = None,
    methods: Methods = None,
    bn: Statistics = "local",
    sync: Sync = "auto",
    budget: Budget = BUDGET,
    seed: Seed = 0,
    pin: Pins = None,
    reduction: Reduction = None,
    profile: ProfileOption = None,
    as_json: Json = False,
) -> None:
    """Compare methods: one row each, with the time of a step and what it moves."""
    from raddle.api import clusters, planning
    from raddle.api.compiling import compiled_for
    from raddle.reports.progress import progress_bar
    from raddle.reports.tables.figures import show_comparison

    names = planning.method_names(methods)
    settings = planning.settings_of(
        names, bn=bn, sync=sync, budget=budget, seed=seed, pins=pin, reduction=reduction,
        profile=profile,
    )  # fmt: skip
    on = clusters.cluster(cluster)
    graph = captured(model, batch)
    compile_once(compiled_for(names))
    with progress_bar(f"{model} on {on.name}") as heard:
        rows = planning.compare(graph, on, names, on_progress=heard, model=model, settings=settings)
    show(rows, show_comparison, as_json=as_json)
