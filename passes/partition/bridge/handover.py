"""Hand-over: what a stage spends on each microbatch for being one of several, whatever its tensors.

Between stages a microbatch wakes one process after another; the seconds of that (``DeviceType.handover``) come once per stage
and microbatch, besides the latency and the bytes of each tensor. A plan of one stage has none. Where all devices have the same,
the best plan of several stages is the best one without hand-over, that much slower, so the search need not know: what remains
is to compare it with the model on one device. Where they differ, the bound takes the least.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ir.topology import Topology
from passes.model.stages.problem import Problem, stage_cost
from passes.partition.objective import Solution


def with_handover(
    problem: Problem, topology: Topology, solution: Solution, stages: int, *, latency: bool, alone: bool
) -> Solution:
    """The solution of ``stages`` stages with hand-over in value and bound; or the whole model on one device, if ``alone`` is
    allowed and no slower. A ``latency`` is a sum over stages, else the objective is a largest load."""
    seconds = [topology.type(kind.type).handover for kind in problem.kinds]
    if solution.stages is None or stages < 2 or not any(seconds):
        return solution
    used = [kind for kind, _ in solution.stages]
    shared = max(problem.kinds[kind].replicas for kind in range(len(problem.kinds)))
    value = solution.value + max(seconds[kind] for kind in used) * (stages if latency else 1)
    # Where transfers hide behind compute, hand-over may hide behind transfers.
    bound = solution.bound + (min(seconds) / shared if latency or problem.comm == "sum" else 0.0)
    single, kind = whole_model(problem) if alone else (math.inf, 0)
    bound = min(bound, single)
    if single > value:
        return replace(solution, value=value, bound=bound)
    nodes = tuple(range(problem.size))
    status = "optimal" if bound >= single else "feasible"
    return Solution(status, ((kind, nodes),), single, bound, solution.reason, solution.statistics, solution.interrupted)


def whole_model(problem: Problem) -> tuple[float, int]:
    """The load of the whole model on the best kind of device, and that kind; inf where none holds it."""
    best = (math.inf, 0)
    for k in range(len(problem.kinds)):
        cost, limit = stage_cost(problem, range(problem.size), k), problem.kinds[k].memory
        if limit is None or cost.memory <= limit:
            best = min(best, (cost.load, k))
    return best


__all__ = ["whole_model", "with_handover"]
