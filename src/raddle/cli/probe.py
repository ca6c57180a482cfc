"""The verb `probe`: measures this machine, or the blocks or operators of a model on it."""

from typing import Annotated

import typer

from raddle.cli.options import Batch, Json, PrecisionOption
from raddle.cli.output import check_folder, show
from raddle.cli.preparation import capture_with_spinner
from raddle.errors import InputError


def probe(
    output: Annotated[
        str | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Write the measured cluster to this YAML file."
        ),
    ] = None,
    ranks: Annotated[
        int, typer.Option(metavar="N", help="Number of processes that share this machine.")
    ] = 2,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Measure again, even if there are cached results.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Rough measurements, in a few seconds.")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Measure this model instead, as it runs on one device, into the file of --profile.",
        ),
    ] = None,
    precision: PrecisionOption = "float32",
    compile: Annotated[
        bool, typer.Option("--compile", help="With --model: through torch.compile, as GPUs run it.")
    ] = False,
    operators: Annotated[
        bool,
        typer.Option(
            "--operators",
            help="With --model: one operator at a time, as the methods split them, on the CPU.",
        ),
    ] = False,
    batch: Batch = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="C",
            help="With --model: the cluster that plans are for; default: local:RANKS.",
        ),
    ] = None,
    profile: Annotated[
        str, typer.Option(metavar="FILE", help="With --model: the file for the measured times.")
    ] = "profile.json",
    as_json: Json = False,
) -> None:
    """Measure this machine: the speed of N ranks that compute at the same time, and of their messages.

    With --model, measure what a device runs: the blocks of that model, forward and backward, in their
    precision. Plans for other batches and for tiles are predicted from them.
    """
    if model is None and (operators or compile):
        raise InputError("--operators and --compile are for --model: name one.")
    if operators and (compile or precision != "float32"):
        raise InputError(
            "--operators measures single operators in float32, not compiled: drop --operators."
        )
    if model is not None and operators:
        _measure_operators(model, batch, cluster or f"local:{ranks}", profile, fresh, as_json)
        return
    if model is not None:
        _measure_blocks(
            model, batch, cluster or f"local:{ranks}", profile, precision, compile, as_json
        )
        return
    from raddle.api import probing
    from raddle.reports.progress import progress_bar
    from raddle.reports.tables.probe import show_probe

    if output is not None:
        probing.check_output(output)  # before the measurements, which take long
    with progress_bar("probing") as on_progress:
        measured = probing.probe(ranks, quick=quick, fresh=fresh, on_progress=on_progress)
    if output is not None:
        probing.write_probe(measured, output)
    result = {**measured, "cluster": probing.describe(measured), "file": output}
    show(result, show_probe, as_json=as_json)


def _measure_operators(
    model: str, batch: int | None, cluster: str, path: str, fresh: bool, as_json: bool
) -> None:
    """Measure a model's operators, write their times to the profile file `path`, and print the counts.

    fresh: discard all measurements that the file has already; else they are kept and not repeated.
    """
    from raddle.api import clusters
    from raddle.api.probing import measure_operators
    from raddle.reports.progress import progress_bar
    from raddle.reports.tables.probe import show_profile

    check_folder(path)
    target_cluster = clusters.cluster(cluster)
    graph = capture_with_spinner(model, batch)
    with progress_bar(f"measuring {model}") as on_progress:
        # entries: number of measurements (of tiles of operators) in the file; new: those made now
        entries, new = measure_operators(
            graph, target_cluster, path, fresh=fresh, on_progress=on_progress
        )
    result = {"model": model, "profile": path, "entries": entries, "measured": new}
    show(result, show_profile, as_json=as_json)


def _measure_blocks(
    model: str,
    batch: int | None,
    cluster: str,
    path: str,
    precision: str,
    compile: bool,
    as_json: bool,
) -> None:
    """Measure a model's blocks, write them to the profile file `path`, and print their number."""
    from raddle.api import clusters
    from raddle.api.probing import measure_blocks
    from raddle.reports.progress import progress_bar
    from raddle.reports.tables.probe import show_blocks

    check_folder(path)
    target_cluster = clusters.cluster(cluster)
    with progress_bar(f"measuring {model}") as on_progress:
        count = measure_blocks(
            model, batch, target_cluster, path, precision=precision, compile=compile,
            on_progress=on_progress,
        )  # fmt: skip
    result = {
        "model": model,
        "profile": path,
        "blocks": count,
        "precision": precision,
        "compiled": compile,
        "cluster": cluster,
    }
    show(result, show_blocks, as_json=as_json)
