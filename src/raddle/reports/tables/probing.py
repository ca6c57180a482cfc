"""What was measured of this machine."""

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

HANDLED = {
    "message": "an end of a message", "slice": "an end of a slice", "byte": "a byte", "sum": "a sum",
}  # fmt: skip


def show_probe(measured: Mapping[str, Any]) -> None:
    """Print what `raddle.probe.probe` measured, and where it was written."""
    console = stdout()
    ranks, gpu = measured["ranks"], measured["gpu"]
    console.print(
        f"one of {plural(ranks, 'rank')} while all compute, "
        f"{plural(measured['threads'], 'thread')} each, torch {measured['torch']}",
        style="bold",
    )
    console.print(_figure_table(console, measured))
    if gpu is not None:
        console.print(f"{gpu['name']}, one of {gpu['count']}", style="bold")
        console.print(_figure_table(console, gpu))
    if (measured["busy_cores"] or 0) > 0.25:
        console.print(
            f"other work kept {measured['busy_cores']:.1f} of {measured['cores']} cores busy: "
            "--fresh measures again when the machine is quiet",
            style="yellow",
        )
    if measured["cached"]:
        console.print(f"measured {measured['measured']}: --fresh measures again")
    if measured["file"] is None:
        console.print("-o FILE writes this as a cluster for --cluster FILE")
    else:
        console.print(f"written for --cluster {measured['file']}")


def _figure_table(console: Console, figures: Mapping[str, Any]) -> Table:
    table = new_table(console)
    table.add_column("what", no_wrap=True)
    table.add_column("measured", no_wrap=True)
    for name, speed in figures["flops"].items():
        table.add_row(name, speed_text(speed))
    table.add_row("memory bandwidth", rate_text(figures["memory_bandwidth"]))
    table.add_row("overhead of an operator", seconds_text(figures["overhead"]))
    for name, link in (("idle", figures.get("idle")), ("under load", figures.get("loaded"))):
        if link is not None:
            text = f"{seconds_text(link['latency'])} + bytes / {rate_text(link['bandwidth'])}"
            table.add_row(f"message, {name}", text)
    for what, seconds in figures.get("host_overhead", {}).items():
        table.add_row(f"taken from a rank: {HANDLED[what]}", seconds_text(seconds))
    if figures.get("idle") is not None:
        ways = "at the same time" if figures["duplex"] else "in turns"
        pairs = ", all pairs in turns" if figures["shared"] else ""
        table.add_row("messages out and in", f"{ways}{pairs}")
    return table


def show_profile(result: Mapping[str, Any]) -> None:
    """Print what `raddle probe --model` measured."""
    print(
        f"{result['measured']} operators of {result['model']} measured; "
        f"'{result['profile']}' holds {result['entries']}: use it with --profile."
    )
