"""Training without contiguity: any assignment of colours to devices, by the search of ``solver``.

Nodes of one colour, forward and backward, share a device; nothing else is asked of the split, so a backward node without a
forward mate may be on any device and cycles between colours may be cut. *sum* adds up both sides of a load: the problem is
that of throughput. *split* counts them apart (``Sides``). Both start from a contiguous plan.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from passes.partition.lattice.objective import Budget
from passes.reference.assignment.local_search import Sides
from passes.reference.assignment.solver import POLICY, AnySolution, solve_any
from passes.reference.training import OBJECTIVES, TrainingGraph, TrainingSolution, solve_training, training_load
from passes.reference.training.problem import colour_units, joins_of
from passes.solvers.anytime import Progress
from passes.solvers.work import now
from passes.stages.problem import Problem
from passes.stages.reduce import groups_of, members_of


@dataclass(frozen=True)
class AnyTrainingSolution(TrainingSolution, AnySolution):
    """Of training, and with the contiguous plan that the search began with."""


def solve_any_training(
    graph: TrainingGraph,
    objective: str = "sum",
    budget: Budget | None = None,
    progress: Progress = lambda label, fraction: None,
) -> AnyTrainingSolution:
    """The best plan found within ``budget.seconds``, with a valid lower bound; stages ordered by first node. ``objective``: as
    for ``solve_training``. An interrupt from the keyboard returns the best plan so far, if there is one."""
    if objective not in OBJECTIVES:
        raise ValueError(f"objective is {objective!r}, expected one of {', '.join(OBJECTIVES)}")
    budget = budget or Budget()
    started = now()
    units, members = colour_units(graph)
    seconds = max(0.05, POLICY.contiguous_share * budget.seconds)
    contiguous = solve_training(graph, objective, replace(budget, seconds=seconds), progress)
    starts = [groups_of(contiguous.stages, members)] if contiguous.stages is not None else []
    left = 0.0 if contiguous.interrupted else budget.seconds - (now() - started)
    sides = Sides(joins_of(units).seconds, joins_of(units).side) if objective == "split" else None
    found = solve_any(problem_of_units(units), replace(budget, seconds=max(0.0, left)), progress, starts=starts, sides=sides)
    return AnyTrainingSolution(
        status=found.status,
        stages=found.stages and members_of(found.stages, members),
        value=found.value,
        bound=found.bound,
        reason=found.reason,
        statistics=found.statistics,
        interrupted=found.interrupted or contiguous.interrupted,
        contiguous=contiguous.stages,
        contiguous_value=contiguous.value,
        loads=tuple(training_load(units, kind, nodes) for kind, nodes in found.stages or ()),
        kinds=graph.kinds,
    )


def problem_of_units(units: Problem) -> Problem:
    """The problem of throughput whose seconds are those of both sides, for splits without an order: of the units that make or
    read a tensor the first is written down as its maker, which changes no load."""
    pins = joins_of(units).pins
    return replace(
        units,
        producer=np.array([nodes[0] for nodes in pins], np.int64),
        consumers=tuple(nodes[1:] for nodes in pins),
        transfer=joins_of(units).transfer,
        tensor_bytes=np.zeros(len(pins), np.int64),
        tensor_names=tuple(units.names[nodes[0]] for nodes in pins),
        joins=None,
    )
