"""The slow and obvious optimum when any assignment is allowed, and problems on which joining nodes is tempting."""

from __future__ import annotations

import math
import random
from functools import cache
from itertools import chain, combinations

import numpy as np

from passes.partition.problem import Kind, Problem, stage_cost


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


def dear_transfers(seed: int, comm: str) -> Problem:
    """Nearly chains, every transfer drawn for itself and about as dear as compute: rules that join nodes apply, or nearly."""
    rng = random.Random(seed)
    n, kinds = rng.randint(3, 6), rng.randint(1, 2)
    reads = [{u for u in range(v) if rng.random() < (0.7 if u == v - 1 else 0.2)} for v in range(n)]
    made = [u for u in range(n) if any(u in r for r in reads)]
    seconds = np.array([[rng.choice((0.0, 0.0, 0.5, 1.0, 2.0, 4.0)) for _ in range(n)] for _ in range(kinds)])
    if rng.random() < 0.3:
        seconds[rng.randrange(kinds), rng.randrange(n)] = math.inf
    transfer = [[rng.choice((0.0, 0.25, 0.5, 1.0, 2.0)) for _ in made] for _ in range(kinds)]
    counts = [rng.randint(1, 2) if kinds > 1 else rng.randint(2, 3) for _ in range(kinds)]
    weights = np.array([rng.choice((0, 0, 3)) for _ in range(n)], np.int64)
    sizes = np.array([rng.choice((0, 1, 2)) for _ in made], np.int64)
    live = np.array([rng.choice((0, 0, 1, 4)) for _ in range(n)], np.int64)
    limit = rng.choice((None, None, int(weights.sum() * 0.6) + 5, int(weights.sum() * 0.8) + 7))
    names = [tuple(f"d{k}{i}" for i in range(counts[k])) for k in range(kinds)]
    return Problem(
        names=tuple(f"%n{v}" for v in range(n)),
        kinds=tuple(Kind(f"kind{k}", names[k], None if k else limit) for k in range(kinds)),
        seconds=seconds,
        producer=np.array(made, np.int64),
        consumers=tuple(tuple(v for v in range(n) if u in reads[v]) for u in made),
        transfer=np.array(transfer).reshape(kinds, len(made)),
        tensor_bytes=sizes,
        tensor_names=tuple(f"%t{u}" for u in made),
        live=live,
        weight_bytes=weights,
        weight_readers=tuple((v,) for v in range(n)),
        comm=comm,
        forced=(rng.randrange(len(made)),) if made and rng.random() < 0.15 else (),
    )
