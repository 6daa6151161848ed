"""The compiled loops of the search for decoding plans: what devices can hold together, and the dynamic programmes over cuts and
devices."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from passes.partition.layouts.problem.problem import Floats
from passes.solvers.kernels import compiled


@compiled
def furthest(takes: Floats, vectors: NDArray[np.int64], need: float, all_take: bool) -> NDArray[np.int32]:
    """``[m, i]``: the greatest j for which devices m take ``need`` of the run i .. j - 1 together, i where there is none.
    ``takes[type, i, j]``: what one device takes of it, not more for a longer run; ``all_take``: each at least 1."""
    kinds, units = takes.shape[0], takes.shape[1]
    found = np.zeros((len(vectors), units), np.int32)
    for m in range(len(vectors)):
        j = 0
        for i in range(units):
            j = max(j, i)
            while j < units:
                total, each = 0.0, True
                for kind in range(kinds):
                    if vectors[m, kind]:
                        total += vectors[m, kind] * max(takes[kind, i, j + 1], 0.0)
                        each = each and takes[kind, i, j + 1] >= 1
                if total < need or (all_take and not each):
                    break
                j += 1
            found[m, i] = j
    return found


@compiled
def reached(far: NDArray[np.int32], vectors: NDArray[np.int64]) -> bool:
    """Whether all devices together reach the last unit, stage by stage as ``furthest`` says."""
    states, units = far.shape
    best = np.zeros(states, np.int32)
    for state in range(1, states):
        for m in range(1, state + 1):
            below = True
            for kind in range(vectors.shape[1]):
                below = below and vectors[m, kind] <= vectors[state, kind]
            if below:
                start = best[state - m]
                if start == units:
                    return True
                best[state] = max(best[state], far[m, start])
    return bool(best[states - 1] == units)


@compiled
def shortest(
    far: NDArray[np.int32],
    vectors: NDArray[np.int64],
    kind_of: NDArray[np.int64],
    path: Floats,
    rest: Floats,
    budget: float,
) -> tuple[Floats, NDArray[np.int32]]:
    """``value[state, j]``: the least sum of paths of stages of units 0 .. j - 1 on the devices of a state, infinite where it is
    beyond ``budget``; ``way[state, j]``: devices and first unit of the last stage. ``path[kind_of[m], i, j]``: seconds of a
    stage; ``rest[j]``: the least of what follows."""
    states, units = far.shape
    value, way = np.full((states, units + 1), math.inf), np.full((states, units + 1, 2), -1, np.int32)
    value[0, 0] = 0.0
    for state in range(1, states):
        for m in range(1, state + 1):
            below = True
            for kind in range(vectors.shape[1]):
                below = below and vectors[m, kind] <= vectors[state, kind]
            if not below:
                continue
            costs = path[kind_of[m]]
            for i in range(units):
                start = value[state - m, i]
                if start + rest[i] > budget:
                    continue
                for j in range(i + 1, far[m, i] + 1):
                    total = start + costs[i, j]
                    if total < value[state, j] and total + rest[j] <= budget:
                        value[state, j] = total
                        way[state, j, 0], way[state, j, 1] = m, i
    return value, way


__all__ = ["furthest", "reached", "shortest"]
