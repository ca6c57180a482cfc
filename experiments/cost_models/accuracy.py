"""Measures how accurate predicted step times are: their order, their size, and the plan they choose.

order    Spearman's and Kendall's rank correlation
size     the relative error after one common factor was fitted for all plans
choice   the regret: how much slower the plan predicted to be best is than the really best plan
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from experiments.rank_correlation import kendall, spearman


class Accuracy(NamedTuple):
    """The accuracy of one cost model over some plans."""

    spearman: float  # rank correlation of predicted and measured step times
    kendall: float
    median_error: float  # relative error after the fit
    worst_error: float  # the largest of the same errors
    regret: float  # 0.1: the plan predicted to be best takes 10 % longer than the best
    factor: float  # the fitted factor, by which predictions are multiplied
    predicted_best: int  # index of the plan predicted to be best


def measure_accuracy(predicted: Sequence[float], measured: Sequence[float]) -> Accuracy:
    """Returns the accuracy of predictions; both lists are step times by plan, in the same order."""
    factor = fit_factor(predicted, measured)
    errors = [abs(e) for e in relative_errors([factor * p for p in predicted], measured)]
    predicted_best = predicted.index(min(predicted))
    return Accuracy(
        spearman(predicted, measured), kendall(predicted, measured), statistics.median(errors),
        max(errors), measured[predicted_best] / min(measured) - 1, factor, predicted_best,
    )  # fmt: skip


def fit_factor(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Returns the median of measured / predicted; predictions of 0 do not count."""
    ratios = [m / p for p, m in zip(predicted, measured, strict=True) if p > 0]
    return statistics.median(ratios) if ratios else math.nan


def relative_errors(predicted: Sequence[float], measured: Sequence[float]) -> list[float]:
    """Returns the relative errors; negative if the prediction is too small."""
    return [p / m - 1 for p, m in zip(predicted, measured, strict=True)]
