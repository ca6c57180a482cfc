"""Prints the result of `raddle calibrate`: the fitted numbers, and each measurement with its prediction.

A number is one of a cluster's numbers, such as the bandwidth of a link. A measurement that was "held out"
was not used to fit them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raddle.reports.terminal import new_table, stdout


def show_calibration(result: Mapping[str, Any]) -> None:
    """Print a calibration as `raddle.calibration.description.describe` gives it, with its `file`.

    "residual" and "before": by how much the predicted samples/s exceed the measured ones, with the fitted
    numbers and with those before the fit.
    """
    console = stdout()
    numbers = new_table(console)
    for title, justify in (("number", "left"), ("before", "right"), ("fitted", "right")):
        numbers.add_column(title, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    numbers.add_column("")
    for number in result["fitted"]:
        values = (f"{number[key]:.4g}" for key in ("before", "after"))
        numbers.add_row(number["name"], *values, number["note"] or number["meaning"])
    console.print(numbers)
    if result["sync_after_backward"] is not None:
        when = "after" if result["sync_after_backward"] else "during"
        console.print(f"nearer to the measurements: gradients are sent {when} the backward")
    rows = new_table(console)
    for title in ("model", "batch", "devices", "method", "sync"):
        rows.add_column(title, no_wrap=True)
    for title in ("measured /s", "predicted /s", "residual", "before"):
        rows.add_column(title, justify="right", no_wrap=True)
    rows.add_column("")
    for row in result["rows"]:
        measured = row["measured_samples_per_s"]
        rows.add_row(
            row["model"], str(row["batch"]), row["devices"], row["method"], row["sync"],
            f"{measured:.4g}", f"{row['predicted_samples_per_s']:.4g}",
            f"{100 * row['residual']:+.1f} %",
            f"{100 * (row['before_samples_per_s'] / measured - 1):+.1f} %",
            "held out" if row["held_out"] else "fitted",
        )  # fmt: skip
    console.print(rows)
    if result["file"] is not None:
        console.print(f"wrote {result['file']}")
