"""The verb `export`: writes a model as a hypergraph for another partitioner.

A vertex of the hypergraph is work (a filter, or one input channel of it); a net joins the vertices that
use the same data; a pin is a vertex in a net.
"""

from typing import Annotated

import typer

from raddle.cli.options import Batch, Connected, DeviceOf, Json, Model, ProfileOption, Weights
from raddle.cli.output import check_folder, show
from raddle.cli.preparation import capture_with_spinner


def export(
    model: Model,
    to: Annotated[str, typer.Option(metavar="patoh|hmetis", help="The file format.")],
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="FILE", help="The file to write.")
    ],
    grain: Annotated[
        str,
        typer.Option(
            metavar="coarse|fine",
            help="A vertex is a filter (coarse), or one input channel of a filter (fine).",
        ),
    ] = "coarse",
    batch: Batch = None,
    weights: Weights = "flops",  # what the weight of a vertex is
    connected_as_one: Connected = False,
    cluster: DeviceOf = "p100:1x1",  # its first device gives the times of --weights time or both
    profile: ProfileOption = None,
    as_json: Json = False,
) -> None:
    """Write a model's hypergraph for another partitioner; `plan --from-partition` reads its result."""
    from raddle.api import partitioning
    from raddle.reports.partitions import show_export
    from raddle.reports.progress import spinner

    partitioning.check_export(to, grain)
    check_folder(output)
    graph = capture_with_spinner(model, batch)
    partitioner = partitioning.build_partitioner(
        graph, weights, connected_as_one=connected_as_one, cluster=cluster, profile=profile
    )
    with spinner(f"writing {output}"):
        hypergraph = partitioning.hypergraph(partitioner, grain)
        partitioning.write_hypergraph(hypergraph, output, to)
    result = {
        "model": model, "file": output, "format": to, "grain": grain,
        "vertices": len(hypergraph.weight), "nets": len(hypergraph.cost), "pins": len(hypergraph.pins),
    }  # fmt: skip
    show(result, show_export, as_json=as_json)
