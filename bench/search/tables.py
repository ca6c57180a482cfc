"""Writes the tables of the README in Markdown, from results.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from common import results

Row = Mapping[str, Any]
Column = Callable[[Row], Any] | str


def table(part: str, key: str, columns: Mapping[str, Column]) -> str:
    """Returns the Markdown table of one part; a column is a key of its rows or a function of a row.

    key: the title of the first column, which has the keys of the rows.
    """
    lines = [f"| {' | '.join([key, *columns])} |", "|---" * (len(columns) + 1) + "|"]
    for name, row in results().get(part, {}).items():
        cells = [row.get(c, "") if isinstance(c, str) else c(row) for c in columns.values()]
        lines.append(f"| {name} | {' | '.join(str(cell) for cell in cells)} |")
    return f"{part}\n\n" + "\n".join(lines)


def inside(*path: str) -> Column:
    """Returns a column of values in nested dicts: inside("step_ms", "auto") is row["step_ms"]["auto"]."""

    def find(row: Row) -> Any:
        value: Any = row
        for step in path:
            value = value.get(step, "") if isinstance(value, Mapping) else ""
        return value

    return find


def _either(method: str) -> Column:
    """Returns a column with the metrics of a method's plan, or with its error."""

    def text(row: Row) -> Any:
        result = row[method]
        if "error" in result:
            return result["error"]
        word = "fits" if result["fits"] else "does not fit"
        start = f", {result['start']}" if result["start"] else ""
        return f"{result['step_ms']} ms, {result['peak_gb']} GB, {word}{start}"

    return text


# Each table: the part, the title of its first column, and title -> column.
TABLES: list[tuple[str, str, dict[str, Column]]] = [
    ("optcnn-seconds", "devices", {
        "degrees": "degrees", "configurations": "configurations", "seconds": "seconds", "target": "target",
    }),
    ("simulation", "model, devices", {
        "tasks": "tasks", "full, ms": "full_ms", "ns a task": "ns_a_task", "folded, ms": "folded_ms",
        "stretches and messages": "folded_nodes", "a step, ms": "step_ms",
        "times faster than the step": "times_faster_than_running",
    }),
    ("proposals", "model, devices", {
        "beta, 1/ms": "beta_per_ms", "accepted, %": "accepted_percent", "a second": "a_second",
        "in full, a second": "plain_a_second", "ratio": "ratio",
    }),
    ("delta", "model, devices", {
        "tasks": "tasks", "changed by a move, %": "changed_percent_mean", "full, ms": "full_ms",
        "ideal delta, ms": "ideal_delta_ms", "shortened, ms": "shortened_ms",
    }),
    ("optcnn-claims", "model", {
        "data, ms": "data_ms", "model": "model_ms", "owt": "owt_ms", "optcnn": "optcnn_ms",
        "over the best": "gain_over_best", "the paper's": "claim_over_best", "over data": "gain_over_data",
        "over data, simulated": "simulated_with_servers_gain",
    }),
    ("flexflow-claims", "model", {
        "batch": "batch",
        "servers: data, ms": inside("server", "data"), "optcnn": inside("server", "optcnn"),
        "flexflow": inside("server", "flexflow"), "over data": "server_over_data",
        "over optcnn": "server_over_optcnn",
        "all-reduce: data, ms": inside("allreduce", "data"), "optcnn ": inside("allreduce", "optcnn"),
        "flexflow ": inside("allreduce", "flexflow"), "over data ": "allreduce_over_data",
        "over optcnn ": "allreduce_over_optcnn",
    }),
    ("reduction", "model, cluster", {"without, ms": "without_ms", "with, ms": "with_ms", "gain": "gain"}),
    ("auto", "model, cluster", {
        "data, ms": lambda r: r["step_ms"].get("data", "does not fit"),
        "best baseline": lambda r: f"{r['best_baseline']} {r['step_ms'].get(r['best_baseline'], '')}",
        "optcnn": inside("step_ms", "optcnn"), "flexflow": inside("step_ms", "flexflow"),
        "auto": inside("step_ms", "auto"), "gain over the best baseline": "auto_over_best",
        "above the bound": lambda r: f"{r['gap_percent']} %",
    }),
    ("memory", "a card", {"data": _either("data"), "auto": _either("auto")}),
    ("heterogeneous", "model", {
        "best equal split": "best_equal", "ms": "equal_ms", "auto, ms": "auto_ms", "gain": "gain",
        "first layer": "first_layer",
    }),
    ("scale", "model, devices", {
        "data, ms": inside("data", "step_ms"), "optcnn, ms": inside("optcnn", "step_ms"),
        "its seconds": inside("optcnn", "seconds"), "auto, ms": inside("auto", "step_ms"),
        "its seconds ": inside("auto", "seconds"), "lower bound, ms": "lower_bound_ms",
    }),
]  # fmt: skip


def all_tables() -> str:
    """Returns all tables, separated by empty lines."""
    return "\n\n".join(table(part, key, columns) for part, key, columns in TABLES)
