"""Lower bounds on latency that need no lattice, and what to leave out so that a lattice is small enough to walk.

*Critical path.* On any path from a source to a sink every node is run, one after another, each no faster than on the device
that is fastest for it; transfers can only add. (A piece that runs several of them takes at least their sum.)

*Leaving nodes out* relaxes the problem (``reduce``), so what is kept should be what decides: nodes in the order of the longest
path through them. The first kept are a critical path, whose lattice is a chain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from passes.model.stages.problem import Floats
from passes.partition.latency.problem import LatencyProblem
from passes.partition.latency.reduce import Reduced, grouped


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
    """No plan ends before this."""
    return float(longest_to(fastest(problem), problem.makers).max(initial=0.0)) * (1 - 1e-12 * max(problem.nodes, 1))


def through(reduced: Reduced) -> Floats:
    """The longest path through each group, transfers of what it makes counted once."""
    own = np.where(np.isfinite(least := fastest(reduced)), least, 0.0)
    for h, u in enumerate(reduced.producer):
        own[u] += reduced.transfer[:, h].min(initial=np.inf) if len(reduced.kinds) else 0.0
    last = len(own) - 1
    after = [[last - w for w in sorted(found)] for found in reversed(reduced.following)]
    tail = longest_to(own[::-1], after)[::-1]
    result: Floats = longest_to(own, reduced.makers) + tail - own
    return result


def kept(reduced: Reduced, count: int) -> Reduced:
    """The relaxation that keeps the ``count`` groups with the longest paths through them."""
    n = len(reduced.groups)
    rank = through(reduced)
    chosen = set(sorted(range(n), key=lambda g: (-rank[g], g))[:count])
    # What a group left out stands before, seen from those kept: order through it is kept.
    onward: list[set[int]] = [set() for _ in range(n)]
    for v in reversed(range(n)):
        for w in reduced.following[v]:
            onward[v] |= {w} if w in chosen else onward[w]
    first = [nodes[0] for nodes in reduced.groups]
    after = [(first[v], first[w]) for v in sorted(chosen) for w in sorted(onward[v])]
    return grouped(reduced.problem, [reduced.groups[g] for g in sorted(chosen)], [free.node for free in reduced.free], after)


__all__ = ["critical_path", "fastest", "kept", "longest_to", "through"]
