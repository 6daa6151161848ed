"""Training without contiguity: any assignment of colours to devices, by the search of ``solver``.

Nodes of one colour, forward and backward, share a device; nothing else is asked of the split, so a backward node without a
forward mate goes where it likes and cycles between colours may be cut. *sum* adds both sides of a load up: the problem is
that of throughput. *split* counts them apart (``Sides``). A contiguous plan is a start of either.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from passes.model.stages.lattice.dp import Stages
from passes.model.stages.problem import Problem
from passes.model.stages.reduce import groups_of, members_of
from passes.model.work import now
from passes.partition.assignment.solver import solve_any
from passes.partition.heuristics.local_search import Sides
from passes.partition.objective import Budget, Progress
from passes.partition.training import OBJECTIVES, TrainingGraph, TrainingSolution, solve_training, training_load
from passes.partition.training.problem import colour_units, joined

_SHARE = 0.1
"""Part of the time that the contiguous search may take."""


@dataclass(frozen=True)
class AnyTrainingSolution(TrainingSolution):
    """``contiguous``: the contiguous plan that the search began with, for comparison, and its value."""

    contiguous: Stages | None = None
    contiguous_value: float = math.inf


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
    training, members = colour_units(graph)
    starts: list[Stages] = []
    contiguous = solve_training(graph, objective, replace(budget, seconds=max(0.05, _SHARE * budget.seconds)), progress)
    if contiguous.stages is not None:
        starts.append(groups_of(contiguous.stages, members))
    left = 0.0 if contiguous.interrupted else budget.seconds - (now() - started)
    sides = Sides(joined(training).seconds, joined(training).side) if objective == "split" else None
    found = solve_any(problem_of_units(training), replace(budget, seconds=max(0.0, left)), progress, starts=starts, sides=sides)
    return AnyTrainingSolution(
        found.status,
        found.stages and members_of(found.stages, members),
        found.value,
        found.bound,
        found.reason,
        found.statistics,
        found.interrupted or contiguous.interrupted,
        tuple(training_load(training, kind, nodes) for kind, nodes in found.stages or ()),
        graph.kinds,
        contiguous.stages,
        contiguous.value,
    )


def problem_of_units(units: Problem) -> Problem:
    """Both sides added up. Directions play no part in the loads: the first pin of a tensor stands for its maker."""
    pins = joined(units).pins
    return replace(
        units,
        producer=np.array([nodes[0] for nodes in pins], np.int64),
        consumers=tuple(nodes[1:] for nodes in pins),
        transfer=joined(units).transfer,
        tensor_bytes=np.zeros(len(pins), np.int64),
        tensor_names=tuple(units.names[nodes[0]] for nodes in pins),
        joins=None,
    )


__all__ = ["problem_of_units", "solve_any_training"]
