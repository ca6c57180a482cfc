"""Fits positive numbers so that predicted seconds are near measured ones: least squares on log ratios.

Levenberg and Marquardt's method, on the logarithms of the numbers. A ratio of 1.1 counts as much as one of
1 / 1.1, and a step of 1 ms as much as one of 1 s. Derivatives are differences, because the simulation has
none. A timeline has kinks where its critical path changes: a link that is hidden behind computing has no
effect until it is several times slower. So each number is also tried at distant values, and the method goes
on from the best of them. Nothing is random: equal measurements give equal numbers.
"""

# r: residuals, one for each measurement; j: their derivatives, a column for each number; x: logarithms

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Array = np.ndarray
STEP = 0.02  # of a logarithm, for a derivative: 2 %
ITERATIONS = 30
ENOUGH = 1e-4  # of a logarithm: the fit ends when no number changes by more
# A direction is flat if a change of the numbers along it by 10 % changes no prediction by more than 0.3 %.
FLAT = 0.03
DISTANT = np.log([1 / 8, 1 / 4, 1 / 2, 2, 4, 8])  # factors at which a number is tried
ROUNDS = 4  # of trials at distant values


class Fit(NamedTuple):
    """The best numbers, and the directions in which they may change without effect."""

    x: Array  # logarithms
    residuals: Array  # logarithms of predicted over measured
    # Unit vectors: combinations of the numbers that the measurements do not determine.
    flat: list[Array]


def fit(residuals_of: Callable[[Array], Array], start: Array, low: Array, high: Array) -> Fit:
    """Minimises the sum of squares of `residuals_of`, between the bounds."""
    x, r = _descend(residuals_of, np.clip(start, low, high), low, high)
    for _ in range(ROUNDS):
        ends = [
            _descend(residuals_of, trial, low, high)
            for trial in _distant_trials(residuals_of, x, r, low, high)
        ]
        best = min(ends, key=lambda end: float(end[1] @ end[1]), default=(x, r))
        if best[1] @ best[1] >= (1 - ENOUGH) * (r @ r):
            break
        x, r = best
    return Fit(x, r, flat_directions(derivatives(residuals_of, x, r, high)))


def _distant_trials(
    residuals_of: Callable[[Array], Array], x: Array, r: Array, low: Array, high: Array
) -> list[Array]:
    """By number, its best distant value, if it is worth a descent.

    It is if it is nearer to the measurements than x is, or if the number has an effect there and not at x.
    """
    trials, effects = [], np.linalg.norm(derivatives(residuals_of, x, r, high), axis=0)
    for k in range(len(x)):
        points = np.repeat(x[None], len(DISTANT), axis=0)
        points[:, k] = np.clip(points[:, k] + DISTANT, low[k], high[k])
        residuals = [residuals_of(point) for point in points]
        squares = [float(new_r @ new_r) for new_r in residuals]
        if effects[k] < FLAT:  # only values with an effect
            unchanged = [np.abs(new_r - r).max() < FLAT for new_r in residuals]
            squares = [math.inf if u else s for u, s in zip(unchanged, squares, strict=True)]
        best = int(np.argmin(squares))
        if squares[best] < (math.inf if effects[k] < FLAT else (1 - ENOUGH) * float(r @ r)):
            trials.append(points[best])
    return trials


def _descend(
    residuals_of: Callable[[Array], Array], x: Array, low: Array, high: Array
) -> tuple[Array, Array]:
    """The numbers and residuals of the next local minimum."""
    r, damping = residuals_of(x), 1e-3
    for _ in range(ITERATIONS):
        j = derivatives(residuals_of, x, r, high)
        improved = False
        while not improved and damping < 1e6:
            step = _damped_step(j, r, damping)
            new = np.clip(x + np.clip(step, -1.5, 1.5), low, high)
            new_r = residuals_of(new)
            improved = bool(new_r @ new_r < r @ r)
            damping = max(damping / 10, 1e-9) if improved else damping * 10
        if not improved:
            break
        change, x, r = float(np.abs(new - x).max()), new, new_r
        if change < ENOUGH:
            break
    return x, r


def _damped_step(j: Array, r: Array, damping: float) -> Array:
    """The step that solves (jᵀj + damping) step = -jᵀr, in the least norm."""
    normal = j.T @ j + damping * np.eye(j.shape[1])
    return np.asarray(np.linalg.solve(normal, -j.T @ r))


def derivatives(residuals_of: Callable[[Array], Array], x: Array, r: Array, high: Array) -> Array:
    """By measurement and number: the change of the residual over that of the number's logarithm."""
    columns = []
    for k in range(len(x)):
        step = -STEP if x[k] + STEP > high[k] else STEP
        moved = x.copy()
        moved[k] += step
        columns.append((residuals_of(moved) - r) / step)
    return np.stack(columns, axis=1)


def influences(
    residuals_of: Callable[[Array], Array], x: Array, r: Array, low: Array, high: Array
) -> Array:
    """As `derivatives`, but over the most distant values; of the two, the one with the larger effect."""
    columns = []
    for k in range(len(x)):
        secants = []
        for change in (DISTANT[0], DISTANT[-1]):
            moved = x.copy()
            moved[k] = np.clip(moved[k] + change, low[k], high[k])
            if moved[k] != x[k]:
                secants.append((residuals_of(moved) - r) / (moved[k] - x[k]))
        columns.append(max(secants, key=lambda secant: float(secant @ secant)))
    return np.stack(columns, axis=1)


def flat_directions(j: Array) -> list[Array]:
    """The directions of the numbers that change no residual noticeably."""
    _, singular, directions = np.linalg.svd(j, full_matrices=True)
    # More numbers than measurements: the directions behind the last singular value are flat too.
    sizes = np.concatenate([singular, np.zeros(len(directions) - len(singular))])
    return [d for d, size in zip(directions, sizes, strict=True) if size < FLAT]


def determined(j: Array, least: float = 0.1) -> list[int]:
    """The columns that the measurements determine together, the most influential first.

    Chosen one after the other: that with the largest part that the columns before it do not explain.
    """
    left, chosen = j.astype(float).copy(), list[int]()
    for _ in range(min(j.shape)):
        norms = np.linalg.norm(left, axis=0)
        best = int(np.argmax(norms))
        if norms[best] < least:
            break
        chosen.append(best)
        unit = left[:, best] / norms[best]
        left -= np.outer(unit, unit @ left)
    return chosen
