"""The verb `compare`: makes a plan with each method, and prints the predicted metrics as one table."""

from raddle.api.defaults import COMPARE_SECONDS as BUDGET
from raddle.cli.options import (
    Batch,
    Budget,
    ClusterOption,
    Json,
    Methods,
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
from raddle.cli.output import show
from raddle.cli.preparation import capture_with_spinner, warm_up_jit


def compare(
    model: Model,
    cluster: ClusterOption,
    batch: Batch = None,
    methods: Methods = None,
    bn: Statistics = "local",  # batch norm: over the samples of a device, or of the whole batch
    sync: Sync = "auto",
    precision: PrecisionOption = "float32",
    optimizer: OptimizerOption = "sgd",
    budget: Budget = BUDGET,
    seed: Seed = 0,
    pin: Pins = None,
    reduction: Reduction = None,  # whether dimensions that are summed over may be split
    profile: ProfileOption = None,
    as_json: Json = False,
) -> None:
    """Compare methods: one row for each, with step time, bytes sent and peak memory."""
    from raddle.api import clusters, planning
    from raddle.api.jit_warmup import jit_functions_for
    from raddle.reports.progress import progress_bar
    from raddle.reports.tables.plan_metrics import show_comparison

    names = planning.method_names(methods)
    settings = planning.read_search_settings(
        names, bn=bn, sync=sync, precision=precision, optimizer=optimizer, budget=budget, seed=seed,
        pins=pin, reduction=reduction, profile=profile,
    )  # fmt: skip
    target_cluster = clusters.cluster(cluster)
    graph = capture_with_spinner(model, batch)
    warm_up_jit(jit_functions_for(names))  # the numba functions that these methods use
    with progress_bar(f"{model} on {target_cluster.name}") as on_progress:
        # rows: for each method, the name of a metric -> its value
        rows = planning.compare(
            graph, target_cluster, names, on_progress=on_progress, model=model, settings=settings
        )
    show(rows, show_comparison, as_json=as_json)
