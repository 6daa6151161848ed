"""Bounds for lattices too large to walk: parts of the problem, and relaxed contractions (``contraction``), each walked exactly.

*Parts.* What a plan does with some of the nodes is a plan for these alone, and no stage of it is dearer: a stage holds fewer
nodes, and a tensor joins fewer. So the optimum of a part, on all devices, is a lower bound. Where the best plan's dearest stage
is dear for its transfers, the nodes around it often prove that no plan is better.

*Contractions.* A relaxed problem with few ideals is solved by the objective's own programme. That no plan of it is better than
the best known proves that plan; else its optimum is a lower bound, and its plan, valued by the costs that count, may be the
better one. How far to relax is tried from little to much, the first that leaves few enough ideals is walked: what little is
lost is lost where branches run beside the most other nodes, since those multiply the lattice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ir.core.outcomes import SLACK
from passes.partition.lattice.bounds.contraction import Relaxed, Relaxer, relaxes
from passes.partition.lattice.bounds.policy import POLICY
from passes.partition.lattice.bounds.symmetry import Symmetric, symmetric
from passes.partition.lattice.objective import SearchObjective
from passes.stages.bounds import prices
from passes.stages.lattice.dp import Found, KeepOn, Stages
from passes.stages.lattice.ideals import count_ideals, lattice
from passes.stages.lattice.tables import Tables
from passes.stages.problem import violations
from passes.stages.reduce import members_of


@dataclass(frozen=True)
class Step:
    """A lower bound, how it was reached, and stages of the problem's own nodes that may be better than the best known."""

    bound: float
    reason: str
    stages: Stages | None
    found: Found


@dataclass(frozen=True)
class _Small:
    """A relaxed problem, its interchangeable branches sorted where there are any, and its tables."""

    relaxed: Relaxed
    sorted: Symmetric | None
    tables: Tables

    def expanded(self, objective: SearchObjective, stages: Stages) -> Stages | None:
        """The plan in the problem's own nodes; None when it breaks what was relaxed."""
        if self.sorted is not None:
            stages = self.sorted.assigned(stages)
        own = members_of(stages, self.relaxed.groups)
        return None if objective.problem.joins is None and violations(objective.problem, own) else own


def part_bound(
    objective: SearchObjective,
    order: Sequence[int],
    dear: Sequence[int],
    bound: float,
    value: float,
    max_words: int,
    keep_on: KeepOn,
) -> tuple[float, str, list[int]]:
    """The best of ``bound`` and of what the nodes ``dear`` and those around them in ``order`` prove, how it was reached, as
    text (empty where it is ``bound``), and the order with those nodes in that of their best plan. ``value``: of a plan."""
    place = {v: i for i, v in enumerate(order)}
    first, last = min(place[v] for v in dear), max(place[v] for v in dear)
    best = None
    low, high = -1, len(order)
    while low < high:
        around = (low + high + 1) // 2
        nodes = sorted(order[max(0, first - around) : last + 1 + around])
        part = objective.part(nodes)
        tables = Tables(part.problem, part.price)
        if tables.states.every and count_ideals(tables, value, POLICY.part_ideals) is not None:
            best, low = (part, tables, nodes), around
        else:
            high = around - 1
    if best is None:
        return bound, "", list(order)
    part, tables, nodes = best
    least, found = _least(part, tables, bound, value, POLICY.part_ideals, max_words, keep_on)
    stage_of = {nodes[v]: s for s, (_, inside) in enumerate((found and found.stages) or ()) for v in inside}
    start, end = min(place[v] for v in nodes), max(place[v] for v in nodes) + 1
    changed = [*order[:start], *sorted(order[start:end], key=lambda v: stage_of.get(v, 0)), *order[end:]]
    if least <= bound:
        return bound, "", changed
    return least * (1 - SLACK), f"{len(nodes)} nodes around the dearest stage, searched alone on all devices", changed


def contraction_bounds(
    objective: SearchObjective, bound: float, value: float, max_words: int, keep_on: KeepOn
) -> Iterator[Step]:
    """Lower bounds on the objective's optimum, not always rising, given one (``bound`` > 0) and the value of a plan; at most
    ``max_words`` 8-byte words are held at once. Ends early where ``keep_on`` says so."""
    if not relaxes(objective.problem) or not math.isfinite(value) or bound <= 0:
        return
    relaxer = Relaxer(objective.problem, value)
    seen = set()
    for give, few in POLICY.efforts:
        small = _small(relaxer, value, give, few, keep_on)
        if small is None or small.relaxed.groups in seen:
            continue
        seen.add(small.relaxed.groups)
        least, found = _least(objective, small.tables, bound, value, few, max_words, keep_on)
        if found is None:
            return
        stages = None if found.stages is None else small.expanded(objective, found.stages)
        if stages is not None:
            value = min(value, objective.value(stages))
        groups = len(small.relaxed.groups)
        words = f"{groups} groups of nodes, made cheaper by what merging them may cost, were searched"
        bound = max(bound, least * (1 - SLACK))
        yield Step(least * (1 - SLACK), words, stages, found)


def _least(
    objective: SearchObjective, tables: Tables, bound: float, value: float, few: int, max_words: int, keep_on: KeepOn
) -> tuple[float, Found | None]:
    """A lower bound on the relaxed problem (of ``tables``), its optimum where that is below ``value``; and its plan. None when
    stopped before anything was found."""
    least, last = bound, None
    nodes = range(tables.problem.size)
    for part in POLICY.relaxed_trials:
        trial = bound + (value - bound) * part
        family = lattice(tables, trial, max_visits=few, max_words=max_words)
        if family is None:
            break
        found = objective.programme(tables, family, nodes, trial, keep_on, trial)
        if found.complete and found.stages is not None:
            found = objective.programme(tables, family, nodes, trial, keep_on, least)
            least = max(least, found.value) if found.complete else least
        if not found.complete:
            break
        last = found
        if found.stages is not None:
            break
        least = trial
    return least, last


def _small(relaxer: Relaxer, value: float, give: float, few: int, keep_on: KeepOn) -> _Small | None:
    """The relaxation that merges least of those with few ideals; by bisection, since merging more leaves fewer. Of those looked
    at when stopped."""
    best = None
    low, high = 0, len(POLICY.apart)
    while low < high and keep_on(0, 0.0):
        middle = (low + high) // 2 if best is not None else len(POLICY.apart) - 1
        relaxed = relaxer.relax(give, POLICY.apart[middle])
        branches = symmetric(relaxed.problem)
        problem = relaxed.problem if branches is None else branches.problem
        tables = Tables(problem, prices(problem))
        if count_ideals(tables, value, few) is not None:
            best, high = _Small(relaxed, branches, tables), middle
        elif best is None:
            return None
        else:
            low = middle + 1
    return best
