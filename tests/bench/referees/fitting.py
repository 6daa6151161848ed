"""How the parameters of a model are fitted and judged: least squares of the logarithms of the seconds; 5-fold, and from 20
rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Model: TypeAlias = Callable[[Floats, Floats], Floats]
"""Seconds of rows, by the logarithms of the parameters."""
TOLD = "{:15}: before {:6.1%}  preset {:6.1%}  5-fold {:6.1%}  20 rows {:6.1%}"


FAR = 0.1
"""Of a residual: beyond it, it counts about as itself and no longer as its square."""
STEP = 1e-3
"""Of a parameter, for slopes."""
FARTHEST = 3.0
"""Of a parameter, in a round."""
ROUNDS = 60
SETTLED = 1e-9
"""Relative: a sum that falls by less has settled."""


def least(residuals: Callable[[Floats], Floats], start: Floats) -> tuple[Floats, float]:
    """Where the sum of sqrt(1 + (r / FAR)^2) over residuals r is least, near ``start``, and the sum: Levenberg and Marquardt's
    method on squares of residuals weighted by 1 / sqrt(1 + (r / FAR)^2), which have the same slope."""
    x, found = start, residuals(start)
    damping = 1e-3
    for _ in range(ROUNDS):
        slopes = np.stack([(residuals(x + STEP * unit) - found) / STEP for unit in np.eye(len(x))], axis=1)
        weighted = slopes / np.hypot(1, found / FAR)[:, None]
        curvature, slope = weighted.T @ slopes, weighted.T @ found
        before = total(found)
        while damping < 1e9:
            move = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature) + 1e-12), -slope)
            moved = x + np.clip(move, -FARTHEST, FARTHEST)
            there = residuals(moved)
            if total(there) < before:
                break
            damping *= 4
        else:
            break
        x, found, damping = moved, there, damping / 8
        if total(found) > before * (1 - SETTLED):
            break
    return x, total(found)


def total(residuals: Floats) -> float:
    return float(np.hypot(1, residuals / FAR).sum())


def fitted(model: Model, starts: Sequence[Sequence[float]], rows: Floats, seconds: Floats) -> Floats:
    """The logarithms of the parameters, from the best of several starts."""

    def residuals(logs: Floats) -> Floats:
        return np.asarray(np.log(model(logs, rows)) - np.log(seconds))

    return min((least(residuals, np.log(start)) for start in starts), key=lambda one: one[1])[0]


def error(model: Model, logs: Floats, rows: Floats, seconds: Floats) -> Floats:
    return np.abs(model(logs, rows) / seconds - 1)


def judged(model: Model, starts: Sequence[Sequence[float]], rows: Floats, seconds: Floats) -> tuple[float, float]:
    """Mean relative error on rows that were not fitted: 5-fold, and fitted to 20 rows (five draws)."""
    order = np.random.default_rng(0).permutation(len(rows))
    folds = []
    for fold in range(5):
        out = order[fold::5]
        rest = np.setdiff1d(order, out)
        folds.append(error(model, fitted(model, starts, rows[rest], seconds[rest]), rows[out], seconds[out]))
    few = []
    for draw in range(5):
        order = np.random.default_rng(1 + draw).permutation(len(rows))
        some, out = order[:20], order[20:]
        few.append(error(model, fitted(model, starts, rows[some], seconds[some]), rows[out], seconds[out]))
    return float(np.concatenate(folds).mean()), float(np.concatenate(few).mean())
