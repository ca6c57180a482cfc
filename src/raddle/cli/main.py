"""The command line: one function a verb, each with a table for people and `--json` for scripts.

torch is imported inside the verbs that need it, so that `raddle --help` answers at once.
"""

import pathlib
import sys
import warnings
from typing import Annotated, Any

import typer

from raddle.api.loading import capture_model, load_measured, load_plan
from raddle.cli import (
    explaining,
    partitioning,
    planning,
    reporting,
    reproducing,
    running,
    scheduling,
    serving,
)
from raddle.cli.lab import app as lab_app
from raddle.cli.options import Json, OtherCluster, OtherModel, ProfileOption
from raddle.cli.output import check_folder, show
from raddle.errors import FailedCandidate, InputError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # a traceback is a mistake in raddle: show all of it
    rich_markup_mode=None,
)


def main() -> None:
    """Run the verb; a sentence and exit code 2 for what the user can mend."""
    warnings.formatwarning = _format_warning
    try:
        app(prog_name="raddle")
    except InputError as error:
        print(f"raddle: {error}", file=sys.stderr)
        sys.exit(2)


_format = warnings.formatwarning


def _format_warning(
    message: Warning | str, category: type[Warning], *where: Any, **line: Any
) -> str:
    """A candidate that failed is a sentence; where that was is in it already."""
    if issubclass(category, FailedCandidate):
        return f"raddle: {message}\n"
    return _format(message, category, *where, **line)


@app.callback()
def raddle() -> None:
    """Find the fastest way to train a PyTorch module on a cluster, simulate it and run it."""


@app.command()
def models(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="A model of the zoo or file.py:function."),
    ] = None,
    batch: Annotated[int | None, typer.Option(metavar="B", min=1, help="Global batch.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON alone on stdout.")] = False,
) -> None:
    """List the zoo, or show a model layer by layer."""
    from raddle.reports import terminal

    if name is None:
        show(_zoo(), terminal.show_models, as_json=as_json)
    else:
        with terminal.progress(f"capturing {name}"):
            description = _describe(name, batch)
        show(description, terminal.show_model, as_json=as_json)


@app.command()
def clusters(
    spec: Annotated[
        str | None,
        typer.Argument(
            metavar="CLUSTER", help="A preset, as p100:4x4, h100:16 or local:2, or a YAML file."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON alone on stdout.")] = False,
) -> None:
    """List the presets, or show a cluster: its devices, and the routes between them."""
    from raddle.clusters import cluster, presets
    from raddle.clusters.summary import summarise
    from raddle.reports import terminal

    if spec is None:
        show(presets(), terminal.show_clusters, as_json=as_json)
    else:
        show(summarise(cluster(spec)), terminal.show_cluster, as_json=as_json)


@app.command()
def probe(
    output: Annotated[
        str | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write the cluster as a YAML file."),
    ] = None,
    ranks: Annotated[int, typer.Option(metavar="N", help="Processes that share this machine.")] = 2,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Measure again, whatever is remembered.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Rough figures in a few seconds.")] = False,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="Measure this model's operators instead; see --profile."
        ),
    ] = None,
    batch: Annotated[int | None, typer.Option(metavar="B", min=1, help="Global batch.")] = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="C", help="Whose plans' tiles to measure: local:N.")
    ] = None,
    profile: Annotated[
        str, typer.Option(metavar="FILE", help="Where measured operators are kept.")
    ] = "profile.json",
    as_json: Annotated[bool, typer.Option("--json", help="JSON alone on stdout.")] = False,
) -> None:
    """Measure this machine: what N ranks compute at the same time, and how they talk.

    With --model, measure the operators of that model as the methods would split them.
    """
    if model is not None:
        _probe_operators(model, batch, cluster or f"local:{ranks}", profile, fresh, as_json)
        return
    from raddle.probe import describe
    from raddle.probe import probe as measure
    from raddle.probe.output import check, write
    from raddle.reports import terminal

    if output is not None:
        check(output)  # before the work, and not after it
    with terminal.progress_bar("probing") as heard:
        measured = measure(ranks, quick=quick, fresh=fresh, heard=heard)
    if output is not None:
        write(measured, output)
    result = {**measured, "cluster": describe(measured), "file": output}
    show(result, terminal.show_probe, as_json=as_json)


@app.command()
def simulate(
    path: Annotated[str, typer.Argument(metavar="PLAN", help="A plan file.")],
    cluster: OtherCluster = None,
    trace: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write a trace for Perfetto, as t.json.gz."),
    ] = None,
    model: OtherModel = None,
    profile: ProfileOption = None,
    as_json: Json = False,
) -> None:
    """Simulate a plan: the time of a step, where each device spends it, what is sent."""
    from raddle.reports import terminal
    from raddle.searches.figures import details, judge

    measured = load_measured(profile)
    if trace is not None:
        check_folder(trace)
    graph, made, on = load_plan(path, cluster=cluster, model=model)
    with terminal.progress(f"simulating {path}"):
        timeline = judge(graph, made, on, measured)
    if trace is not None:
        from raddle.simulation.trace import write_trace

        write_trace(timeline, trace)
    show({**details(timeline), "trace": trace}, terminal.show_simulation, as_json=as_json)


app.command()(planning.plan)
app.command()(planning.compare)
app.command()(scheduling.schedule)
app.command()(partitioning.partition)
app.command()(partitioning.export)
app.command()(explaining.explain)
app.command()(reporting.report)
app.command()(serving.serve)
app.command()(running.run)
app.command()(running.verify)
app.command()(reproducing.reproduce)
app.add_typer(lab_app, name="lab")


def _probe_operators(
    model: str, batch: int | None, on: str, path: str, fresh: bool, as_json: bool
) -> None:
    """Measures operators into a profile file, which keeps what it holds already."""
    import os

    import torch

    from raddle import clusters
    from raddle.costs.profile import Profile, load_profile
    from raddle.reports import terminal
    from raddle.searches.measuring import profile_methods

    check_folder(path)
    machine = clusters.cluster(on)
    known = load_profile(path) if pathlib.Path(path).exists() and not fresh else Profile()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // len(machine.devices)))
    with terminal.progress(f"capturing {model}"):
        graph = capture_model(model, batch)
    with terminal.progress_bar(f"measuring {model}") as heard:
        found = profile_methods(graph, machine, known=known, heard=heard)
    found.save(path)
    entries, new = len(found.seconds), len(found.seconds) - len(known.seconds)
    result = {"model": model, "profile": path, "entries": entries, "measured": new}
    show(result, terminal.show_profile, as_json=as_json)


def _zoo() -> list[dict[str, str]]:
    from raddle import zoo

    return [{"name": name} for name in zoo.names()]


def _describe(name: str, batch: int | None) -> dict[str, Any]:
    from raddle.reports.models import describe

    return describe(capture_model(name, batch))
