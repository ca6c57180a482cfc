"""Fits positive numbers so that predicted seconds are near measured ones: least squares on log ratios.

The numbers are those of a cluster, such as the bandwidth of a link. A residual is the logarithm of
predicted over measured seconds: a ratio of 1.1 counts as much as one of 1 / 1.1, and a step of 1 ms as much
as one of 1 s. Levenberg and Marquardt's method minimises the sum of their squares over the logarithms of
the numbers. Derivatives are finite differences, because a simulation has no derivatives. A timeline has
kinks where its critical path changes: a link that is hidden behind computing has no effect until it is
several times slower. So each number is also tried at distant values, and the method goes on from the best
of them. Nothing is random: equal measurements give equal numbers.
"""

# x: logarithms of the numbers; r: residuals, one for each measurement; j: derivatives of r by x, a row for
# each measurement and a column for each number; k: index of a number

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Array = np.ndarray
STEP = 0.02  # change of a logarithm for a finite difference: the number changes by 2 %
ITERATIONS = 30  # the most steps of a descent
ENOUGH = 1e-4  # a descent ends when no logarithm changes by more
# A direction is flat if a change of the numbers along it by 10 % changes no prediction by more than 0.3 %:
# the limit of the derivative is 0.3 / 10.
FLAT = 0.03
DISTANT = np.log([1 / 8, 1 / 4, 1 / 2, 2, 4, 8])  # factors for the distant values of a number
ROUNDS = 4  # rounds of trials at distant values


class Fit(NamedTuple):
    """The best numbers, and the directions in which they may change without effect."""

    x: Array  # logarithms of the numbers
    residuals: Array  # logarithms of predicted over measured
    # Unit vectors: combinations of the numbers that the measurements do not determine.
    flat: list[Array]


def fit(residuals_of: Callable[[Array], Array], start: Array, low: Array, high: Array) -> Fit:
    """Returns the x between `low` and `high` at which the sum of squares of `residuals_of(x)` is least."""
    x, r = _descend(residuals_of, np.clip(start, low, high), low, high)
    for _ in range(ROUNDS):
        minima = [  # (x, r) of each
            _descend(residuals_of, trial, low, high)
            for trial in _distant_trials(residuals_of, x, r, low, high)
        ]
        best = min(minima, key=lambda minimum: float(minimum[1] @ minimum[1]), default=(x, r))
        if best[1] @ best[1] >= (1 - ENOUGH) * (r @ r):
            break
        x, r = best
    return Fit(x, r, flat_directions(derivatives(residuals_of, x, r, high)))


def _distant_trials(
    residuals_of: Callable[[Array], Array], x: Array, r: Array, low: Array, high: Array
) -> list[Array]:
    """Returns points x at which one number has its best distant value, if they are worth a descent.

    They are if their predictions are nearer to the measurements than those of x, or if the number has an
    effect there but not at x.
    """
    trials, effects = [], np.linalg.norm(derivatives(residuals_of, x, r, high), axis=0)
    for k in range(len(x)):
        points = np.repeat(x[None], len(DISTANT), axis=0)
        points[:, k] = np.clip(points[:, k] + DISTANT, low[k], high[k])
        residuals = [residuals_of(point) for point in points]
        squares = [float(new_r @ new_r) for new_r in residuals]
        if effects[k] < FLAT:  # the number has no effect at x: only values with an effect count
            unchanged = [np.abs(new_r - r).max() < FLAT for new_r in residuals]
            squares = [math.inf if u else s for u, s in zip(unchanged, squares, strict=True)]
        best = int(np.argmin(squares))
        if squares[best] < (math.inf if effects[k] < FLAT else (1 - ENOUGH) * float(r @ r)):
            trials.append(points[best])
    return trials


def _descend(
    residuals_of: Callable[[Array], Array], x: Array, low: Array, high: Array
) -> tuple[Array, Array]:
    """Returns x and r of a local minimum that is reached from x."""
    r, damping = residuals_of(x), 1e-3
    for _ in range(ITERATIONS):
        j = derivatives(residuals_of, x, r, high)
        improved = False
        while not improved and damping < 1e6:
            step = _damped_step(j, r, damping)
            # 1.5: no number changes by more than a factor of e ** 1.5 = 4.5 at once
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
    """Returns the step that solves (jᵀj + damping · identity) step = -jᵀr."""
    normal = j.T @ j + damping * np.eye(j.shape[1])
    return np.asarray(np.linalg.solve(normal, -j.T @ r))


def derivatives(residuals_of: Callable[[Array], Array], x: Array, r: Array, high: Array) -> Array:
    """Returns j at x: the change of each residual over the change of a number's logarithm.

    r: the residuals at x. high: the upper bounds of x.
    """
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
    """Returns a matrix like j, where slopes to distant values of the numbers replace the derivatives.

    A slope is the change of a residual divided by the change of the number's logarithm. Each number is
    tried at 1/8 and at 8 times its value; the one of these with the larger effect counts.
    """
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
    """Returns unit vectors: a change of the numbers in such a direction changes no residual noticeably."""
    _, singular, directions = np.linalg.svd(j, full_matrices=True)
    # More numbers than measurements: the directions behind the last singular value are flat too.
    sizes = np.concatenate([singular, np.zeros(len(directions) - len(singular))])
    return [d for d, size in zip(directions, sizes, strict=True) if size < FLAT]


def determined(j: Array, least: float = 0.1) -> list[int]:
    """Returns the columns (numbers) that the measurements determine together, the most influential first.

    The next column is always the one with the largest component orthogonal to the columns before it.
    least: norm of that component below which a column is not determined.
    """
    remainder, chosen = j.astype(float).copy(), list[int]()
    for _ in range(min(j.shape)):
        norms = np.linalg.norm(remainder, axis=0)
        best = int(np.argmax(norms))
        if norms[best] < least:
            break
        chosen.append(best)
        unit = remainder[:, best] / norms[best]
        remainder -= np.outer(unit, unit @ remainder)
    return chosen
