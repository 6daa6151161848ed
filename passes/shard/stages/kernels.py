"""The compiled loops of the dynamic programmes over sequences of stages and over units."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from passes.model.kernels import compiled
from passes.shard.problem.problem import Floats

SLOWEST, SUM, COUNT = 0, 1, 2
"""What is minimised: the largest seconds of a stage, their sum, the number of stages."""


@compiled
def advance(
    goal: int,
    limit: float,
    ahead: Floats,
    table: Floats,
    least: Floats,
    came: NDArray[np.int32],
    number: int,
    value: Floats,
    block: NDArray[np.int32],
    start: NDArray[np.int32],
    shape: NDArray[np.int32],
) -> None:
    """One more stage, on block ``number``, with ``table[i, j]`` seconds of at most ``limit``: from plans of i units worth
    ``ahead[i]``, whose last stage has the shape ``came[i]``, to those of j, where they are better than ``value[j]``.
    ``least[i, j]`` is the least of ``table[i, j:]``."""
    units = len(table)
    for i in range(units):
        if not ahead[i] < np.inf:
            continue
        for j in range(i + 1, units + 1):
            if not least[i, j] <= limit:
                break
            seconds = table[i, j]
            if not seconds <= limit:
                continue
            if goal == SLOWEST:
                found = max(ahead[i], seconds)
            elif goal == SUM:
                found = ahead[i] + seconds
            else:
                found = ahead[i] + 1.0
            if found < value[j]:
                value[j], block[j], start[j], shape[j] = found, number, i, came[i]


@compiled
def through(rows: Floats, table: Floats) -> Floats:
    """The (min, +) product of ``rows[i, p]`` and ``table[p, q]``."""
    found = np.full((len(rows), table.shape[1]), np.inf)
    for i in range(len(rows)):
        for p in range(table.shape[0]):
            before = rows[i, p]
            if before < np.inf:
                for q in range(table.shape[1]):
                    found[i, q] = min(found[i, q], before + table[p, q])
    return found


__all__ = ["COUNT", "SLOWEST", "SUM", "advance", "through"]
