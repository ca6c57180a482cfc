"""Fits named numbers of a cluster to measurements: the work of `raddle calibrate`."""

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
    name: str
    before: float
    after: float  # its value in the fitted cluster
    # The numbers against which it can be traded without effect, itself included; (): it is determined.
    undetermined_with: tuple[str, ...]


class ComparedRow(NamedTuple):
    """A measurement next to its prediction on the fitted cluster."""

    measurement: Measurement
    model: str
    batch: int
    sync: str  # that of the simulated plan
    measured: float  # seconds of a step
    predicted: float
    before: float  # predicted on the cluster as it was given

    @property
    def residual(self) -> float:
        """By how much the predicted throughput is higher than the measured one, as a share of it."""
        return self.measured / self.predicted - 1


class Calibration(NamedTuple):
    """A fitted cluster, and how near its predictions are."""

    cluster: Cluster
    numbers: list[FittedNumber]
    after: bool | None  # whether synchronisation follows the backward; None: that was not fitted
    rows: list[ComparedRow]


def calibrate(
    cluster: Cluster,
    measurements: Sequence[Measurement],
    names: Sequence[str] | None,
    *,
    capture: Capture,
    load_plan: LoadPlan,
    on_progress: OnProgress = lambda step: None,
) -> Calibration:
    """Fits the numbers `names` (None: those that the measurements determine) to the measurements.

    "after" among the names: fit with gradients sent after the backward too, and keep what is nearer.
    """
    _check_names(cluster, names)
    progress = _Progress(on_progress, len(measurements))

    def made(after: bool) -> list[Prediction]:
        predictions = []
        for m in measurements:
            progress.report(f"planning {m.model or m.plan}")
            predictions.append(Prediction(m, cluster, capture, load_plan, after=after))
            progress.done += 1
        return predictions

    choices = [made(False)]
    if names is not None and AFTER in names:
        progress.total *= 2
        choices.append(made(True))
    numbers = [name for name in names or () if name != AFTER]
    fits = [
        _Fitter(cluster, [p for p in predictions if not p.measurement.held_out], progress)
        for predictions in choices
    ]
    results = [f.fit(f.starts(numbers)) if numbers else f.fit_determined() for f in fits]
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
    for name in names or ():
        if name not in NUMBERS and name != AFTER:
            raise InputError(
                f"{quote(name)} cannot be fitted: choose from {', '.join((*NUMBERS, AFTER))}."
            )
        if name in ("link", "network") and not value_of(cluster, name):
            raise InputError(f"{cluster.name} has no {name} whose bandwidth could be fitted.")
    if names is not None and len(set(names)) != len(names):
        raise InputError("a number is named twice to be fitted: name each once.")
    if names is not None and not set(names) - {AFTER}:
        raise InputError(f"name at least one number to be fitted: {', '.join(NUMBERS)}.")


class _Progress:
    """Counts what is done: plans that are made, then rounds of simulations."""

    def __init__(self, on_progress: OnProgress, total: int) -> None:
        self._on_progress, self.done, self.total = on_progress, 0, total

    def report(self, step: str) -> None:
        self._on_progress({"step": step, "done": min(self.done, self.total), "of": self.total})


class _Result(NamedTuple):
    values: dict[str, float]  # by number that was fitted
    squares: float  # the sum of the squared residuals
    flat: list[Array]  # directions in which the numbers are not determined


class _Fitter:
    """Fits numbers of a cluster to measurements, whose predictions are given."""

    def __init__(
        self, cluster: Cluster, predictions: Sequence[Prediction], progress: _Progress
    ) -> None:
        self.cluster, self.predictions, self.progress = cluster, predictions, progress

    def starts(self, names: Sequence[str]) -> dict[str, float]:
        """The values from which a fit starts: those of the cluster."""
        return {name: value_of(self.cluster, name) or NUMBERS[name].start for name in names}

    def fit(self, starts: Mapping[str, float]) -> _Result:
        """Fits the numbers of `starts`, from these values on."""
        names = list(starts)
        low, high = (np.log([NUMBERS[name][at] for name in names]) for at in (1, 2))
        x = np.log([starts[name] for name in names])
        result = fit(lambda x: self._residuals(names, x), x, low, high)
        values = {name: math.exp(v) for name, v in zip(names, result.x, strict=True)}
        return _Result(values, float(result.residuals @ result.residuals), result.flat)

    def fit_determined(self) -> _Result:
        """Fits the usual numbers that the measurements determine, fewer than there are measurements.

        A number may come to matter when others are fitted, as links do when devices compute faster: so it
        chooses again at the fitted values, until nothing is added.
        """
        starts = self.starts([name for name in USUAL if value_of(self.cluster, name)])
        most = max(1, len(self.predictions) - 1)
        names, result = list[str](), _Result({}, math.inf, [])
        while len(names) < most:
            added = [name for name in self._determined(starts) if name not in names]
            if not added:
                break
            chosen = {*names, *added[: most - len(names)]}
            names = [name for name in starts if name in chosen]
            result = self.fit({name: starts[name] for name in names})
            starts |= result.values
        if not names:
            raise InputError(
                "the measurements depend on no number of the cluster: name some with --fit."
            )
        return result

    def _determined(self, values: Mapping[str, float]) -> list[str]:
        """Those of some numbers that the measurements determine near these values."""
        names = list(values)
        low, high = (np.log([NUMBERS[name][at] for name in names]) for at in (1, 2))
        x = np.log([*values.values()])
        r = self._residuals(names, x)
        j = influences(lambda moved: self._residuals(names, moved), x, r, low, high)
        return [names[k] for k in determined(j)]

    def _residuals(self, names: Sequence[str], x: Array) -> Array:
        """By measurement, the logarithm of predicted over measured seconds; x: those of the numbers."""
        self.progress.report("simulating")
        values = {name: math.exp(v) for name, v in zip(names, x, strict=True)}
        ratios = [p.seconds(values) / p.measured_seconds for p in self.predictions]
        return np.log(ratios)


def _traded_with(name: str, names: Sequence[str], flat: Sequence[Array]) -> tuple[str, ...]:
    """The numbers of a flat direction in which `name` has a part of at least a tenth."""
    k = names.index(name)
    together = [
        other
        for direction in flat
        if abs(direction[k]) >= 0.1
        for other, part in zip(names, direction, strict=True)
        if abs(part) >= 0.1
    ]
    return tuple(dict.fromkeys(together))


def _row(prediction: Prediction, values: Mapping[str, float]) -> ComparedRow:
    plan = prediction.plan
    return ComparedRow(
        prediction.measurement, plan.model, plan.batch, plan.sync, prediction.measured_seconds,
        prediction.seconds(values), prediction.seconds({}),
    )  # fmt: skip
