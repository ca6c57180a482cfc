"""Summarises the data of an HTML page for `raddle report --json` and for the terminal."""

from __future__ import annotations

import pathlib
from typing import Any

from raddle.reports.page.data import PageData
from raddle.searches.predict import METRICS

# Keys of a method or plan in the page's data that the summary has too. bn: the samples over which batch
# norm takes its statistics, such as "local" (each device's own).
KEYS = (
    "label", "method", *METRICS, "bn", "sync", "precision", "optimizer", "lower_bound_ms",
    "error", "average", "bytes", "sentences",
)  # fmt: skip


def summary(data: PageData, output: str) -> dict[str, Any]:
    """Return the metrics of all plans on a page; output: the file of the page, already written."""
    plain = data.json_data
    return {
        "file": output,
        "bytes": pathlib.Path(output).stat().st_size,
        "model": plain["model"],
        "batch": plain["batch"],
        "cluster": plain["cluster"]["name"],
        # The fastest plan that fits into memory (if none fits: the fastest), and the plan that the page
        # opens with.
        "best": plain["methods"][plain["best"]]["label"],
        "opens": plain["methods"][plain["opens"]]["label"],
        "methods": [
            {
                **{key: method.get(key) for key in KEYS},
                "measured_ms": (method["measured"] or {}).get("step_ms"),
            }
            for method in plain["methods"]
        ],
    }
