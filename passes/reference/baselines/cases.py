"""The cases of the objectives: throughput, training and PipeDream's, as baselines see them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from passes.partition.lattice.search.throughput import Throughput
from passes.reference.baselines.case import Case, StageLoad, Units
from passes.reference.pipedream import Machines, PipeDream, Profile, stage_times
from passes.reference.training import Training, TrainingGraph, training_load, training_value, units
from passes.reference.training.problem import colour_units
from passes.stages.bounds import lower_bound, prices
from passes.stages.lattice.dp import Stages
from passes.stages.problem import Kind, Problem, plan_costs
from passes.stages.reduce import Groups, completed, ordered, quotient


def throughput_case(problem: Problem, classes: Groups, colours: Sequence[Sequence[int]]) -> Case:
    """``classes``: what a contiguous split keeps together, without cycles; ``colours``: what any split does."""
    classes = ordered(problem, classes)
    chained = Units(quotient(problem, classes), classes)
    loose = _loose(problem, colours)
    programme = Throughput(chained.problem)

    def evaluate(stages: Stages) -> tuple[float, tuple[StageLoad, ...]]:
        costs = plan_costs(problem, stages)
        loads = tuple(StageLoad(c.kind, c.nodes, c.load, c.compute, c.receive + c.send, c.memory) for c in costs)
        return max((load.load for load in loads), default=0.0), loads

    return Case(
        kinds=problem.kinds,
        chained=chained,
        loose=loose,
        programme=programme,
        evaluate=evaluate,
        bound=programme.bound(),
        loose_bound=lower_bound(loose.problem, prices(loose.problem)),
    )


def training_case(graph: TrainingGraph, problem: Problem, objective: str) -> Case:
    """``problem``: the nodes of ``graph`` with what each reads, forward and backward alike; ``objective`` as for
    ``solve_training``."""
    united, members = units(graph)
    programme = Training(united, objective)
    classes = colour_units(graph)
    loose = _loose(problem, classes[1])
    of = {v: u for u, nodes in enumerate(classes[1]) for v in nodes}

    def evaluate(stages: Stages) -> tuple[float, tuple[StageLoad, ...]]:
        evaluated = [training_load(classes[0], kind, sorted({of[v] for v in nodes})) for kind, nodes in stages]
        loads = tuple(
            StageLoad(kind, nodes, load.forward + load.backward, sum(load.compute), sum(load.transfers), load.memory)
            for (kind, nodes), load in zip(stages, evaluated, strict=True)
        )
        return training_value(objective, evaluated), loads

    return Case(
        kinds=graph.kinds,
        chained=Units(programme.problem, members),
        loose=loose,
        programme=programme,
        evaluate=evaluate,
        bound=programme.bound(),
        loose_bound=lower_bound(loose.problem, prices(loose.problem)),
    )


def pipedream_case(profile: Profile, machines: Machines) -> Case:
    """Stages of (machines, nodes) in pipeline order; contiguous splits only."""
    programme = PipeDream(profile, machines)
    kind = Kind("accelerator", programme.problem.kinds[0].devices, machines.memory)

    def evaluate(stages: Stages) -> tuple[float, tuple[StageLoad, ...]]:
        loads = tuple(
            StageLoad(
                0,
                stage.nodes,
                stage.time,
                stage.compute,
                stage.sync + max(stage.receive, stage.send),
                math.ceil(stage.memory),
                stage.replicas,
            )
            for stage in stage_times(profile, machines, stages)
        )
        return max((load.load for load in loads), default=0.0), loads

    return Case(
        kinds=(kind,),
        chained=Units(programme.problem, tuple((v,) for v in range(profile.size))),
        loose=None,
        programme=programme,
        evaluate=evaluate,
        bound=programme.bound(),
        loose_bound=programme.bound(),
        replicated=True,
    )


def _loose(problem: Problem, colours: Sequence[Sequence[int]]) -> Units:
    """The colours and the nodes in none, which may lie on cycles."""
    members = completed(problem.size, colours)
    return Units(quotient(problem, members), members)
