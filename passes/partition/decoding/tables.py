"""What the search asks of all boxes of some batches, as arrays: seconds, groups and paths of runs of units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from passes.partition.decoding.problem import Decoding, Runs
from passes.partition.layouts.problem.problem import Floats


@dataclass(slots=True)
class Tables:
    """What is asked of all boxes of the batches numbered ``low .. high``, in seconds per token: runs, and of each the best
    longer run with the cheapest borders; hops to a stage that begins with a unit; paths of stages by set of types, of the
    fastest and of the slowest, without detours; and the least paths of what is left from a unit on."""

    low: int
    high: int
    runs: Runs
    longer: Runs
    hops: Floats
    fast: Floats
    slow: Floats
    rest: Floats


def tables_of(problem: Decoding, kinds: Sequence[int], low: int, high: int) -> Tables:
    """The tables of the batches numbered ``low .. high``. ``kinds``: sets of types that a stage may have, as bits."""
    detours = problem.detours
    seconds, sets = problem.seconds_of_runs(low, high), problem.sets(low)
    detour, links = (problem.least(values, low, high) for values in (detours.seconds, detours.links))
    longer = (seconds, sets) if problem.borders is None else (_best_longer(seconds), -_best_longer(-sets))
    least = np.cumsum(problem.least(problem.seconds, low, high).min(axis=0)[::-1])[::-1]
    members = [[kind for kind in range(len(problem.counts)) if present >> kind & 1] for present in kinds]
    hops = problem.least(problem.hops, low, high)
    return Tables(
        low,
        high,
        Runs(seconds, sets, detour, links),
        Runs(*longer, _cheapest(detour), _cheapest(links)),
        hops,
        np.stack([seconds[own].min(axis=0) for own in members]) + hops[:, None],
        np.stack([seconds[own].max(axis=0) for own in members]) + hops[:, None],
        np.append(least, 0.0),
    )


def _cheapest(values: Floats) -> Floats:
    """``[route, type, unit]``: between the ends, the least of all units."""
    found = values.copy()
    if values.shape[2] > 2:
        found[:, :, 1:-1] = values[:, :, 1:-1].min(axis=2, keepdims=True)
    return found


def _best_longer(values: Floats) -> Floats:
    """``[type, i, j]``: the least of all runs that have units i .. j - 1."""
    behind = np.minimum.accumulate(values[:, :, ::-1], axis=2)[:, :, ::-1]
    return np.asarray(np.minimum.accumulate(behind, axis=1))
