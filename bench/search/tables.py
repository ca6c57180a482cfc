"""The tables of the README, from results.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from common import results

Row = Mapping[str, Any]


def table(part: str, columns: Mapping[str, Callable[[Row], Any] | str], key: str = "") -> str:
    """A Markdown table of one part; a column is a key of its rows or a function of them."""
    rows = results().get(part, {})
    lines = [f"| {' | '.join([key, *columns])} |", "|---" * (len(columns) + 1) + "|"]
    for name, row in rows.items():
        cells = [row.get(c, "") if isinstance(c, str) else c(row) for c in columns.values()]
        lines.append(f"| {name} | {' | '.join(str(cell) for cell in cells)} |")
    return "\n".join(lines)


def all_tables() -> str:
    found = []
    for part, rows in results().items():
        first = next(iter(rows.values()))
        if part == "auto":
            found.append(f"### {part}\n\n{auto_table()}")
            continue
        columns = {k: k for k, v in first.items() if not isinstance(v, dict)}
        nested = {
            f"{k} {j}": (lambda row, k=k, j=j: row.get(k, {}).get(j, ""))
            for k, v in first.items() if isinstance(v, dict) for j in v
        }  # fmt: skip
        found.append(f"### {part}\n\n{table(part, {**columns, **nested})}")
    return "\n\n".join(found)


def auto_table() -> str:
    columns: dict[str, Callable[[Row], Any] | str] = {
        "data, ms": lambda r: r["step_ms"].get("data", "does not fit"),
        "best baseline": lambda r: (
            f"{r['best_baseline']} {r['step_ms'].get(r['best_baseline'], '')}"
        ),
        "optcnn": lambda r: r["step_ms"].get("optcnn", ""),
        "flexflow": lambda r: r["step_ms"].get("flexflow", ""),
        "auto": lambda r: r["step_ms"].get("auto", ""),
        "gain over the best baseline": "auto_over_best",
        "above the lower bound": lambda r: f"{r['gap_percent']} %",
    }
    return table("auto", columns, "model, cluster")
