"""A balanced k-way split by METIS: what a graph partitioner that knows nothing of pipelines gives.

Nodes weigh their seconds and edges what their tensor costs to transfer (a tensor with several readers once per reader: METIS
knows no hyperedges); METIS keeps the parts within a few percent of an even share and minimises the sum of the edges cut, where
the objective counts the dearest device. One part per device of the kind that is fastest for the whole workload; nodes that
this kind cannot run go to the fastest kind that can, on one device. Memory is left aside: the plan is judged not to fit where
it does not. Karypis and Kumar, SIAM J. Sci. Comput. 1998.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from passes.model.stages.lattice.dp import Stages
from passes.model.stages.problem import Floats, Problem
from passes.partition.baselines.case import Case, Limits, NoPlan

SCALE = 10_000_000
"""The sum of weights in METIS's whole numbers, which have 32 bits."""


def metis(case: Case, limits: Limits) -> Stages:
    """One stage per part. Raises NoPlan where the library is not installed, and for nodes that no kind runs."""
    assert case.loose is not None, "asked of objectives that have any splits"
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
        part = partition(problem, main, nodes, min(problem.kinds[main].count, len(nodes)))
        stages += [(main, tuple(v for v, p in zip(nodes, part, strict=True) if p == q)) for q in sorted(set(part))]
    rest: dict[int, list[int]] = {}
    for v in np.flatnonzero(~runs[main]).tolist():
        rest.setdefault(int(problem.seconds[:, v].argmin()), []).append(v)
    stages += [(kind, tuple(inside)) for kind, inside in sorted(rest.items())]
    return case.loose.stages(tuple(stages))


def partition(problem: Problem, kind: int, nodes: Sequence[int], parts: int) -> list[int]:
    """The part of each of ``nodes``: at most ``parts``, balanced in seconds on ``kind``, little cut."""
    index = {v: i for i, v in enumerate(nodes)}
    near: list[dict[int, float]] = [{} for _ in nodes]
    for maker, readers, cost in zip(problem.producer, problem.consumers, problem.transfer[kind], strict=True):
        u = index.get(int(maker))
        for reader in readers:
            v = index.get(reader)
            if u is not None and v is not None and u != v:
                near[u][v] = near[u].get(v, 0.0) + float(cost)
                near[v][u] = near[v].get(u, 0.0) + float(cost)
    return balanced(near, np.maximum(problem.seconds[kind, list(nodes)], 0.0), parts)


def balanced(near: Sequence[Mapping[int, float]], weights: Floats, parts: int) -> list[int]:
    """The part of each node of a graph: at most ``parts``, balanced in ``weights``, the sum of the edges cut small. ``near``:
    the weights of each node's edges, by neighbour, the same from both ends. Raises NoPlan where METIS is not installed."""
    if parts < 2:
        return [0] * len(near)
    try:
        import pymetis
    except ImportError:
        raise NoPlan("METIS is not installed: pip install pymetis") from None
    starts = np.cumsum([0, *(len(row) for row in near)]).tolist()
    ends = [v for row in near for v in sorted(row)]
    costs = np.array([row[v] for row in near for v in sorted(row)])
    result = pymetis.part_graph(
        parts,
        adjacency=pymetis.CSRAdjacency(adj_starts=starts, adjacent=ends),
        vweights=_whole(weights, 0),
        eweights=_whole(costs, 1),
        recursive=False,
        options=pymetis.Options(seed=1),
    )
    return [int(part) for part in result.vertex_part]


def _whole(weights: Floats, least: int) -> list[int]:
    """Weights as whole numbers of about ``SCALE`` in all, each at least ``least``; ones where all are zero."""
    total = float(weights.sum())
    if total <= 0:
        return [1] * len(weights)
    return [max(least, round(weight / total * SCALE)) for weight in weights.tolist()]


__all__ = ["balanced", "metis", "partition"]
