"""The slow and obvious optimum when any assignment is allowed, and problems on which joining nodes is tempting."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from functools import cache
from itertools import chain, combinations, product

import numpy as np

from passes.reference.assignment.local_search import Sides, kind_of, stages_of
from passes.stages.lattice.dp import Stages
from passes.stages.problem import Kind, Problem, stage_cost, violations


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


def brute_force_sided(problem: Problem, sides: Sides) -> float:
    """The least of the largest load of one side + that of the other, over every assignment."""
    best = math.inf
    kinds = kind_of(problem)
    for assignment in product(range(len(kinds)), repeat=problem.size):
        stages = stages_of(problem, assignment)
        if not violations(problem, stages, ordered=False):
            best = min(best, sum(max(_sided(problem, sides, s, stages), default=0.0) for s in range(2)))
    return best


def _sided(problem: Problem, sides: Sides, s: int, stages: Stages) -> list[float]:
    """Loads of one side: its seconds, and its tensors of which a stage holds some pins but not all."""
    loads = []
    for kind, nodes in stages:
        load = math.fsum(sides.seconds[s, kind, list(nodes)])
        for h, readers in enumerate(problem.consumers):
            pins = {int(problem.producer[h]), *readers}
            if sides.side[h] == s and 0 < len(pins & set(nodes)) < len(pins):
                load += float(problem.transfer[kind, h])
        loads.append(load)
    return loads


def random_sides(seed: int) -> tuple[Problem, Sides]:
    """A small problem whose seconds and tensors are told apart by side at random, and sometimes its memory limited."""
    problem = dear_transfers(seed, "sum")
    problem = replace(problem, forced=(), live=np.zeros(problem.size, np.int64), tensor_bytes=0 * problem.tensor_bytes)
    rng = random.Random(seed + 1)
    part = np.array([rng.choice((0.0, 0.25, 0.5, 1.0)) for _ in range(problem.size)])
    finite = np.where(np.isfinite(problem.seconds), problem.seconds, 0.0)
    both = np.stack([finite * part, finite * (1 - part)])
    both[:, ~np.isfinite(problem.seconds)] = math.inf
    return problem, Sides(both, np.array([rng.randrange(2) for _ in problem.consumers], np.int64))


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
