"""The verbs `partition` and `export`."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from raddle.api.loading import capture_model, load_measured
from raddle.cli.options import Batch, Json, Model, ProfileOption, Seed
from raddle.cli.output import check_folder, show
from raddle.cli.planning import compile_partitioners
from raddle.errors import InputError

if TYPE_CHECKING:
    from raddle.graph.graph import Graph
    from raddle.searches.hypergraph.answers import Partitioner

Weights = Annotated[
    str,
    typer.Option(
        metavar="flops|time|both|FILE", help="The work that is balanced; a file has it by layer."
    ),
]
Connected = Annotated[
    bool, typer.Option("--connected-as-one", help="Fully connected layers are never split.")
]
Device = Annotated[
    str, typer.Option("--cluster", metavar="C", help="Whose first device --weights time means.")
]


def partition(
    model: Model,
    parts: Annotated[str, typer.Option("-k", metavar="N,M,…", help="Numbers of parts.")],
    method: Annotated[
        str,
        typer.Option(metavar="A,B,…", help="Methods; `all` for all."),
    ] = "coarse",
    epsilon: Annotated[
        float, typer.Option(metavar="E", min=0.0, help="Work of a part over the average, less 1.")
    ] = 0.1,
    batch: Batch = None,
    budget: Annotated[
        float, typer.Option(metavar="S", min=0.0, help="Seconds of each solver, about.")
    ] = 10.0,
    seed: Seed = 0,
    weights: Weights = "flops",
    connected_as_one: Connected = False,
    cluster: Device = "p100:1x1",
    profile: ProfileOption = None,
    as_json: Json = False,
) -> None:
    """Partition filters and channels: work and communication of each method, as tables.

    Methods: layerwise, filter-horizontal, filter-incremental, channel-incremental, coarse, fine, mixed.
    """
    from raddle.reports import partitions, terminal
    from raddle.searches.hypergraph.answers import METHODS, Asked, row

    names = list(METHODS) if method == "all" else [name.strip() for name in method.split(",")]
    for name in names:
        if name not in METHODS:
            raise InputError(f"no method '{name}': choose {', '.join(METHODS)}.")
    counts = _counts(parts)
    with terminal.progress(f"capturing {model}"):
        graph = capture_model(model, batch)
    partitioner = _partitioner(graph, weights, connected_as_one, cluster, profile)
    if any(name in ("coarse", "fine", "mixed") for name in names):
        compile_partitioners()
    rows: list[dict[str, Any]] = []
    with terminal.progress_bar(f"partitioning {model}") as heard:
        for done, (name, count) in enumerate((n, c) for n in names for c in counts):
            heard({"step": f"{name} in {count}", "done": done, "of": len(names) * len(counts)})
            asked = Asked(count, epsilon=epsilon, budget=budget, seed=seed)
            try:
                found = row(partitioner.answer(name, asked), epsilon)
            except InputError as error:
                if len(names) * len(counts) == 1:
                    raise
                found = {"method": name, "parts": count, "error": str(error)}
            rows.append({"model": model, "batch": graph.batch, "epsilon": epsilon, **found})
    show(rows, partitions.show_partitions, as_json=as_json)


def export(
    model: Model,
    to: Annotated[str, typer.Option(metavar="patoh|hmetis", help="The format.")],
    output: Annotated[str, typer.Option("-o", "--output", metavar="FILE", help="Where to.")],
    grain: Annotated[
        str, typer.Option(metavar="coarse|fine", help="Vertices: filters, or their channels.")
    ] = "coarse",
    batch: Batch = None,
    weights: Weights = "flops",
    connected_as_one: Connected = False,
    cluster: Device = "p100:1x1",
    profile: ProfileOption = None,
    as_json: Json = False,
) -> None:
    """Write a model's hypergraph for another partitioner; `plan --from-partition` takes its answer."""
    from raddle.reports import partitions, terminal
    from raddle.searches.hypergraph import explicit, files

    if to not in files.FORMATS:
        raise InputError(f"no format '{to}': choose {' or '.join(files.FORMATS)}.")
    if grain not in ("coarse", "fine"):
        raise InputError(f"the grain is '{grain}': choose coarse or fine.")
    check_folder(output)
    with terminal.progress(f"capturing {model}"):
        graph = capture_model(model, batch)
    own = _partitioner(graph, weights, connected_as_one, cluster, profile)
    with terminal.progress(f"writing {output}"):
        spelt = getattr(explicit, grain)(own.network, own.model)
        files.write_hypergraph(spelt, output, to)
    result = {
        "model": model, "file": output, "format": to, "grain": grain,
        "vertices": len(spelt.weight), "nets": len(spelt.cost), "pins": len(spelt.pins),
    }  # fmt: skip
    show(result, partitions.show_export, as_json=as_json)


def _counts(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdigit() and 0 < int(word) <= 4096 for word in words):
        raise InputError(f"-k is '{text}': give numbers of parts from 1 to 4096, as 2,4,8.")
    return [int(word) for word in words]


def _partitioner(
    graph: "Graph", weights: str, connected_as_one: bool, cluster: str, profile: str | None
) -> "Partitioner":
    from raddle import clusters
    from raddle.searches.hypergraph.answers import Partitioner
    from raddle.searches.hypergraph.weights import layer_work

    plain = Partitioner(graph, connected_as_one=connected_as_one)
    if weights == "flops":
        return plain
    device = clusters.cluster(cluster).devices[0]
    work = layer_work(graph, plain.network, weights, device, load_measured(profile))
    return Partitioner(graph, work, connected_as_one=connected_as_one)
