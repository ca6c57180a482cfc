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
    from raddle.api.explaining import find_ops
    from raddle.api.jit_warmup import EVALUATOR
    from raddle.reports import explanation
    from raddle.reports.progress import spinner

    result = load_plan_with_spinner(plan, cluster, model, profile)
    if op is not None:
        find_ops(result.graph, op)  # an unknown one is an error before the slow compilation
        if result.plan.devices <= len(result.cluster.devices):
            # The numba functions of the fast simulation. With too few devices, `explain` raises an error.
            warm_up_jit([EVALUATOR])
    with spinner(f"explaining {plan}"):
        explained = result.explain(op)
    show(explained, explanation.show_plan if op is None else explanation.show_op, as_json=as_json)
