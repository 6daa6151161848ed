"""Local search over any assignment, with restarts: ``passes.partition.heuristics.local_search`` alone, from random assignments.

The published baseline moves one node at a time to where the largest load falls most, ten times from random assignments to
accelerators. Ours anneals (it may go uphill for a while), keeps to memory, and uses every kind of device. Of training it
anneals the largest FW + BW, whatever the schedule; of latency the largest load. No contiguity is asked of it, so its plan
may be better than any contiguous one, and no bound comes with it.
"""

from __future__ import annotations

from passes.model.stages.lattice.dp import Stages
from passes.partition.baselines.case import Case, Limits, NoPlan
from passes.partition.heuristics import local_search as annealing


def local_search(case: Case, limits: Limits) -> Stages:
    """The best assignment of ten restarts. Raises NoPlan when none satisfies every limit."""
    assert case.loose is not None, "asked of objectives that have any splits"
    problem = case.loose.problem
    limits.progress("partition: local search", None)
    search = annealing.plain_search(problem, limits.seconds)
    found = annealing.local_search(problem, search, enough=case.loose_bound[0])
    if found is None:
        raise NoPlan("no assignment that it met satisfies every limit")
    return case.loose.stages(annealing.stages_of(problem, found))


__all__ = ["local_search"]
