"""Computes rank correlations of two lists of numbers, with ties: Spearman's rho and Kendall's tau-b.

The experiments use them to say how well predicted step times rank plans as measured ones do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def ranks(values: Sequence[float]) -> list[float]:
    """Returns the ranks, from 1; equal values share the mean of their ranks: 3, 1, 3 -> 2.5, 1, 2.5."""
    order = sorted(range(len(values)), key=values.__getitem__)
    result = [0.0] * len(values)
    begin = 0
    while begin < len(order):
        end = begin
        while end < len(order) and values[order[end]] == values[order[begin]]:
            end += 1
        for index in order[begin:end]:  # equal values, which have the ranks begin + 1 to end
            result[index] = (begin + 1 + end) / 2
        begin = end
    return result


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Returns Pearson's correlation of the ranks; nan if all values of a list are equal."""
    assert len(a) == len(b), (len(a), len(b))
    x, y = _centred(ranks(a)), _centred(ranks(b))
    norms = math.sqrt(math.fsum(v * v for v in x) * math.fsum(v * v for v in y))
    return math.fsum(u * v for u, v in zip(x, y, strict=True)) / norms if norms else math.nan


def kendall(a: Sequence[float], b: Sequence[float]) -> float:
    """Returns Kendall's tau-b; nan if all values of a list are equal.

    It is (pairs in the same order - pairs in opposite order) / sqrt(untied pairs of a * those of b).
    """
    assert len(a) == len(b), (len(a), len(b))
    # agree: pairs in the same order minus pairs in opposite order; in_a, in_b: untied pairs of a, of b
    agree = in_a = in_b = 0
    for i in range(len(a)):
        for j in range(i):
            u, v = _sign(a[i] - a[j]), _sign(b[i] - b[j])
            agree += u * v
            in_a += u * u
            in_b += v * v
    return agree / math.sqrt(in_a * in_b) if in_a and in_b else math.nan


def _centred(values: Sequence[float]) -> list[float]:
    """Returns the values minus their mean."""
    mean = math.fsum(values) / len(values) if values else 0.0
    return [value - mean for value in values]


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
