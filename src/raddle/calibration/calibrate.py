"""Fits named numbers of a cluster to measured training steps: the work of `raddle calibrate`.

A named number is, for example, the bandwidth of the network (named_numbers.py). The fit makes the simulated
steps as long as the measured steps (least_squares.py). A number is undetermined if it could have another
value: a change of it, alone or together with other numbers, changes no prediction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from raddle.calibration.least_squares import determined, fit, influences
from raddle.calibration.measurements import Measurement
from raddle.calibration.named_numbers import NUMBERS, USUAL, value_of, with_values
from raddle.calibration.prediction import Capture, LoadPlan, Prediction
from raddle.clusters import Cluster
from raddle.errors import InputError, quote
from raddle.plans.sync.sync_kind import AFTER

Array = np.ndarray
OnProgress = Callable[[Mapping[str, Any]], None]


class FittedNumber(NamedTuple):
    """A number that was fitted, with its value in the given and in the fitted cluster."""

    name: str
    before: float  # value in the given cluster
    after: float  # value in the fitted cluster
    # Names of the numbers that can change together without effect on the predictions, this number included;
    # (): the measurements determine this number.
    undetermined_with: tuple[str, ...]


class ComparedRow(NamedTuple):
    """A measurement next to its prediction on the fitted cluster."""

    measurement: Measurement
    model: str
    batch: int
    sync: str  # sync kind of the simulated plan
    measured: float  # seconds of a step
    predicted: float  # seconds of a step on the fitted cluster
    before: float  # seconds of a step on the given cluster

    @property
    def residual(self) -> float:
        """The predicted throughput relative to the measured one, minus 1: 0.1 if it is 10 % higher."""
        return self.measured / self.predicted - 1


class Calibration(NamedTuple):
    """A fitted cluster, and how near its predictions are to the measurements."""

    cluster: Cluster
    numbers: list[FittedNumber]
    # Whether synchronisation follows the backward (sync option "after"); None: that was not tried.
    sync_after_backward: bool | None
    rows: list[ComparedRow]  # a row for each measurement


def calibrate(
    cluster: Cluster,
    measurements: Sequence[Measurement],
    names: Sequence[str] | None,
    *,
    capture: Capture,
    load_plan: LoadPlan,
    on_progress: OnProgress = lambda step: None,
) -> Calibration:
    """Fits numbers of a cluster to measurements, and returns the fitted cluster with its predictions.

    names: the numbers to fit; None: those that the measurements determine. If "after" is among the names,
    the numbers are fitted twice, with gradients sent during and after the backward; the nearer fit is
    returned.
    """
    _check_names(cluster, names)
    progress = _Progress(on_progress, len(measurements))

    def make_predictions(after: bool) -> list[Prediction]:
        """Returns the prediction of each measurement. after: gradients are sent after the backward."""
        predictions = []
        for m in measurements:
            progress.report(f"planning {m.model or m.plan}")
            predictions.append(Prediction(m, cluster, capture, load_plan, after=after))
            progress.done += 1
        return predictions

    choices = [make_predictions(False)]
    if names is not None and AFTER in names:
        progress.total *= 2
        choices.append(make_predictions(True))
    numbers = [name for name in names or () if name != AFTER]
    fitters = [
        _Fitter(cluster, [p for p in predictions if not p.measurement.held_out], progress)
        for predictions in choices
    ]
    results = [f.fit(f.starts(numbers)) if numbers else f.fit_determined() for f in fitters]
    # 0: gradients are sent during the backward; 1: after it
    best = min(range(len(results)), key=lambda k: results[k].squares)
    values, flat = results[best].values, results[best].flat
    return Calibration(
        with_values(cluster, values),
        [
            FittedNumber(name, value_of(cluster, name), value, _traded_with(name, [*values], flat))
            for name, value in values.items()
        ],
        bool(best) if len(results) > 1 else None,
        [_row(p, values) for p in choices[best]],
    )


def _check_names(cluster: Cluster, names: Sequence[str] | None) -> None:
    """Raises InputError for names that cannot be fitted on this cluster; None: no names were given."""
    for name in names or ():
        if name not in NUMBERS and name != AFTER:
            raise InputError(
                f"{quote(name)} cannot be fitted: choose from {', '.join((*NUMBERS, AFTER))}."
            )
        if name in ("link", "network") and not value_of(cluster, name):
            raise InputError(
                f"{cluster.name} has no {name} whose bandwidth could be fitted: leave {name} out of --fit."
            )
    if names is not None and len(set(names)) != len(names):
        raise InputError("--fit names a number twice: name each number once.")
    if names is not None and not set(names) - {AFTER}:
        raise InputError(f"--fit names no number: name at least one of {', '.join(NUMBERS)}.")


class _Progress:
    """Reports progress. done, total: the plans that have been made, and those to make in all."""

    def __init__(self, on_progress: OnProgress, total: int) -> None:
        self._on_progress, self.done, self.total = on_progress, 0, total

    def report(self, step: str) -> None:
        """Reports the present step, such as "simulating"."""
        self._on_progress({"step": step, "done": min(self.done, self.total), "of": self.total})


class _Result(NamedTuple):
    """The result of a fit."""

    values: dict[str, float]  # name of a fitted number -> value
    squares: float  # the sum of the squared residuals
    # Unit vectors over the fitted numbers: a change in such a direction changes no prediction.
    flat: list[Array]


class _Fitter:
    """Fits numbers of a cluster, so that some predictions are near their measurements."""

    def __init__(
        self, cluster: Cluster, predictions: Sequence[Prediction], progress: _Progress
    ) -> None:
        self.cluster, self.predictions, self.progress = cluster, predictions, progress

    def starts(self, names: Sequence[str]) -> dict[str, float]:
        """Returns the values from which a fit starts: those of the cluster."""
        return {name: value_of(self.cluster, name) or NUMBERS[name].start for name in names}

    def fit(self, starts: Mapping[str, float]) -> _Result:
        """Returns the fit of the numbers in `starts`. starts: name -> value at which the fit starts."""
        names = list(starts)
        # [1]: NamedNumber.least, [2]: NamedNumber.most
        low, high = (np.log([NUMBERS[name][at] for name in names]) for at in (1, 2))
        x = np.log([starts[name] for name in names])
        result = fit(lambda x: self._residuals(names, x), x, low, high)
        values = {name: math.exp(v) for name, v in zip(names, result.x, strict=True)}
        return _Result(values, float(result.residuals @ result.residuals), result.flat)

    def fit_determined(self) -> _Result:
        """Returns the fit of the usual numbers that the measurements determine.

        They are fewer than there are measurements. A number may come to matter when others are fitted:
        links do if devices turn out to compute faster. So numbers are chosen again at the fitted values,
        until no number is added.
        """
        starts = self.starts([name for name in USUAL if value_of(self.cluster, name)])
        max_count = max(1, len(self.predictions) - 1)
        names, result = list[str](), _Result({}, math.inf, [])
        while len(names) < max_count:
            added = [name for name in self._determined(starts) if name not in names]
            if not added:
                break
            chosen = {*names, *added[: max_count - len(names)]}
            names = [name for name in starts if name in chosen]
            result = self.fit({name: starts[name] for name in names})
            starts |= result.values
        if not names:
            raise InputError(
                "the measurements depend on no number of the cluster: name some with --fit."
            )
        return result

    def _determined(self, values: Mapping[str, float]) -> list[str]:
        """Returns the numbers among `values` that the measurements determine near these values."""
        names = list(values)
        low, high = (np.log([NUMBERS[name][at] for name in names]) for at in (1, 2))
        # x: logarithms of the numbers, r: residuals, j: derivatives of r by x (least_squares.py)
        x = np.log([*values.values()])
        r = self._residuals(names, x)
        j = influences(lambda moved: self._residuals(names, moved), x, r, low, high)
        return [names[k] for k in determined(j)]

    def _residuals(self, names: Sequence[str], x: Array) -> Array:
        """Returns for each measurement the logarithm of predicted over measured seconds.

        x: the logarithms of the numbers `names`.
        """
        self.progress.report("simulating")
        values = {name: math.exp(v) for name, v in zip(names, x, strict=True)}
        ratios = [p.seconds(values) / p.measured_seconds for p in self.predictions]
        return np.log(ratios)


def _traded_with(name: str, names: Sequence[str], flat: Sequence[Array]) -> tuple[str, ...]:
    """Returns the numbers that can change together with `name` without effect on the predictions.

    They have components of at least 0.1 in a flat direction (a unit vector) in which `name` has one, too.
    """
    k = names.index(name)
    together = [
        number
        for direction in flat
        if abs(direction[k]) >= 0.1
        for number, component in zip(names, direction, strict=True)
        if abs(component) >= 0.1
    ]
    return tuple(dict.fromkeys(together))


def _row(prediction: Prediction, values: Mapping[str, float]) -> ComparedRow:
    """Returns a measurement next to its prediction with these values of the numbers."""
    plan = prediction.plan
    return ComparedRow(
        prediction.measurement, plan.model, plan.batch, plan.sync, prediction.measured_seconds,
        prediction.seconds(values), prediction.seconds({}),
    )  # fmt: skip
