"""The verb `explain`: says where a plan's time goes, or what other splits of an operator would cost."""

from typing import Annotated

import typer

from raddle.cli.options import Json, OtherCluster, OtherModel, PlanFile, ProfileOption
from raddle.cli.output import show
from raddle.cli.preparation import load_plan_with_spinner, warm_up_jit


def explain(
    plan: PlanFile,
    op: Annotated[
        str | None,
        typer.Argument(metavar="OP", help="An operator or module whose other splits are shown."),
    ] = None,
    cluster: OtherCluster = None,
    model: OtherModel = None,
    profile: ProfileOption = None,
    as_json: Json = False,
) -> None:
    """Show where a plan's time goes compared with data parallelism, or the cost of other splits of OP."""
    from raddle.api.explaining import explain_op, explain_plan, find_ops
    from raddle.api.jit_warmup import EVALUATOR
    from raddle.api.loading import load_optional_profile
    from raddle.reports import explanation
    from raddle.reports.progress import spinner

    measured_profile = load_optional_profile(profile)
    graph, loaded_plan, target_cluster = load_plan_with_spinner(plan, cluster, model)
    if op is None:
        with spinner(f"explaining {plan}"):
            result = explain_plan(graph, loaded_plan, target_cluster, measured_profile)
        show(result, explanation.show_plan, as_json=as_json)
        return
    find_ops(graph, op)  # an unknown operator is an error before the slow JIT compilation
    if loaded_plan.devices <= len(target_cluster.devices):
        # The numba functions of the fast simulation. With too few devices, `explain_op` raises an error.
        warm_up_jit([EVALUATOR])
    with spinner(f"explaining '{op}' in {plan}"):
        result = explain_op(graph, loaded_plan, target_cluster, op, measured_profile)
    show(result, explanation.show_op, as_json=as_json)
