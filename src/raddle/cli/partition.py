"""The verb `partition`: partitions a model's filters and channels with several methods.

A part is the work of one device. The methods coarse, fine and mixed are solvers: they search until a
time limit. The other methods follow a rule.
"""

from typing import Annotated

import typer

from raddle.cli.options import Batch, Connected, DeviceOf, Json, Model, ProfileOption, Seed, Weights
from raddle.cli.output import show
from raddle.cli.preparation import capture_with_spinner, warm_up_jit
from raddle.errors import InputError


def partition(
    model: Model,
    parts: Annotated[
        str, typer.Option("-k", metavar="N,M,…", help="Numbers of parts, such as 2,4,8.")
    ],
    method: Annotated[
        str,
        typer.Option(metavar="A,B,…", help="Methods, or `all`."),
    ] = "coarse",
    epsilon: Annotated[
        float,
        typer.Option(
            metavar="E",
            min=0.0,
            help="Allowed imbalance: 0.1 lets a part have 10 % more work than the average.",
        ),
    ] = 0.1,
    batch: Batch = None,
    budget: Annotated[
        float, typer.Option(metavar="S", min=0.0, help="Seconds for each solver, approximately.")
    ] = 10.0,
    seed: Seed = 0,
    weights: Weights = "flops",
    connected_as_one: Connected = False,
    cluster: DeviceOf = "p100:1x1",  # its first device gives the times of --weights time or both
    profile: ProfileOption = None,
    as_json: Json = False,
) -> None:
    """Partition filters and channels, and print the work and communication of each method.

    Methods: layerwise, filter-horizontal, filter-incremental, channel-incremental, coarse, fine, mixed.
    """
    from raddle.api import partitioning
    from raddle.api.jit_warmup import jit_functions_for
    from raddle.reports.partitions import show_partitions
    from raddle.reports.progress import progress_bar

    names = [name.strip() for name in method.split(",")]
    names = list(partitioning.METHODS) if method == "all" else names
    partitioning.check_methods(names)
    counts = _counts(parts)  # a table row for each method and each number of parts
    graph = capture_with_spinner(model, batch)
    partitioner = partitioning.build_partitioner(
        graph, weights, connected_as_one=connected_as_one, cluster=cluster, profile=profile
    )
    warm_up_jit(jit_functions_for(names))  # the numba functions that these methods use
    with progress_bar(f"partitioning {model}") as on_progress:
        rows = partitioning.partition_table(
            partitioner,
            names,
            counts,
            epsilon=epsilon,
            budget=budget,
            seed=seed,
            on_progress=on_progress,
        )
    show([{"model": model, **row} for row in rows], show_partitions, as_json=as_json)


def _counts(text: str) -> list[int]:
    """Return the numbers of parts in a text such as "2,4,8"."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdigit() and 0 < int(word) <= 4096 for word in words):
        raise InputError(f"-k is '{text}': give numbers of parts from 1 to 4096, as 2,4,8.")
    return [int(word) for word in words]
