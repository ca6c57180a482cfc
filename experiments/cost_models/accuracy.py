"""How well predictions agree with what was measured: in order, in size, and in what one would choose.

order    Spearman's and Kendall's rank correlation
size     the relative error, as predicted, and after one factor was fitted for all plans together
choice   the regret: how much slower the plan that is predicted to be best is than the best
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from experiments.rank_correlation import kendall, spearman


class Accuracy(NamedTuple):
    spearman: float
    kendall: float
    median_error: float  # relative error after the fit
    worst_error: float
    regret: float
    factor: float  # that was fitted
    predicted_best: int  # which plan is predicted to be best


def measure_accuracy(predicted: Sequence[float], measured: Sequence[float]) -> Accuracy:
    factor = fit_factor(predicted, measured)
    off = [abs(e) for e in relative_errors([factor * p for p in predicted], measured)]
    first = predicted.index(min(predicted))
    return Accuracy(
        spearman(predicted, measured), kendall(predicted, measured), statistics.median(off),
        max(off), measured[first] / min(measured) - 1, factor, first,
    )  # fmt: skip


def fit_factor(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """The middle of what predictions would have to be multiplied by; those of nothing do not count."""
    ratios = [m / p for p, m in zip(predicted, measured, strict=True) if p > 0]
    return statistics.median(ratios) if ratios else math.nan


def relative_errors(predicted: Sequence[float], measured: Sequence[float]) -> list[float]:
    """Relative, negative where the prediction is too small."""
    return [p / m - 1 for p, m in zip(predicted, measured, strict=True)]
