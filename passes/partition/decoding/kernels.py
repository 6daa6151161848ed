"""The compiled loops of the search for decoding plans: what devices can hold together, and the dynamic programmes over cuts and
devices.

A *state* is the number of a vector of devices by type (``problem.vectors``); ``blocks``: the vectors, by number, that a stage
may have, none of them empty. A border between two stages is on a *route* (``problem.Detours``) that is open to both."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from passes.partition.decoding.problem import Asked, Devices, Runs
from passes.partition.layouts.problem.problem import Floats
from passes.solvers.kernels import compiled, part


@part
def taken(seconds: float, each: float, whole: bool) -> float:
    """How many groups of ``each`` seconds fit."""
    if each <= 0:
        return math.inf
    found = seconds / each * (1 + 1e-9)
    return math.floor(found) if whole and found < 1e15 else found


@part
def enough(takes: Floats, vector: NDArray[np.int64], i: int, j: int, need: float, whole: bool) -> bool:
    """``suffices`` where all borders are on one route."""
    total, each = 0.0, True
    for kind in range(len(vector)):
        if vector[kind]:
            total += vector[kind] * max(takes[kind, i, j], 0.0)
            each = each and takes[kind, i, j] >= 1
    return total >= need and (each or not whole)


@part
def suffices(runs: Runs, devices: Devices, x: int, i: int, j: int, begin: int, end: int, asked: Asked) -> bool:
    """Whether the devices of block ``x`` take what is needed of the run i .. j - 1 together, whose borders are on the routes
    ``begin`` and ``end``."""
    total, vector = 0.0, devices.vectors[devices.blocks[x]]
    for kind in range(len(vector)):
        if vector[kind]:
            each = runs.seconds[kind, i, j] + runs.detour[begin, kind, i] + runs.detour[end, kind, j]
            one = 0.0
            if each < math.inf:
                one = max(devices.bundles[kind] * min(runs.sets[kind, i, j], taken(asked.seconds, each, asked.whole)), 0.0)
            if asked.whole and one < 1:
                return False
            links = max(runs.links[begin, kind, i], runs.links[end, kind, j])
            total += min(vector[kind] * one, taken(asked.seconds, links, asked.whole))
    return total >= asked.need


@compiled
def furthest(runs: Runs, devices: Devices, asked: Asked) -> NDArray[np.int32]:
    """``[block, begin, end, i]``: the greatest j for which a block takes enough of the run i .. j - 1 between borders on two
    routes, i where there is none. A device takes no more of a longer run, and borders cost as much at all units."""
    units, routes = runs.seconds.shape[1], len(devices.open)
    found = np.zeros((len(devices.blocks), routes, routes, units), np.int32)
    if routes == 1:
        takes, vectors, blocks, need, whole = asked.takes, devices.vectors, devices.blocks, asked.need, asked.whole
        for x in range(len(blocks)):
            j = 0
            for i in range(units):
                j = max(i, j)
                while j < units and enough(takes, vectors[blocks[x]], i, j + 1, need, whole):
                    j += 1
                found[x, 0, 0, i] = j
        return found
    for x in range(len(devices.blocks)):
        for begin in range(routes):
            for end in range(routes):
                if not devices.open[end, x] or (begin and not devices.open[begin, x]):  # the start is on route 0
                    continue
                j = 0
                for i in range(units):
                    j = i if i <= 1 else max(i, j)
                    while j < units and suffices(runs, devices, x, i, j + 1, begin, end, asked):
                        j += 1
                    last = j < units and suffices(runs, devices, x, i, units, begin, end, asked)
                    found[x, begin, end, i] = units if last else j
    return found


@part
def fits(vectors: NDArray[np.int64], small: int, large: int) -> bool:
    """Whether a vector of devices, by number, is nowhere greater than another."""
    found = True
    for kind in range(vectors.shape[1]):
        found = found and vectors[small, kind] <= vectors[large, kind]
    return bool(found)


@compiled
def reached(far: NDArray[np.int32], devices: Devices, stages: int) -> bool:
    """Whether all devices together reach the last unit, stage by stage as ``furthest`` says, in at most so many stages (0: any
    number)."""
    vectors, blocks, opened = devices.vectors, devices.blocks, devices.open
    states, units, routes = len(vectors), far.shape[3], len(opened)
    best = np.zeros((stages + 1, states, routes), np.int32)
    for layer in range(min(stages, 1), stages + 1):
        before = max(layer - 1, 0)
        for state in range(1, states):
            for end in range(routes):
                best[layer, state, end] = max(best[layer, state, end], best[before, state, end])
            for x in range(len(blocks)):
                if blocks[x] > state:
                    break
                if not fits(vectors, blocks[x], state):
                    continue
                for begin in range(routes if blocks[x] < state else 1):
                    if begin and not opened[begin, x]:
                        continue
                    start = best[before, state - blocks[x], begin]
                    for end in range(routes):
                        if opened[end, x]:
                            there = far[x, begin, end, start]
                            if there == units:
                                return True
                            best[layer, state, end] = max(best[layer, state, end], there)
    return False


@part
def path_of(runs: Runs, devices: Devices, x: int, i: int, j: int, begin: int, end: int, slowest: bool) -> float:
    """Seconds per token of a run on the slowest, or the fastest, of the devices of block ``x``."""
    found, vector = 0.0 if slowest else math.inf, devices.vectors[devices.blocks[x]]
    for kind in range(len(vector)):
        if vector[kind]:
            each = runs.seconds[kind, i, j] + runs.detour[begin, kind, i] + runs.detour[end, kind, j]
            found = max(found, each) if slowest else min(found, each)
    return found


@part
def no_better(runs: Runs, devices: Devices, value: Floats, x: int, i: int, begin: int) -> bool:
    """Whether another route before unit ``i`` is as short so far, and costs block ``x`` nowhere more."""
    vector = devices.vectors[devices.blocks[x]]
    for other in range(begin):
        if devices.open[other, x] and value[other, i] <= value[begin, i]:
            cheaper = True
            for kind in range(len(vector)):
                if vector[kind] and (
                    runs.detour[other, kind, i] > runs.detour[begin, kind, i]
                    or runs.links[other, kind, i] > runs.links[begin, kind, i]
                ):
                    cheaper = False
            if cheaper:
                return True
    return False


@compiled
def shortest(
    runs: Runs,
    far: NDArray[np.int32],
    devices: Devices,
    paths: Floats,
    kind_of: NDArray[np.int64],
    hops: Floats,
    rest: Floats,
    asked: Asked,
    budget: float,
    stages: int,
) -> tuple[Floats, NDArray[np.int32]]:
    """``value[layer, state, route, j]``: the least sum of paths of stages of units 0 .. j - 1 on the devices of a state, whose
    last border is on a route; infinite where it is beyond the budget or some of these devices do no worse, of ``layer`` stages
    (of any number in layer 0 where ``stages`` is 0); ``way[layer, state, route, j]``: block, first unit and first border of the
    last stage. ``paths[kind_of[block], i, j]``: seconds of a stage without detours; ``hops[i]``: those to a stage that begins
    with unit i, among them; ``rest[j]``: the least of what follows."""
    vectors, blocks, opened = devices.vectors, devices.blocks, devices.open
    states, units, routes, takes, need = len(vectors), far.shape[3], len(opened), asked.takes, asked.need
    value = np.full((stages + 1, states, routes, units + 1), math.inf)
    least = np.full((stages + 1, states, routes, units + 1), math.inf)
    way = np.full((stages + 1, states, routes, units + 1, 3), -1, np.int32)
    ends = np.full((stages + 1, states, routes, 2), -1, np.int32)
    value[0, 0, 0, 0] = least[0, 0, 0, 0] = 0.0
    ends[0, 0, 0, 0], ends[0, 0, 0, 1] = 0, 1
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
                if not fits(vectors, blocks[x], state):
                    continue
                free = state - blocks[x]
                for begin in range(routes):
                    first, behind = ends[before, free, begin]
                    if first < 0 or (first > 0 and not opened[begin, x]):
                        continue
                    for i in range(first, behind):
                        start = value[before, free, begin, i]
                        if start + rest[i] > budget or no_better(runs, devices, value[before, free], x, i, begin):
                            continue
                        for end in range(routes):
                            if not opened[end, x]:
                                continue
                            for j in range(i + 1, far[x, begin, end, i] + 1):
                                total = start + paths[kind_of[x], i, j]
                                if total >= bound[end, j] or total + rest[j] > budget:
                                    continue
                                if routes == 1:
                                    if not enough(takes, vectors[blocks[x]], i, j, need, asked.whole):
                                        continue
                                else:
                                    if not suffices(runs, devices, x, i, j, begin, end, asked):
                                        continue
                                    total = start + hops[i] + path_of(runs, devices, x, i, j, begin, end, asked.whole)
                                if total < bound[end, j] and total + rest[j] <= budget:
                                    value[layer, state, end, j] = bound[end, j] = total
                                    way[layer, state, end, j, 0], way[layer, state, end, j, 1] = x, i
                                    way[layer, state, end, j, 2] = begin
            for end in range(routes):
                for j in range(units):
                    if value[layer, state, end, j] < math.inf:
                        if ends[layer, state, end, 0] < 0:
                            ends[layer, state, end, 0] = j
                        ends[layer, state, end, 1] = j + 1
    return value, way
