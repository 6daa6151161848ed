"""The plain baselines: everything on one device, one order cut, annealing alone, and a split that somebody made by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from passes.reference.assignment import local_search as annealing
from passes.reference.baselines.case import Case, Limits, NoPlan, judge
from passes.reference.baselines.chain import best_chain
from passes.stages.lattice.dp import Stages


def one_device(case: Case, limits: Limits) -> Stages:
    """Everything on the best device that holds it: what a person does who does not split, and the measure of what splitting
    gains. Where none has the memory, the fastest that runs every node, and the plan is judged not to fit. Raises NoPlan when no
    kind of device runs every node."""
    problem = case.chained.problem
    runs = np.flatnonzero(np.isfinite(problem.seconds).all(axis=1)).tolist()
    if not runs:
        raise NoPlan("no kind of device runs every node")
    plans = [case.chained.stages(((case.label(kind), tuple(range(problem.size))),)) for kind in runs]
    judged = [judge(case, stages) for stages in plans]
    return plans[min(range(len(runs)), key=lambda i: (bool(judged[i].faults), judged[i].value))]


def topological(case: Case, limits: Limits) -> Stages:
    """The best plan along the case's order, which is depth first where nodes are numbered canonically
    (``passes.stages.canonical``). The published order-restricted programme matched the full one on 13 of 15 inputs.
    Raises NoPlan when none satisfies every limit."""
    return best_chain(case, [[(unit,) for unit in range(case.chained.problem.size)]], limits)


def local_search(case: Case, limits: Limits) -> Stages:
    """The best assignment of ten restarts of annealing, contiguous or not. The published baseline moves one node at a time to
    where the largest load falls most, from ten random assignments to accelerators; this one goes uphill for a while, keeps to
    memory and uses every kind of device. Of training it anneals the largest FW + BW, of latency the largest load. Raises
    NoPlan when none satisfies every limit."""
    assert case.loose is not None, "asked of objectives that have any splits"
    problem = case.loose.problem
    limits.progress("partition: local search", None)
    search = annealing.plain_search(problem, limits.seconds)
    found = annealing.local_search(problem, search, enough=case.loose_bound[0])
    if found is None:
        raise NoPlan("no assignment that it met satisfies every limit")
    return case.loose.stages(annealing.stages_of(problem, found))


def expert(case: Case, given: Stages, names: Sequence[str]) -> Stages:
    """``given``: stages of (label, nodes of the workload), each node at most once; ``names`` of the nodes, for messages. A node
    that is left out, as backward ones mostly are, follows the nodes of its colour. Raises NoPlan for a node that is on no
    device, nor any of its colour."""
    home = {v: s for s, (_, nodes) in enumerate(given) for v in nodes}
    added: list[list[int]] = [[] for _ in given]
    missing = []
    for members in (case.loose or case.chained).members:
        places = sorted({home[v] for v in members if v in home})
        for v in members:
            if v not in home and places:
                added[places[0]].append(v)
            elif v not in home:
                missing.append(names[v])
    if missing:
        raise NoPlan(f"{len(missing)} nodes are on no device: {', '.join(missing[:5])}{' ...' if len(missing) > 5 else ''}")
    return tuple((label, tuple(sorted((*nodes, *more)))) for (label, nodes), more in zip(given, added, strict=True))
