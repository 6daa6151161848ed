"""Everything on one device: the best of those that hold it.

What a person does who does not split, and the measure of what splitting gains. Where no device has the memory, the fastest that
can run every node stands for it, and the plan is judged not to fit.
"""

from __future__ import annotations

import numpy as np

from passes.model.stages.lattice.dp import Stages
from passes.partition.baselines.case import Case, Limits, NoPlan, judge


def one_device(case: Case, limits: Limits) -> Stages:
    """One stage. Raises NoPlan when no kind of device runs every node."""
    problem = case.chained.problem
    runs = np.flatnonzero(np.isfinite(problem.seconds).all(axis=1)).tolist()
    if not runs:
        raise NoPlan("no kind of device runs every node")
    plans = [case.chained.stages(((case.label(kind), tuple(range(problem.size))),)) for kind in runs]
    judged = [judge(case, stages) for stages in plans]
    return plans[min(range(len(runs)), key=lambda i: (bool(judged[i].faults), judged[i].value))]


__all__ = ["one_device"]
