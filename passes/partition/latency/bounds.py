"""Lower bounds on latency that need no lattice, and what to leave out so that a lattice is small enough to walk.

*Critical path.* On any path from a source to a sink every node is run, one after another, each no faster than on the device
that is fastest for it; transfers can only add. (A piece that runs several of them takes at least their sum.)

*Leaving nodes out* relaxes the problem (``reduce``), so what is kept should be what decides: nodes in the order of the longest
path through them. The first kept are a critical path, whose lattice is a chain.
"""

from __future__ import annotations

import numpy as np

from passes.model.stages.problem import Floats
from passes.partition.latency.problem import LatencyProblem
from passes.partition.latency.reduce import Reduced, grouped


def fastest(problem: LatencyProblem) -> Floats:
    """Seconds of each node on the device that is fastest for it; inf where no device runs it."""
    result: Floats = np.minimum(problem.cpu, problem.seconds.min(axis=0, initial=np.inf))
    return result


def critical_path(problem: LatencyProblem) -> float:
    """No plan ends before this."""
    seconds = fastest(problem)
    end = np.zeros(problem.nodes)
    made: list[list[int]] = [[] for _ in range(problem.nodes)]
    for h, readers in enumerate(problem.consumers):
        for v in readers:
            made[v].append(int(problem.producer[h]))
    for v in range(problem.nodes):
        end[v] = seconds[v] + max((end[u] for u in made[v]), default=0.0)
    return float(end.max(initial=0.0)) * (1 - 1e-12 * max(problem.nodes, 1))


def through(reduced: Reduced) -> Floats:
    """The longest path through each group, transfers of what it makes counted once."""
    n = len(reduced.groups)
    own = np.minimum(reduced.cpu, reduced.seconds.min(axis=0, initial=np.inf))
    own = np.where(np.isfinite(own), own, 0.0)
    for h, u in enumerate(reduced.producer):
        own[u] += reduced.transfer[:, h].min(initial=np.inf) if len(reduced.kinds) else 0.0
    before: list[set[int]] = [set() for _ in range(n)]
    after: list[set[int]] = [set() for _ in range(n)]
    for u, readers in zip(reduced.producer, reduced.consumers, strict=True):
        for v in readers:
            before[v].add(u)
            after[u].add(v)
    head, tail = own.copy(), own.copy()
    for v in range(n):
        head[v] += max((head[u] for u in before[v]), default=0.0)
    for v in reversed(range(n)):
        tail[v] += max((tail[w] for w in after[v]), default=0.0)
    result: Floats = head + tail - own
    return result


def kept(reduced: Reduced, count: int) -> Reduced:
    """The relaxation that keeps the ``count`` groups with the longest paths through them."""
    n = len(reduced.groups)
    rank = through(reduced)
    chosen = set(sorted(range(n), key=lambda g: (-rank[g], g))[:count])
    following: list[set[int]] = [set() for _ in range(n)]
    for u, readers in zip(reduced.producer, reduced.consumers, strict=True):
        following[u].update(readers)
    # What a group left out stands before, seen from those kept: order through it is kept.
    onward: list[set[int]] = [set() for _ in range(n)]
    for v in reversed(range(n)):
        for w in following[v]:
            onward[v] |= {w} if w in chosen else onward[w]
    first = [nodes[0] for nodes in reduced.groups]
    after = [(first[v], first[w]) for v in sorted(chosen) for w in sorted(onward[v])]
    sources = [free.node for free in reduced.free if not free.sink]
    sinks = [free.node for free in reduced.free if free.sink]
    return grouped(reduced.problem, [reduced.groups[g] for g in sorted(chosen)], sources, sinks, after)


__all__ = ["critical_path", "fastest", "kept", "through"]
