"""The verb `simulate`: simulates a plan on a cluster."""

from dataclasses import replace
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
    from raddle.api.loading import load_optional_profile
    from raddle.api.planning import check_optimizer
    from raddle.api.simulating import details, simulate_steps, write_trace
    from raddle.reports.progress import spinner
    from raddle.reports.tables.plan_metrics import show_simulation

    measured_profile = load_optional_profile(profile)
    if trace is not None:
        check_folder(trace)
    graph, loaded_plan, target_cluster = load_plan_with_spinner(plan, cluster, model)
    loaded_plan = replace(
        loaded_plan, precision=precision or loaded_plan.precision,
        optimizer=optimizer or loaded_plan.optimizer,
    )  # fmt: skip
    check_optimizer(loaded_plan.optimizer)  # a precision is checked with the plan
    with spinner(f"simulating {plan}"):
        timeline = simulate_steps(graph, loaded_plan, target_cluster, measured_profile)
    if trace is not None:
        write_trace(timeline, trace)
    show({**details(timeline), "trace": trace}, show_simulation, as_json=as_json)
