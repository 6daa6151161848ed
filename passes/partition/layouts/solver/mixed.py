"""Between a plan that needs too much memory and one that fits: some copies of each layer from one, the rest from the other.

A price of memory finds plans in which all copies of a layer pay it alike: at the price where both are worth the same, one is
over the limit and the other under it, often far. As many copies as the limit allows are taken from the denser plan, those of
each chain next to each other, so that the two meet in one place only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from passes.partition.layouts.problem.graph import Integers
from passes.partition.layouts.problem.problem import ShardProblem


def mixed(
    problem: ShardProblem, dense: Sequence[int], sparse: Sequence[int], memory: float
) -> tuple[tuple[int, ...], float] | None:
    """The cheapest of some such plans that needs at most ``memory`` bytes, and its cost; None where there is none."""
    best: tuple[tuple[int, ...], float] | None = None
    one, other = np.array(dense), np.array(sparse)
    bytes_of = [problem.bytes_of(plan) for plan in (dense, sparse)]
    added = bytes_of[0] - bytes_of[1]
    known = set[bytes]()
    for start, order in _orders(problem):
        needs = float(bytes_of[1].sum()) + float(added[start].sum())
        choices = other.copy()
        choices[start] = one[start]
        if needs > memory:
            continue
        for nodes in order:
            more = float(added[nodes].sum())
            if needs + more > memory:
                break
            needs += more
            choices[nodes] = one[nodes]
        if choices.tobytes() in known:
            continue
        known.add(choices.tobytes())
        cost = problem.cost(choices)
        if best is None or cost < best[1]:
            best = tuple(choices.tolist()), cost
    return best


def _orders(problem: ShardProblem) -> Iterator[tuple[Integers, list[Integers]]]:
    """Nodes that are taken from the denser plan at once, then copies in the order in which they follow."""
    repeated = np.zeros(problem.size, bool)
    for copies in problem.cells:
        for nodes in copies:
            repeated[list(nodes)] = True
    alone, none = np.flatnonzero(~repeated), np.zeros(0, np.int64)
    chains = [[np.array(nodes, np.int64) for nodes in copies] for copies in problem.cells]
    for start in (alone, none):
        for several in (chains, chains[::-1]):
            yield start, [nodes for copies in several for nodes in copies]
            yield start, [nodes for copies in several for nodes in copies[::-1]]
