"""Prints the largest batch of each method, and what a wanted batch needs to fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raddle.reports.terminal import new_table, stdout
from raddle.reports.units import bytes_text, count_text


def show_capacities(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a row for each method (api/capacity.py); below the table, why a method gave no plan."""
    console = stdout()
    table = new_table(console)
    table.add_column("method", no_wrap=True)
    for title in ("largest batch", "samples/s", "peak memory", "of"):
        table.add_column(title, justify="right", no_wrap=True)
    asked = any(row["needed"] for row in rows)
    if asked:
        table.add_column("the wanted batch needs")
    for row in rows:
        if row["error"]:
            continue
        texts = ["none", "", "", bytes_text(row["memory"])]
        if row["batch"]:
            texts[:3] = [
                str(row["batch"]), count_text(row["samples_per_s"]), bytes_text(row["peak_bytes"])
            ]  # fmt: skip
        table.add_row(row["method"], *texts, *([row["needed"]] if asked else []))
    console.print(table)
    for row in rows:
        if row["error"]:
            print(f"{row['method']}: {row['error']}")
