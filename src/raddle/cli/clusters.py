"""The verb `clusters`: lists the cluster presets, or shows one cluster."""

from typing import Annotated

import typer

from raddle.cli.options import Json
from raddle.cli.output import show


def clusters(
    spec: Annotated[
        str | None,
        typer.Argument(
            metavar="CLUSTER",
            help="A preset such as p100:4x4 (nodes x devices), h100:16 or local:2, or a YAML file.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the presets, or show a cluster: its devices, and the links between them."""
    from raddle.api.clusters import cluster, presets, summarise
    from raddle.reports.tables import clusters as tables

    if spec is None:
        show(presets(), tables.show_clusters, as_json=as_json)
    else:
        show(summarise(cluster(spec)), tables.show_cluster, as_json=as_json)
