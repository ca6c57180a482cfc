"""Prints the results of `raddle probe`: measurements of this machine, or of a model's operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from raddle.reports.terminal import new_table, stdout
from raddle.reports.units import (
    plural,
    rate_text,
    seconds_text,
    speed_text,
)

# Host overhead: the time that communication takes from a rank, for each of these kinds. An end of a message
# is its sender or its receiver; a slice is a part of a parameter; a sum is an all-reduce.
HOST_OVERHEAD_TEXTS = {
    "message": "an end of a message", "slice": "an end of a slice", "byte": "a byte", "sum": "a sum",
}  # fmt: skip


def show_probe(result: Mapping[str, Any]) -> None:
    """Print the measurements of `raddle.probe.probe`, and the file they were written to."""
    console = stdout()
    ranks, gpu = result["ranks"], result["gpu"]
    console.print(
        f"measured on one of {plural(ranks, 'rank')} while all compute, "
        f"{plural(result['threads'], 'thread')} each, torch {result['torch']}",
        style="bold",
    )
    console.print(_measurement_table(console, result))
    if gpu is not None:
        console.print(f"{gpu['name']}, one of {gpu['count']}", style="bold")
        console.print(_measurement_table(console, gpu))
    if (result["busy_cores"] or 0) > 0.25:
        console.print(
            f"other work kept {result['busy_cores']:.1f} of {result['cores']} cores busy: "
            "--fresh measures again when the machine is quiet",
            style="yellow",
        )
    if result["cached"]:
        console.print(f"measured {result['measured']}: --fresh measures again")
    if result["file"] is None:
        console.print("-o FILE writes this as a cluster for --cluster FILE")
    else:
        console.print(f"written for --cluster {result['file']}")


def _measurement_table(console: Console, measurements: Mapping[str, Any]) -> Table:
    """Return a table with a row for each measured number of a rank, or of a GPU."""
    table = new_table(console)
    table.add_column("what", no_wrap=True)
    table.add_column("measured", no_wrap=True)
    for name, speed in measurements["flops"].items():  # FLOP/s of a benchmark, by its name
        table.add_row(name, speed_text(speed))
    table.add_row("memory bandwidth", rate_text(measurements["memory_bandwidth"]))
    table.add_row("overhead of an operator", seconds_text(measurements["overhead"]))
    # Latency and bandwidth of a message between idle ranks, and between ranks that compute.
    for name, link in (
        ("idle", measurements.get("idle")),
        ("under load", measurements.get("loaded")),
    ):
        if link is not None:
            text = f"{seconds_text(link['latency'])} + bytes / {rate_text(link['bandwidth'])}"
            table.add_row(f"message, {name}", text)
    for what, seconds in measurements.get("host_overhead", {}).items():
        table.add_row(f"taken from a rank: {HOST_OVERHEAD_TEXTS[what]}", seconds_text(seconds))
    if measurements.get("idle") is not None:
        directions = "at the same time" if measurements["duplex"] else "in turns"
        # shared: all pairs of ranks share the bandwidth
        pairs = ", all pairs in turns" if measurements["shared"] else ""
        table.add_row("messages out and in", f"{directions}{pairs}")
    return table


def show_profile(result: Mapping[str, Any]) -> None:
    """Print how many operators `raddle probe --model` measured, and the profile (file of times) with them.

    "entries": the number of all measurements in the profile.
    """
    print(
        f"{result['measured']} operators of {result['model']} measured; "
        f"'{result['profile']}' holds {result['entries']}: use it with --profile."
    )


def show_blocks(result: Mapping[str, Any]) -> None:
    """Print how many blocks of a model `raddle probe --model` measured, and how to use them."""
    print(
        f"{plural(result['blocks'], 'block')} of {result['model']} measured in {result['precision']}, "
        f"{'compiled' if result['compiled'] else 'eager'}: use them with --cluster {result['cluster']} "
        f"--precision {result['precision']} --profile {result['profile']}."
    )
