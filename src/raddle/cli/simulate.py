"""The verb `simulate`: simulates a plan on a cluster."""

from typing import Annotated

import typer

from raddle.cli.options import (
    Json,
    OtherCluster,
    OtherModel,
    OtherOptimizer,
    OtherPrecision,
    PlanFile,
    ProfileOption,
)
from raddle.cli.output import check_folder, show
from raddle.cli.preparation import load_plan_with_spinner


def simulate(
    plan: PlanFile,
    cluster: OtherCluster = None,
    trace: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write a trace for Perfetto, such as t.json.gz."),
    ] = None,
    model: OtherModel = None,
    profile: ProfileOption = None,
    precision: OtherPrecision = None,
    optimizer: OtherOptimizer = None,
    as_json: Json = False,
) -> None:
    """Simulate a plan: the step time, where each device spends it, and the largest transfers."""
    from raddle.api.plan_result import simulate as simulate_result
    from raddle.api.simulating import details, write_trace
    from raddle.reports.progress import spinner
    from raddle.reports.tables.plan_metrics import show_simulation

    if trace is not None:
        check_folder(trace)
    result = load_plan_with_spinner(plan, cluster, model, profile)
    with spinner(f"simulating {plan}"):
        timeline = simulate_result(result, precision=precision, optimizer=optimizer)
    if trace is not None:
        write_trace(timeline, trace)
    show({**details(timeline), "trace": trace}, show_simulation, as_json=as_json)
