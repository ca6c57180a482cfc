"""Calibrates a cluster: fits a few of its named numbers to measured throughputs of training steps.

A number is, for example, the bandwidth of the network. `NUMBERS` has all numbers that can be fitted;
`with_values` gives a cluster other values of them. `read_measurements` reads the measurements, `calibrate`
fits the numbers, `describe` gives the result as plain data, and `write_cluster` writes the fitted cluster
file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from raddle.api.loading import capture_model, load_plan
from raddle.calibration.calibrate import Calibration
from raddle.calibration.calibrate import calibrate as _calibrate
from raddle.calibration.description import describe, write_cluster
from raddle.calibration.measurements import Measurement, read_measurements
from raddle.calibration.named_numbers import NUMBERS, with_values
from raddle.clusters import Cluster
from raddle.graph.graph import Graph
from raddle.plans.plan import Plan

__all__ = [
    "NUMBERS", "Calibration", "Measurement", "calibrate", "describe", "read_measurements",
    "with_values", "write_cluster",
]  # fmt: skip


def calibrate(
    cluster: Cluster,
    measurements: Sequence[Measurement],
    names: Sequence[str] | None = None,
    *,
    on_progress: Callable[[Mapping[str, Any]], None] = lambda step: None,
) -> Calibration:
    """Fit numbers of a cluster to measurements; return the fitted cluster and its predictions.

    names: the names of the numbers, and "after" to try synchronisation after the backward as well; None:
    the numbers that the measurements determine.
    """

    def load(path: str) -> tuple[Graph, Plan]:
        """Return the graph and the plan of a plan file."""
        loaded = load_plan(path)
        return loaded.graph, loaded.plan

    return _calibrate(
        cluster, measurements, names, capture=cache(capture_model), load_plan=load,
        on_progress=on_progress,
    )  # fmt: skip
