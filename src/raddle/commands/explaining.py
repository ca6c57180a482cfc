"""The verb `explain`."""

from typing import Annotated

import typer

from raddle.commands.loading import load_measured, load_plan
from raddle.commands.options import Json, ProfileOption
from raddle.commands.output import show
from raddle.commands.running import PlanFile


def explain(
    plan: PlanFile,
    op: Annotated[
        str | None,
        typer.Argument(metavar="OP", help="An operator or module, to see what else it could be."),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="C", help="Another cluster than the plan's own.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="FILE.PY:FUNCTION", help="The model, if its name has changed."),
    ] = None,
    profile: ProfileOption = None,
    as_json: Json = False,
) -> None:
    """Say where a plan's time goes against data parallel, or what another split of OP would cost."""
    from raddle.explanation.operator import explain_op, find_ops
    from raddle.explanation.whole import explain_plan
    from raddle.report import explaining, terminal

    measured = load_measured(profile)
    graph, made, on = load_plan(plan, cluster=cluster, model=model)
    if op is None:
        with terminal.progress(f"explaining {plan}"):
            result = explain_plan(graph, made, on, measured)
        show(result, explaining.show_plan, as_json=as_json)
        return
    find_ops(graph, op)  # before anything is compiled
    if made.devices <= len(on.devices):
        _say_if_slow()
    with terminal.progress(f"explaining '{op}' in {plan}"):
        result = explain_op(graph, made, on, op, measured)
    show(result, explaining.show_op, as_json=as_json)


def _say_if_slow() -> None:
    """What times alternatives is compiled on its first use on a machine; who waits is told why."""
    from raddle.evaluation.compiling import is_compiled

    if not is_compiled():
        typer.echo("raddle: compiling the search, once on this machine (about 20 s)", err=True)
