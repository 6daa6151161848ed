"""The compiled loop of the bound by intervals (``interval_bounds``). Arrays in, an array out."""

from __future__ import annotations

from typing import Any

import numpy as np

from passes.solvers.kernels import compiled


@compiled
def least_largest(following: Any, idle: Any, least: Any, count: int, most: float) -> Any:
    """The largest stage, ``[S, N]``, of the path to each state and each of ``count`` intervals whose largest stage is least;
    and how many stages were looked at. Paths begin at state 0 in interval 0 and have no stage of ``most`` or more.
    ``following[S, T]``: the state with one more stage of a kind, ``idle[S, D]``: the state with one more device that is not
    used, each a later one, or -1; ``least[T, N, N]``: a stage, by its kind and the intervals where it begins and ends."""
    states, kinds = following.shape
    ends, ended = np.empty((kinds, count, count), np.int32), np.zeros((kinds, count), np.int64)
    costs = np.empty((kinds, count, count))
    for kind in range(kinds):
        for here in range(count):
            for there in range(count):
                cost = least[kind, here, there]
                if cost < most:
                    ends[kind, here, ended[kind, here]], costs[kind, here, ended[kind, here]] = there, cost
                    ended[kind, here] += 1
    value = np.full((states, count), np.inf)
    value[0, 0] = 0.0
    looked = kinds * count * count
    for state in range(states):
        for device in range(idle.shape[1]):
            other = idle[state, device]
            if other >= 0:
                for here in range(count):
                    value[other, here] = min(value[other, here], value[state, here])
        for kind in range(kinds):
            other = following[state, kind]
            if other < 0:
                continue
            for here in range(count):
                before = value[state, here]
                if before < most:
                    looked += ended[kind, here]
                    for at in range(ended[kind, here]):
                        largest = max(before, costs[kind, here, at])
                        there = ends[kind, here, at]
                        value[other, there] = min(value[other, there], largest)
    return value, looked
