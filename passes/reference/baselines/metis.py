"""A balanced k-way split by METIS: what a graph partitioner that knows nothing of pipelines gives.

Nodes weigh their seconds and edges what their tensor costs to transfer (a tensor with several readers once per reader: METIS
knows no hyperedges); METIS keeps the parts within a few percent of an even share and minimises the sum of the edges cut, where
the objective counts the dearest device. One part per device of the kind that is fastest for the whole workload; nodes that
this kind cannot run go to the fastest kind that can, on one device. Memory plays no part: ``judge`` says whether the plan fits.
Karypis and Kumar, SIAM J. Sci. Comput. 1998.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from passes.reference.baselines.case import Case, Limits, NoPlan
from passes.stages.lattice.dp import Stages
from passes.stages.problem import Floats, Problem

SCALE = 10_000_000
"""The sum of weights in METIS's integers, which have 32 bits."""


def metis(case: Case, limits: Limits) -> Stages:
    """One stage per part. Raises NoPlan where the library is not installed, and for nodes that no kind runs."""
    assert case.loose is not None, "METIS asks for no contiguity: the objective must not either"
    problem = case.loose.problem
    limits.progress("partition: metis", None)
    runs = np.isfinite(problem.seconds)
    if not runs.any(axis=0).all():
        raise NoPlan("a node runs on no kind of device")
    covered = runs.sum(axis=1)
    total = np.where(runs, problem.seconds, 0.0).sum(axis=1)
    main = min(range(len(problem.kinds)), key=lambda k: (-covered[k], total[k], k))
    stages: list[tuple[int, tuple[int, ...]]] = []
    nodes = np.flatnonzero(runs[main]).tolist()
    if nodes:
        part_of = partition(problem, main, nodes, min(problem.kinds[main].count, len(nodes)))
        for part in sorted(set(part_of)):
            stages.append((main, tuple(v for v, own in zip(nodes, part_of, strict=True) if own == part)))
    rest: dict[int, list[int]] = {}
    for v in np.flatnonzero(~runs[main]).tolist():
        rest.setdefault(int(problem.seconds[:, v].argmin()), []).append(v)
    stages += [(kind, tuple(inside)) for kind, inside in sorted(rest.items())]
    return case.loose.stages(tuple(stages))


def partition(problem: Problem, kind: int, nodes: Sequence[int], parts: int) -> list[int]:
    """The part of each of ``nodes``: at most ``parts``, balanced in seconds on ``kind``, little cut."""
    index = {v: i for i, v in enumerate(nodes)}
    edges: list[dict[int, float]] = [{} for _ in nodes]
    for maker, readers, cost in zip(problem.producer, problem.consumers, problem.transfer[kind], strict=True):
        u = index.get(int(maker))
        for reader in readers:
            v = index.get(reader)
            if u is not None and v is not None and u != v:
                edges[u][v] = edges[u].get(v, 0.0) + float(cost)
                edges[v][u] = edges[v].get(u, 0.0) + float(cost)
    return balanced(edges, np.maximum(problem.seconds[kind, list(nodes)], 0.0), parts)


def balanced(edges: Sequence[Mapping[int, float]], weights: Floats, parts: int) -> list[int]:
    """The part of each node of a graph: at most ``parts``, balanced in ``weights``, the sum of the edges cut small. ``edges``:
    the weights of each node's edges by neighbour, the same from both ends. Raises NoPlan where METIS is not installed."""
    if parts < 2:
        return [0] * len(edges)
    try:
        import pymetis
    except ImportError:
        raise NoPlan("METIS is not installed: pip install pymetis") from None
    starts = np.cumsum([0, *(len(row) for row in edges)]).tolist()
    ends = [v for row in edges for v in sorted(row)]
    costs = np.array([row[v] for row in edges for v in sorted(row)])
    result = pymetis.part_graph(
        parts,
        adjacency=pymetis.CSRAdjacency(adj_starts=starts, adjacent=ends),
        vweights=_integers(weights, 0),
        eweights=_integers(costs, 1),
        recursive=False,
        options=pymetis.Options(seed=1),
    )
    return [int(part) for part in result.vertex_part]


def _integers(weights: Floats, least: int) -> list[int]:
    """Weights as integers of about ``SCALE`` in all, each at least ``least``; ones where all are zero."""
    total = float(weights.sum())
    if total <= 0:
        return [1] * len(weights)
    return [max(least, round(weight / total * SCALE)) for weight in weights.tolist()]
