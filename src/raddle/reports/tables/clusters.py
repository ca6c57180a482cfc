"""Prints the cluster presets, and the devices and routes of one cluster, for `raddle clusters`.

A route is the links that a transfer between two devices occupies. Equal nodes form a group; the table has
one route inside a node of each group, and one between nodes of the same group or of two groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from raddle.reports.terminal import new_table, stdout
from raddle.reports.units import (
    bytes_text,
    plural,
    rate_text,
    seconds_text,
    speed_text,
)


def show_clusters(presets: Sequence[Mapping[str, Any]]) -> None:
    """Print the presets as `raddle.clusters.presets` lists them, and the sources of their numbers.

    "inside" is the bandwidth between devices of a node, "between" that of a node's network adapter (NIC).
    "shared": one bus for all devices of the node; "each": a NIC for each device.
    """
    console = stdout()
    table = new_table(console)
    table.add_column("preset", no_wrap=True)
    for title in ("size", "TFLOP/s 32, 16 bit", "memory", "inside", "between"):
        table.add_column(title, justify="right")
    for preset in presets:
        flops = preset["flops"]  # peak FLOP/s, by data type
        table.add_row(
            preset["name"],
            f"{preset['nodes']}x{preset['devices_per_node']}",
            f"{flops['float32'] / 1e12:.3g}, {flops.get('float16', flops['float32']) / 1e12:.3g}",
            bytes_text(preset["memory"]),
            _bandwidth_text(preset["link"], "shared", "shared"),
            _bandwidth_text(preset["network"], "per_device", "each"),
        )
    console.print(table)
    for preset in presets:
        console.print(f"{preset['name']}: {preset['source']}")
    console.print(
        "size: nodes x devices; NAME:4x4 or NAME:16 for others, raddle clusters NAME for more"
    )


def _bandwidth_text(link: Mapping[str, Any] | None, flag: str, note: str) -> str:
    """Return the bandwidth of a link, followed by `note` if the link's `flag` is set."""
    if link is None:
        return ""
    return f"{rate_text(link['bandwidth'])} {note}" if link[flag] else rate_text(link["bandwidth"])


def show_cluster(cluster: Mapping[str, Any]) -> None:
    """Print a cluster as `raddle.clusters.summary.summarise` describes it.

    The fingerprint is a hash of its devices and links.
    """
    console = stdout()
    console.print(cluster["name"], style="bold")
    console.print(
        f"{plural(cluster['devices'], 'device')} in {plural(cluster['nodes'], 'node')}, "
        f"{plural(cluster['links'], 'link')}, fingerprint {cluster['fingerprint']}"
    )
    console.print(_kind_table(console, cluster["kinds"]))
    if cluster["routes"]:
        console.print(_route_table(console, cluster["routes"]))


def _kind_table(console: Console, kinds: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table with a column for each kind of device and a row for each property."""
    table = new_table(console)
    table.add_column("device", no_wrap=True)
    for kind in kinds:
        table.add_column(kind["kind"], justify="right")
    table.add_row("count", *(str(kind["count"]) for kind in kinds))
    for dtype in dict.fromkeys(dtype for kind in kinds for dtype in kind["flops"]):
        speeds = (kind["flops"].get(dtype) for kind in kinds)
        table.add_row(f"peak {dtype}", *("" if x is None else speed_text(x) for x in speeds))
    table.add_row("memory", *(bytes_text(kind["memory"]) for kind in kinds))
    table.add_row("memory bandwidth", *(rate_text(kind["bandwidth"]) for kind in kinds))
    table.add_row("overhead of an operator", *(seconds_text(kind["overhead"]) for kind in kinds))
    # Efficiency: the share of the peak that a family of operators (conv, matmul, ...) reaches; "memory":
    # the share of the memory bandwidth that the others reach.
    for family in kinds[0]["efficiency"]:
        shares = (kind["efficiency"][family] for kind in kinds)
        table.add_row(f"efficiency {family}", *(f"{share:.2g}" for share in shares))
    return table


def _route_table(console: Console, routes: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of routes; "a transfer holds": the links that it occupies."""
    table = new_table(console)
    table.add_column("route", no_wrap=True)
    table.add_column("nodes", no_wrap=True)
    for title in ("bandwidth", "latency"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("a transfer holds", overflow="fold")
    for route in routes:
        table.add_row(
            f"{route['source']} -> {route['target']}",
            route["where"],
            rate_text(route["bandwidth"]),
            seconds_text(route["latency"]),
            ", ".join(route["holds"]),
        )
    return table
