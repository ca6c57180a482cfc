"""The verb `compare`: makes a plan with each method, and prints the predicted metrics as one table."""

from raddle.api.defaults import COMPARE_SECONDS as BUDGET
from raddle.cli.options import (
    Batch,
    Budget,
    ClusterOption,
    CompileOption,
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
from raddle.cli.preparation import progress


def compare(
    model: Model,
    cluster: ClusterOption,
    batch: Batch = None,
    methods: Methods = None,
    bn: Statistics = "local",  # batch norm: over the samples of a device, or of the whole batch
    sync: Sync = "auto",
    precision: PrecisionOption = "float32",
    optimizer: OptimizerOption = "sgd",
    compile: CompileOption = False,  # predicts a run with torch.compile
    budget: Budget = BUDGET,
    seed: Seed = 0,
    pin: Pins = None,
    reduction: Reduction = None,  # whether dimensions that are summed over may be split
    profile: ProfileOption = None,
    as_json: Json = False,
) -> None:
    """Compare methods: one row for each, with step time, bytes sent and peak memory."""
    from raddle.api import comparing
    from raddle.api.planning import method_names
    from raddle.reports.tables.plan_metrics import show_comparison

    with progress(f"{model} on {cluster}") as on_progress:
        comparison = comparing.compare(
            model, batch, cluster=cluster, methods=method_names(methods), bn=bn, sync=sync,
            precision=precision, optimizer=optimizer, compile=compile, budget=budget, seed=seed,
            pins=pin or (), reduction=reduction, profile=profile, on_progress=on_progress,
        )  # fmt: skip
    show(comparison.rows, show_comparison, as_json=as_json)
