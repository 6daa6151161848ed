"""The latency of a module's problem on ordinary devices, answered as stages: what the pass ``partition`` takes.

Every piece is a stage; pieces of one device are stages on that device, in the order in which they run.
"""

from __future__ import annotations

from collections.abc import Callable

from passes.model.stages.problem import Problem
from passes.partition.latency.build import latency_problem
from passes.partition.latency.liveness import Liveness
from passes.partition.latency.solver import LatencyBudget, solve_latency
from passes.partition.objective import PieceSolution
from passes.partition.search.search import Budget


def solve_pieces(
    problem: Problem,
    budget: Budget,
    progress: Callable[[str, float | None], None],
    pieces: int,
    liveness: Liveness | None = None,
) -> PieceSolution:
    """The least latency with up to ``pieces`` pieces per device, none of which transfers for free. ``liveness``: what is alive
    in a piece of a model. Raises TooManyKindsError, ValueError for demands that a single sample cannot
    meet."""
    built = latency_problem(problem, [False] * len(problem.kinds), (), pieces, liveness)
    ideals = min(budget.ideals, LatencyBudget().ideals)
    limits = LatencyBudget(seconds=budget.seconds, ideals=ideals, memory=budget.memory, first=budget.first)
    found = solve_latency(built.problem, limits, progress)
    devices: dict[tuple[int, int], list[int]] = {}
    parts = []
    for piece in found.schedule.pieces if found.schedule is not None else ():
        devices.setdefault((piece.kind, piece.device), []).extend(piece.nodes)
        parts.append((list(devices).index((piece.kind, piece.device)), piece.nodes))
    stages = tuple((built.kinds[kind], tuple(sorted(nodes))) for (kind, _), nodes in devices.items())
    shared = {name: value for name, value in vars(found).items() if name != "schedule"}
    return PieceSolution(**{**shared, "stages": stages if found.schedule is not None else None}, parts=tuple(parts))


__all__ = ["solve_pieces"]
