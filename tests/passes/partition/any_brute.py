"""The slow and obvious optimum when any assignment is allowed."""

from __future__ import annotations

import math
from functools import cache
from itertools import chain, combinations

from passes.partition.problem import Problem, stage_cost


def brute_force_any(problem: Problem, together: tuple[tuple[int, ...], ...] = ()) -> float:
    """The least largest load over every division of the nodes among the devices; inf when none satisfies the constraints.

    Devices take sets in the order of their first nodes, so a division is looked at once for each sequence of kinds."""
    everything = frozenset(range(problem.size))

    @cache
    def stage(nodes: frozenset[int], kind: int) -> float:
        for h in problem.forced:
            if int(problem.producer[h]) in nodes and nodes & set(problem.consumers[h]):
                return math.inf
        if any(0 < len(nodes & set(group)) < len(group) for group in together):
            return math.inf
        cost = stage_cost(problem, nodes, kind)
        limit = problem.kinds[kind].memory
        return math.inf if limit is not None and cost.memory > limit else cost.load

    @cache
    def rest(left: frozenset[int], free: tuple[int, ...], used: int) -> float:
        if not left:
            return 0.0 if problem.stages is None or used == problem.stages else math.inf
        first, *others = sorted(left)
        best = math.inf
        for more in chain.from_iterable(combinations(others, k) for k in range(len(others) + 1)):
            nodes = frozenset((first, *more))
            for kind, count in enumerate(free):
                if count and (here := stage(nodes, kind)) < best:
                    fewer = tuple(c - (k == kind) for k, c in enumerate(free))
                    best = min(best, max(here, rest(left - nodes, fewer, used + 1)))
        return best

    return rest(everything, tuple(kind.count for kind in problem.kinds), 0)
