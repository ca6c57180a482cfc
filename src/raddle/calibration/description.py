"""Describes the result of a calibration: as plain data, and as comments in the fitted cluster file.

A calibration fits numbers of a cluster, such as bandwidths, to measured training steps (calibrate.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raddle.calibration.calibrate import Calibration, FittedNumber
from raddle.calibration.named_numbers import NUMBERS
from raddle.clusters.file import save_cluster

# Family of operators -> why its fitted efficiency may be above 1, which means faster than the peak.
ABOVE_PEAK: Mapping[str, str] = {
    "conv": "above the peak: FLOPs are counted by the definition of a convolution, and Winograd's "
    "algorithm needs up to 4 times fewer for 3 x 3",
    "matmul": "above the peak: the stated peak is lower than that of the measured device",
    "attention": "above the peak: the stated peak is lower than that of the measured device",
}


def describe(calibration: Calibration) -> dict[str, Any]:
    """Returns the result as plain data. A residual is 0.1 if the predicted throughput is 10 % too high."""
    rows = [
        {
            "model": row.model,
            "batch": row.batch,
            "devices": row.measurement.devices,
            "method": row.measurement.method or row.measurement.plan,
            "sync": row.sync,
            "measured_samples_per_s": row.batch / row.measured,
            "predicted_samples_per_s": row.batch / row.predicted,
            "before_samples_per_s": row.batch / row.before,
            "residual": row.residual,
            "held_out": row.measurement.held_out,
        }
        for row in calibration.rows
    ]
    return {
        "cluster": calibration.cluster.name,
        "fitted": [_number(number) for number in calibration.numbers],
        "sync_after_backward": calibration.sync_after_backward,
        "rows": rows,
    }


def _number(number: FittedNumber) -> dict[str, Any]:
    """Returns a fitted number as plain data."""
    return {
        "name": number.name,
        "meaning": NUMBERS[number.name].meaning,
        "before": number.before,
        "after": number.after,
        "undetermined_with": list(number.undetermined_with),
        "note": _note(number),
    }


def _note(number: FittedNumber) -> str:
    """Returns a warning about a fitted number as a text; often ""."""
    notes = []
    if number.name in ABOVE_PEAK and number.after > 1:
        notes.append(ABOVE_PEAK[number.name])
    if number.undetermined_with == (number.name,):
        notes.append("not determined: the measurements do not depend on it")
    elif number.undetermined_with:
        others = [other for other in number.undetermined_with if other != number.name]
        notes.append(f"only determined together with {' and '.join(others)}")
    return "; ".join(notes)


def write_cluster(calibration: Calibration, measured: str, path: str | Path) -> None:
    """Writes the fitted cluster to `path`, with comments that say what was fitted.

    measured: the path of the table of measurements, for the comments.
    """
    held_out = sum(row.measurement.held_out for row in calibration.rows)
    comments = [
        f"Fitted by raddle calibrate to {len(calibration.rows) - held_out} measurements of "
        f"{measured}; {held_out} held out.",
    ]
    for number in calibration.numbers:
        note = _note(number)
        comments.append(
            f"{number.name}, {NUMBERS[number.name].meaning}: {number.before:.4g} -> "
            f"{number.after:.4g}{f' ({note})' if note else ''}"
        )
    if calibration.sync_after_backward is not None:
        comments.append(
            "Gradients are sent after the backward: plan with --sync allreduce:after, for example."
            if calibration.sync_after_backward
            else "Gradients are sent during the backward."
        )
    for is_held_out in (False, True):
        residuals = [
            abs(r.residual) for r in calibration.rows if r.measurement.held_out == is_held_out
        ]
        if residuals:
            comments.append(
                f"Throughput of {'held-out' if is_held_out else 'fitted'} rows: "
                f"{100 * max(residuals):.1f} % off at most."
            )
    save_cluster(calibration.cluster.to_dict(), path, comments=comments)
