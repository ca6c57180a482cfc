"""Prints the predicted metrics of plans: of one, of several compared, and of one simulated in detail.

A search begins with a candidate, a whole plan, and tries changes of it one after the other: the proposals.
A row is a dict with the metrics of one plan, for example {"method": "owt", "step_ms": 45.9}; its "start" is
the name of the candidate that led to the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from raddle.reports.names import names_text
from raddle.reports.terminal import new_table, stdout
from raddle.reports.units import (
    bytes_text,
    count_text,
    seconds_text,
)

STOP_REASONS = {  # completes the sentence "the search ended ..."
    "budget": "because its time was over",
    "proposals": "because it had made as many proposals as it may",
    "interrupt": "when it was interrupted",
    "no improvement": "because nothing had improved for long",
}
METRIC_TITLES = {  # titles of columns; imbalance: the longest compute time of a device over the mean
    "step_ms": "step", "samples_per_s": "samples/s", "speedup": "speedup", "comm_bytes": "communication",
    "peak_bytes": "peak memory", "imbalance": "imbalance", "search_s": "search",
}  # fmt: skip


def show_plan(row: Mapping[str, Any]) -> None:
    """Print the predicted metrics of one plan, how it was found, and the file it was written to."""
    show_comparison([row])
    if row.get("proposals"):
        ended = STOP_REASONS.get(row["stopped"], row["stopped"])
        print(
            f"a search found the plan from the candidate '{row['start']}' with {row['proposals']} "
            f"proposals; the search ended {ended}"
        )
    for failure in row.get("failed", ()):  # candidates of the search that gave no plan
        if not failure["refused"]:  # refused: it does not apply to this model or cluster
            print(f"left out, by a mistake in raddle: {failure['name']}, {failure['error']}")
    if row["file"] is not None:
        print(f"written to {row['file']}: raddle simulate {row['file']} shows more")


def show_comparison(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the rows of `raddle.searches.comparison.compare`: one for each method.

    Below the table: why a method failed, plans that do not fit, the lower bound of the step time, and the
    settings: "precision", "optimizer", "bn" (the samples over which batch norm takes its statistics, such
    as "local") and "sync".
    """
    console = stdout()
    table = new_table(console)
    table.add_column("method", no_wrap=True)
    shown = {  # a metric that no row has gets no column, as the speedup without data parallelism
        key: title
        for key, title in METRIC_TITLES.items()
        if any(row[key] is not None for row in rows) or key == "step_ms"
    }
    for title in shown.values():
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        texts = [_metric_text(key, row[key]) for key in shown]
        table.add_row(row["method"], *texts, style=_row_style(row))
    console.print(table)
    for row in rows:
        if row.get("error"):
            console.print(f"{row['method']}: {row['error']}", style="yellow")
        elif row["fits"] is False:
            console.print(f"{row['method']}: does not fit into the devices' memory", style="yellow")
    bounded = [row for row in rows if row.get("lower_bound_ms") is not None]
    if bounded:
        bound_ms = bounded[0]["lower_bound_ms"]
        above = 100 * (min(row["step_ms"] for row in bounded) / bound_ms - 1)  # percent
        bound = seconds_text(bound_ms / 1e3)
        console.print(
            f"no plan takes less than {bound}: the fastest here is {above:.1f} % above that"
        )
    keys = ("precision", "optimizer", "bn", "sync")
    settings = {tuple(row[key] for key in keys) for row in rows}
    for precision, optimizer, bn, sync in sorted(settings):
        console.print(
            f"simulated, in {precision} with {optimizer}, {bn} batch statistics, synchronised by {sync}"
        )


def _metric_text(key: str, value: float | None) -> str:
    """Return the text of a metric; key: one of METRIC_TITLES."""
    texts: dict[str, Callable[[float], str]] = {
        "step_ms": lambda ms: seconds_text(ms / 1e3),
        "samples_per_s": count_text,
        "speedup": "{:.2f}x".format,
        "comm_bytes": bytes_text,
        "peak_bytes": bytes_text,
        "imbalance": "{:.2f}".format,
        "search_s": seconds_text,
    }
    return "" if value is None else texts[key](value)


def _row_style(row: Mapping[str, Any]) -> str | None:
    """Return the colour of a row: yellow for a method that failed or does not fit into memory."""
    return "yellow" if row.get("error") or row["fits"] is False else None


def show_report(result: Mapping[str, Any]) -> None:
    """Print the comparison that an HTML page shows, and the file of the page.

    result: as `raddle.reports.page.summary.summary` returns it.
    """
    show_comparison([{**row, "method": row["label"]} for row in result["methods"]])
    for row in result["methods"]:
        if row["measured_ms"] is not None:
            predicted, measured = (seconds_text(row[k] / 1e3) for k in ("step_ms", "measured_ms"))
            print(f"{row['label']}: predicted {predicted}, measured {measured}")
    print(f"{result['file']} shows it: open it in a browser ({bytes_text(result['bytes'])})")


def show_simulation(result: Mapping[str, Any]) -> None:
    """Print a simulated plan as `raddle.searches.predict.details` describes it."""
    console = stdout()
    console.print(
        f"{result['model']}, batch {result['batch']}, {result['method'] or 'a plan'} "
        f"on {result['cluster']}",
        style="bold",
    )
    console.print(
        f"simulated, in {result['precision']} with {result['optimizer']}: "
        f"{seconds_text(result['step_ms'] / 1e3)} a step, "
        f"{count_text(result['samples_per_s'])} samples/s, "
        f"{bytes_text(result['comm_bytes'])} sent, imbalance {result['imbalance']:.2f}, "
        f"{bytes_text(result['peak_bytes'])} of memory at most"
    )
    if result["fits"] is False:
        console.print("it does not fit into the devices' memory", style="yellow")
    console.print(_device_table(console, result["devices"]))
    if result["transfers"]:
        console.print(_transfer_table(console, result["transfers"]))
    if result["trace"] is not None:
        console.print(f"trace written to {result['trace']}: open it at ui.perfetto.dev")


def _device_table(console: Console, devices: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table with a row for each device: its times in a step, and its peak memory."""
    table = new_table(console)
    for title in ("device", "kind"):
        table.add_column(title, no_wrap=True)
    for title in ("computes", "waits for data", "idle", "peak memory"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in devices:
        # exposed: communication during which the device does not compute
        times = (row[f"{name}_ms"] for name in ("compute", "exposed", "idle"))
        table.add_row(
            str(row["device"]),
            row["kind"],
            *(seconds_text(ms / 1e3) for ms in times),
            bytes_text(row["peak_bytes"]),
        )
    return table


def _transfer_table(console: Console, transfers: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of transfers; "pattern" is the collective that the messages of a transfer form, and
    "from first to last" the time from the start of its first message to the end of its last one."""
    table = new_table(console)
    table.add_column("largest transfers", overflow="fold")
    for title in ("what", "pattern"):
        table.add_column(title, no_wrap=True)
    for title in ("devices", "bytes", "from first to last"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in transfers:
        table.add_row(
            names_text(row["value"].split(", ")),
            row["what"],
            row["pattern"].replace("_", "-"),
            str(len(row["devices"])),
            bytes_text(row["bytes"]),
            seconds_text(row["ms"] / 1e3),
        )
    return table
