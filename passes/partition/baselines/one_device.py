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
    everything = case.chained.nodes(range(problem.size))
    plans = [judge(case, stages) for kind in runs if (stages := ((case.label(kind), everything),))]
    best = min(range(len(runs)), key=lambda i: (bool(plans[i].faults), plans[i].value))
    return ((case.label(runs[best]), everything),)


__all__ = ["one_device"]
