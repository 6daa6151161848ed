"""The compiled loops of the search for decoding plans: what devices can hold together, and the dynamic programmes over cuts and
devices.

A *state* is the number of a vector of devices by type (``problem.vectors``); ``blocks``: the vectors, by number, that a stage
may have, none of them empty."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from passes.partition.layouts.problem.problem import Floats
from passes.solvers.kernels import compiled, part


@part
def suffices(takes: Floats, vector: NDArray[np.int64], i: int, j: int, need: float, all_take: bool) -> bool:
    """Whether devices of a vector take ``need`` of the run i .. j - 1 together; ``all_take``: each at least 1."""
    total, each = 0.0, True
    for kind in range(len(vector)):
        if vector[kind]:
            total += vector[kind] * max(takes[kind, i, j], 0.0)
            each = each and takes[kind, i, j] >= 1
    return total >= need and (each or not all_take)


@compiled
def furthest(
    takes: Floats, vectors: NDArray[np.int64], blocks: NDArray[np.int64], need: float, all_take: bool
) -> NDArray[np.int32]:
    """``[block, i]``: the greatest j for which a block takes ``need`` of the run i .. j - 1, i where there is none.
    ``takes[type, i, j]``: what one device takes of it, not more for a longer run."""
    units = takes.shape[1]
    found = np.zeros((len(blocks), units), np.int32)
    for x in range(len(blocks)):
        j = 0
        for i in range(units):
            j = max(j, i)
            while j < units and suffices(takes, vectors[blocks[x]], i, j + 1, need, all_take):
                j += 1
            found[x, i] = j
    return found


@part
def fits(vectors: NDArray[np.int64], small: int, large: int) -> bool:
    """Whether a vector of devices, by number, is nowhere greater than another."""
    found = True
    for kind in range(vectors.shape[1]):
        found = found and vectors[small, kind] <= vectors[large, kind]
    return bool(found)


@compiled
def reached(far: NDArray[np.int32], vectors: NDArray[np.int64], blocks: NDArray[np.int64], stages: int) -> bool:
    """Whether all devices together reach the last unit, stage by stage as ``furthest`` says, in at most so many stages (0: any
    number)."""
    states, units = len(vectors), far.shape[1]
    best = np.zeros((stages + 1, states), np.int32)
    for layer in range(min(stages, 1), stages + 1):
        before = max(layer - 1, 0)
        for state in range(1, states):
            best[layer, state] = max(best[layer, state], best[before, state])
            for x in range(len(blocks)):
                if blocks[x] > state:
                    break
                if fits(vectors, blocks[x], state):
                    start = best[before, state - blocks[x]]
                    if start == units:
                        return True
                    best[layer, state] = max(best[layer, state], far[x, start])
    return bool(best[stages, states - 1] == units)


@compiled
def shortest(
    takes: Floats,
    far: NDArray[np.int32],
    vectors: NDArray[np.int64],
    blocks: NDArray[np.int64],
    kind_of: NDArray[np.int64],
    path: Floats,
    rest: Floats,
    limits: tuple[float, float, bool],
    stages: int,
) -> tuple[Floats, NDArray[np.int32]]:
    """``value[layer, state, j]``: the least sum of paths of stages of units 0 .. j - 1 on the devices of a state, infinite
    where it is beyond the budget or some of these devices do no worse, of ``layer`` stages (of any number in layer 0 where
    ``stages`` is 0);
    ``way[layer, state, j]``: block and first unit of the last stage. ``path[kind_of[block], i, j]``: seconds of a stage;
    ``rest[j]``: the least of what follows. ``limits``: what a block has to take of a run, whether all its devices must
    (``suffices``), and the budget."""
    need, budget, all_take = limits
    states, units = len(vectors), far.shape[1]
    value = np.full((stages + 1, states, units + 1), math.inf)
    least = np.full((stages + 1, states, units + 1), math.inf)
    way = np.full((stages + 1, states, units + 1, 2), -1, np.int32)
    ends = np.full((stages + 1, states, 2), -1, np.int32)
    value[0, 0, 0] = least[0, 0, 0] = 0.0
    ends[0, 0, 0], ends[0, 0, 1] = 0, 1
    for layer in range(min(stages, 1), stages + 1):
        before = max(layer - 1, 0)
        for state in range(1, states):
            bound, stride = least[layer, state], 1
            for kind in range(vectors.shape[1] - 1, -1, -1):
                if vectors[state, kind]:
                    bound[:] = np.minimum(bound, least[layer, state - stride])
                stride *= vectors[states - 1, kind] + 1
            for x in range(len(blocks)):
                if blocks[x] > state:
                    break
                begin, end = ends[before, state - blocks[x]]
                if begin < 0 or not fits(vectors, blocks[x], state):
                    continue
                costs = path[kind_of[x]]
                for i in range(begin, end):
                    start = value[before, state - blocks[x], i]
                    if start + rest[i] > budget:
                        continue
                    for j in range(i + 1, far[x, i] + 1):
                        total = start + costs[i, j]
                        if total >= bound[j] or total + rest[j] > budget:
                            continue
                        if suffices(takes, vectors[blocks[x]], i, j, need, all_take):
                            value[layer, state, j] = bound[j] = total
                            way[layer, state, j, 0], way[layer, state, j, 1] = x, i
            for j in range(units):
                if value[layer, state, j] < math.inf:
                    if ends[layer, state, 0] < 0:
                        ends[layer, state, 0] = j
                    ends[layer, state, 1] = j + 1
    return value, way
