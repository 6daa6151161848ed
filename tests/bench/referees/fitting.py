"""How the parameters of a model are fitted and judged: least squares of the logarithms of the seconds; 5-fold, and from 20
rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

Floats: TypeAlias = NDArray[np.float64]
Model: TypeAlias = Callable[[Floats, Floats], Floats]
"""Seconds of rows, by the logarithms of the parameters."""
TOLD = "{:15}: before {:6.1%}  preset {:6.1%}  5-fold {:6.1%}  20 rows {:6.1%}"


def fitted(model: Model, starts: Sequence[Sequence[float]], rows: Floats, seconds: Floats) -> Floats:
    """The logarithms of the parameters, from the best of several starts."""

    def residuals(logs: Floats) -> Any:
        return np.log(model(logs, rows)) - np.log(seconds)

    runs = [
        least_squares(residuals, np.log(start), loss="soft_l1", f_scale=0.1, max_nfev=60, diff_step=1e-3) for start in starts
    ]
    return np.asarray(min(runs, key=lambda run: run.cost).x)


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
