"""The verb `explain`."""

from typing import Annotated

import typer

from raddle.cli.options import Json, OtherCluster, OtherModel, PlanFile, ProfileOption
from raddle.cli.output import show
from raddle.cli.waiting import compile_once, loaded


def explain(
    plan: PlanFile,
    op: Annotated[
        str | None,
        typer.Argument(metavar="OP", help="An operator or module, to see what else it could be."),
    ] = None,
    cluster: OtherCluster = None,
    model: OtherModel = None,
    profile: ProfileOption = None,
    as_json: Json = False,
) -> None:
    """Say where a plan's time goes against data parallel, or what another split of OP would cost."""
    from raddle.api.compiling import EVALUATOR
    from raddle.api.explaining import explain_op, explain_plan, find_ops
    from raddle.api.loading import load_measured
    from raddle.reports import explaining
    from raddle.reports.progress import progress

    measured = load_measured(profile)
    graph, made, on = loaded(plan, cluster, model)
    if op is None:
        with progress(f"explaining {plan}"):
            result = explain_plan(graph, made, on, measured)
        show(result, explaining.show_plan, as_json=as_json)
        return
    find_ops(graph, op)  # before anything is compiled
    if made.devices <= len(on.devices):
        compile_once([EVALUATOR])
    with progress(f"explaining '{op}' in {plan}"):
        result = explain_op(graph, made, on, op, measured)
    show(result, explaining.show_op, as_json=as_json)
