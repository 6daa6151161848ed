"""Plans whose stages fit their devices to the byte, and bounds that hold for plans which a narrower search refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ir.core.module import Func
from ir.core.outcomes import outcome
from passes.costs.memory.footprint import Footprint
from passes.costs.memory.liveness import stage_live
from passes.graph.graph import cuts_of
from passes.graph.serving import most_groups
from passes.partition.bridge.explain import Overfull, held_in, short_of
from passes.partition.bridge.plan import Asked, with_stages
from passes.partition.lattice.objective import Solution
from passes.stages.arrays import Ints
from passes.stages.placement_from_ir import stage_memory
from passes.stages.problem import Problem, stage_cost
from passes.stages.reduce import Groups

_ROUNDS = 4
"""Searches with lowered limits, and as many with more workspace counted before."""


def within_memory(
    asked: Asked, safe: Problem, first: Solution, again: Callable[[Problem], Solution], chunks: int = 1
) -> Solution:
    """The solution, or a tighter one where the exact memory of its stages, as ``place`` counts it, is over a limit; the
    bound of the first search stays. ``again`` searches another problem. Raises Overfull where no solution that was found fits;
    with ``chunks`` stages on each device, whose limit here is an equal part of its memory, ``place`` judges them together.

    ``asked.problem`` counts the least workspace that a stage may have, so that its bound is one of all plans; ``safe`` at
    least what it has. Where the plan does not fit, what its stages that are too large have alive is counted for their
    nodes, and in the end ``safe`` is searched. Planner and exact count also differ in what no function of a stage alone
    can say: buffers of an edge over several stages, and in training how many microbatches are in flight, which depends on
    the stages behind. So limits are lowered, by what is missing and to the same part of what the planner counts. A plan that
    lacks some of these buffers alone runs, more slowly: it stands where no better one is found."""
    problem, entry = asked.problem, asked.module.entry
    solution, tightened, running = first, problem, None
    for left in reversed(range(1 + (_ROUNDS if safe is problem else 2 * _ROUNDS))):
        assert solution.stages is not None
        members, needs = _needs(asked, solution)
        lower: dict[int, int] = {}
        large: list[tuple[int, ...]] = []
        fits, runs = True, True
        for (kind, nodes), own, needed in zip(solution.stages, members, needs, strict=False):
            limit, total = problem.kinds[kind].memory, needed.total
            if limit is not None and total > limit:
                counted = stage_cost(problem, nodes, kind).memory if asked.steps is not None else total
                wanted = min((tightened.kinds[kind].memory or 0) - (total - limit), counted * limit // total)
                lower[kind] = max(0, min(wanted, lower.get(kind, wanted)))
                large.append(own)
                fits, runs = False, runs and needed.least <= limit
        running = solution if runs else running
        if fits or not left:
            break
        live = _with_live(tightened.live, entry, asked.groups, large)
        if left > 1 + _ROUNDS and (live > tightened.live).any():
            found = again(tightened := replace(tightened, live=live))
        elif left > _ROUNDS and tightened is not safe:
            found = again(tightened := safe)
        else:
            kinds = tuple(replace(kind, memory=lower.get(k, kind.memory)) for k, kind in enumerate(tightened.kinds))
            found = again(tightened := replace(tightened, kinds=kinds))
        if found.stages is None:
            break
        solution = found
    if running is None:
        if chunks == 1:
            raise _overfull(asked, solution, needs, first.bound)
        running = solution
    return first if running is first else with_bound(running, first.bound, first.reason)


def _overfull(asked: Asked, solution: Solution, needs: Sequence[Footprint], bound: float) -> Overfull:
    """The error that no plan fits: of the last that was found, the stage that lacks most bytes."""
    stages, kinds = solution.stages or (), asked.problem.kinds
    lacking = [
        needed.least - limit if (limit := kinds[k].memory) is not None else 0
        for (k, _), needed in zip(stages, needs, strict=True)
    ]
    number = max(range(len(stages)), key=lacking.__getitem__)
    kind, needed = kinds[stages[number][0]], replace(needs[number], buffers=needs[number].buffers - needs[number].spare)
    held, advice = held_in(asked.module, training=asked.steps is not None)
    return Overfull(short_of(kind, lacking[number], number, needed, held, asked.topology, advice), len(stages), bound)


def _needs(asked: Asked, solution: Solution) -> tuple[list[tuple[int, ...]], list[Footprint]]:
    """The ops of each part of a solution, and what each of its stages needs as ``place`` counts it."""
    assert solution.stages is not None
    parts = solution.parts
    members = asked.members(parts)
    placed = with_stages(asked.module, members)
    shared = tuple(asked.problem.kinds[solution.stages[owner][0]].replicas for owner, _ in parts)
    flight = asked.steps.in_flight(shared, members) if asked.steps is not None else None
    needs = [Footprint(0, 0)] * len(solution.stages)
    sequences = asked.problem.sequences
    groups = [most_groups(sequences, count) for count in shared]
    exact = stage_memory(placed, members, cuts_of(placed.entry), asked.problem.comm, flight, groups)
    for (owner, _), needed in zip(parts, exact, strict=True):
        needs[owner] += needed
    return members, needs


def _with_live(live: Ints, func: Func, groups: Groups, stages: Sequence[Sequence[int]]) -> Ints:
    """``live`` by node, and at least what is alive in one of these ``stages`` while the node's ops run there."""
    alive = {op: size for own in stages for op, size in zip(own, stage_live(func, own), strict=True)}
    return np.array([max(known, *(alive.get(op, 0) for op in ops)) for known, ops in zip(live.tolist(), groups, strict=True)])


def with_bound(solution: Solution, bound: float, reason: str) -> Solution:
    """The solution, ``bound`` proven of it."""
    status = outcome(solution.value, bound)
    return replace(solution, status=status, bound=solution.value if status == "optimal" else bound, reason=reason)
