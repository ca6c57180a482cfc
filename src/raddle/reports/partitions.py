"""Prints the results of `raddle partition` (a table) and of `raddle export` (one line).

A partition assigns the filters of a model, or single channels of filters, to parts; each part is the work
of one device. The volume of a partition is the number of elements that its parts send to each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raddle.reports.terminal import new_table, stdout
from raddle.reports.units import bytes_text, count_text, seconds_text

MI = 2**20  # the unit of volumes in the table


def show_partitions(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print one row for each partition; volumes are elements sent in a forward pass, in Mi (2**20).

    "max work" and "min work" are those of the parts with the most and the least work, in FLOPs or in what
    `--weights` names instead; "max/avg" is the most work over the average of the parts. "heaviest" is the
    volume of the value with the most volume, "average" the volume divided by the number of parts, "bound" a
    lower bound on the volume of any coarse partition (each filter whole), "time" the duration of the
    partitioning. Below the table: why a method failed, and which partitions exceed the allowed imbalance.
    """
    console = stdout()
    table = new_table(console)
    table.add_column("method", no_wrap=True)
    for title in (
        "parts", "max work", "min work", "max/avg", "volume Mi", "heaviest Mi", "average Mi",
        "heaviest/avg", "bound Mi", "bytes a step", "time",
    ):  # fmt: skip
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        if "error" not in row:
            table.add_row(row["method"], *_texts(row), style=None if row["balanced"] else "yellow")
    console.print(table)
    for row in rows:
        name = f"{row['method']} in {row['parts']} parts"
        if "error" in row:
            console.print(f"{name}: {row['error']}", style="yellow")
        elif not row["balanced"]:
            # imbalance: the work of the largest part over the average; epsilon: how far above 1 it may be
            work = f"{row['imbalance']:.3f} x the average, more than {1 + row['epsilon']:g} x"
            console.print(f"{name}: the largest part's work is {work}", style="yellow")


def _texts(row: Mapping[str, Any]) -> list[str]:
    """Return the cells of a partition's row, without its method."""
    bound, ratio = row["lower_bound_elements"], row["heaviest_over_average"]
    return [
        str(row["parts"]),
        count_text(row["work_max"]),
        count_text(row["work_min"]),
        f"{row['imbalance']:.3f}",
        f"{row['volume_elements'] / MI:.2f}",
        f"{row['heaviest_elements'] / MI:.2f}",
        f"{row['average_elements'] / MI:.2f}",
        "" if ratio is None else f"{ratio:.1f}",
        "" if bound is None else f"{bound / MI:.2f}",
        bytes_text(row["volume_bytes"]),
        seconds_text(row["seconds"]),
    ]


def show_export(result: Mapping[str, Any]) -> None:
    """Print the size of the exported hypergraph: the model as other partitioners, such as PaToH, read it.

    A vertex is a filter or one channel of it, a net (hyperedge) joins a filter with the vertices that read
    its output, a pin is the membership of a vertex in a net.
    """
    print(
        f"{result['file']}: {result['vertices']} vertices, {result['nets']} nets, {result['pins']} pins, "
        f"for {result['format']}"
    )
