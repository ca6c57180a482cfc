"""The verb `explain`."""

from typing import Annotated

import typer

from raddle.api.loading import load_measured, load_plan
from raddle.cli.options import Json, OtherCluster, OtherModel, ProfileOption
from raddle.cli.output import show
from raddle.cli.planning import compile_searches
from raddle.cli.running import PlanFile


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
    from raddle.reports import explaining, terminal
    from raddle.searches.explanation.operator import explain_op, find_ops
    from raddle.searches.explanation.whole import explain_plan

    measured = load_measured(profile)
    graph, made, on = load_plan(plan, cluster=cluster, model=model)
    if op is None:
        with terminal.progress(f"explaining {plan}"):
            result = explain_plan(graph, made, on, measured)
        show(result, explaining.show_plan, as_json=as_json)
        return
    find_ops(graph, op)  # before anything is compiled
    if made.devices <= len(on.devices):
        compile_searches()
    with terminal.progress(f"explaining '{op}' in {plan}"):
        result = explain_op(graph, made, on, op, measured)
    show(result, explaining.show_op, as_json=as_json)
