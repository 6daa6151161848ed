"""The programme over one topological order (linearised): that of the case, which is depth first where nodes are numbered
canonically (``canonical``).

A split of a linearised graph is contiguous, so this is a feasible plan and an upper bound; the published order-restricted
programme matched the full one on 13 of 15 inputs.
"""

from __future__ import annotations

from passes.model.stages.lattice.dp import Stages
from passes.partition.baselines.case import Case, Limits
from passes.partition.baselines.chain import best_chain


def topological(case: Case, limits: Limits) -> Stages:
    """The best plan along the order. Raises NoPlan when none satisfies every limit."""
    return best_chain(case, [[(unit,) for unit in range(case.chained.problem.size)]], limits)


__all__ = ["topological"]
