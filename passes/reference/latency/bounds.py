"""A lower bound on latency that needs no lattice, and which groups to leave out where a lattice is too large to walk.

*Critical path.* On any path from a source to a sink every node is run, one after another, each no faster than on the device
that is fastest for it; transfers can only add. (A piece that runs several of them takes at least their sum.)

*Leaving groups out* relaxes the problem (``reduce``). The bound is highest when those that decide the latency are left, so they
are kept in the order of the longest path through them: the first are a critical path, whose lattice is a chain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from passes.reference.latency.problem import LatencyProblem
from passes.reference.latency.reduce import Reduced, grouped
from passes.stages.problem import Floats


def fastest(problem: LatencyProblem | Reduced) -> Floats:
    """Seconds of each node, or group, on the device that is fastest for it; inf where no device runs it."""
    result: Floats = np.minimum(problem.cpu, problem.seconds.min(axis=0, initial=np.inf))
    return result


def longest_to(seconds: Floats, makers: Sequence[Iterable[int]]) -> Floats:
    """Seconds of the longest path that ends with each node, its own included; ``makers`` of a node come before it."""
    end = np.array(seconds, np.float64)
    for v, before in enumerate(makers):
        end[v] += max((end[u] for u in before), default=0.0)
    return end


def critical_path(problem: LatencyProblem) -> float:
    """Seconds before which no plan ends, less a rounding."""
    return float(longest_to(fastest(problem), problem.makers).max(initial=0.0)) * (1 - 1e-12 * max(problem.nodes, 1))


def longest_through(reduced: Reduced) -> Floats:
    """Seconds of the longest path through each group: a ranking, no bound, since each tensor that a group makes counts too."""
    own = np.where(np.isfinite(least := fastest(reduced)), least, 0.0)
    for h, u in enumerate(reduced.producer):
        own[u] += reduced.transfer[:, h].min(initial=np.inf) if len(reduced.kinds) else 0.0
    last = len(own) - 1
    after = [[last - w for w in sorted(readers)] for readers in reversed(reduced.following)]
    tail = longest_to(own[::-1], after)[::-1]
    result: Floats = longest_to(own, reduced.makers) + tail - own
    return result


def relaxed(reduced: Reduced, count: int) -> Reduced:
    """The relaxation that keeps the ``count`` groups with the longest paths through them."""
    n = len(reduced.groups)
    rank = longest_through(reduced)
    chosen = set(sorted(range(n), key=lambda g: (-rank[g], g))[:count])
    # Groups that are kept and come after each, directly or through groups that are left out.
    onward: list[set[int]] = [set() for _ in range(n)]
    for v in reversed(range(n)):
        for w in reduced.following[v]:
            onward[v] |= {w} if w in chosen else onward[w]
    first = [nodes[0] for nodes in reduced.groups]
    after = [(first[v], first[w]) for v in sorted(chosen) for w in sorted(onward[v])]
    return grouped(reduced.problem, [reduced.groups[g] for g in sorted(chosen)], [free.node for free in reduced.free], after)
