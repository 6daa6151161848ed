"""Antichain contraction: a coarser problem whose lattice is small enough to walk, and how much that can cost.

An ideal is named by its antichain of maximal elements, and the prefixes of a topological order are a chain of antichains.
Contraction walks along that chain and keeps only some of its antichains as places where the graph may be cut: what lies between
two kept ones becomes one node. Kept longest are those across which little flows: of the others the dearest go first, while
no node grows heavier than a given share of a device, so that stages still balance. The share doubles until the lattice is
within its budget.

Invariants:

1. The groups are intervals of a topological order, so they form no cycle.
2. A plan of the coarse problem is a plan of the fine one, with the same loads. So its optimum is no less than the fine one.
3. The boundaries of the best plan along the order are all kept. So the coarse optimum is no more than that plan's value, which
   over a lower bound of the *fine* problem gives the factor that ``Coarse.factor`` states.

The order is the one of ``orders`` whose prefixes give the best plan. Without a plan there nothing is contracted: a group could
make impossible what was possible.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from passes.stages.bounds import best_bound, prices
from passes.stages.lattice import orders
from passes.stages.lattice.dp import Stages, solve_family
from passes.stages.lattice.ideals import BIG, Tables, count_ideals, prefixes, sequences
from passes.stages.problem import Problem, plan_costs
from passes.stages.reduce import Groups, ordered, quotient

SHARES = (*(2.0 ** (k / 2) for k in range(-16, 1)), float("inf"))
"""Heaviest group to try, as parts of an equal share of a device."""


class TooLarge(Exception):
    """The lattice is over the budget, and no contraction helps; the text says why."""


@dataclass(frozen=True)
class Coarse:
    """``groups``: members of each coarse node, in topological order. ``factor``: the coarse optimum is at most so many times
    the fine one."""

    groups: Groups
    factor: float


def coarsen(problem: Problem, max_ideals: int) -> Coarse | None:
    """The finest contraction tried whose lattice has at most ``max_ideals`` ideals (in the windows of the best plan along an
    order); None when that of the problem has. Raises TooLarge when no contraction is small enough that keeps a plan."""
    price = prices(problem)
    tables = Tables(problem, price, sequences(problem)[0])
    best = _best_order(tables)
    if count_ideals(tables, BIG if best is None else best[1], max_ideals) is not None:
        return None
    if best is None:
        raise TooLarge("no plan lies along an order of the ops, so any contraction might leave none")
    order, value, stages = best
    groups = contracted(tables, order, stages, value, max_ideals)
    if groups is None:
        raise TooLarge("no contraction that keeps a good plan has a smaller one")
    bound = best_bound(problem, price)[0]
    return Coarse(groups, value / bound if bound > 0 else float("inf"))


def contracted(tables: Tables, order: Sequence[int], stages: Stages, value: float, max_ideals: int) -> Groups | None:
    """Groups of consecutive nodes of ``order`` that keep apart what ``stages``, of load ``value``, do; None when none of the
    shares leads to a lattice of at most ``max_ideals``."""
    for share in SHARES:
        groups = _intervals(tables, order, stages, share)
        coarse = quotient(tables.problem, groups)
        if count_ideals(Tables(coarse, prices(coarse), tables.sequence), value, max_ideals) is not None:
            return groups
    return None


def _best_order(tables: Tables) -> tuple[list[int], float, Stages] | None:
    """The order whose prefixes hold the best plan, the plan's value, and its stages."""
    found: tuple[list[int], float, Stages] | None = None
    for make in (orders.given, orders.late, orders.thin):
        order = make(tables)
        stages = solve_family(tables, prefixes(tables, order, BIG), BIG).stages
        if stages is None:
            continue
        value = max((cost.load for cost in plan_costs(tables.problem, stages)), default=0.0)
        if found is None or value < found[1]:
            found = order, value, stages
    return found


def _intervals(tables: Tables, order: Sequence[int], stages: Stages, share: float) -> Groups:
    """Groups of consecutive nodes of ``order``, none heavier than ``share`` of a device, parted where ``stages`` are."""
    problem = tables.problem
    n = problem.size
    heaviest = share * float(tables.weight.sum()) / problem.devices
    stage_of = {v: s for s, (_, nodes) in enumerate(stages) for v in nodes}
    place = {v: i for i, v in enumerate(order)}
    crossing = np.zeros(n + 1)
    cost = tables.transfer.max(axis=0)
    at = np.array([place[v] for v in range(n)])[tables.pin]
    for h, (start, end) in enumerate(itertools.pairwise(tables.pin_ptr.tolist())):
        if end - start > 1:  # cut by the prefixes that end after the first of its nodes and before the last
            crossing[at[start:end].min() + 1] += cost[h]
            crossing[at[start:end].max() + 1] -= cost[h]
    crossing = np.cumsum(crossing)
    first, last = list(range(n)), list(range(n))
    weight = [float(tables.weight[v]) for v in order]
    # first[i], last[i], weight[i] hold for the interval that begins or ends at i: all that merging needs.
    for border in sorted(range(1, n), key=lambda i: (-crossing[i], i)):
        a, b = first[border - 1], last[border]
        together = weight[border - 1] + weight[border]
        if stage_of[order[border - 1]] != stage_of[order[border]] or together > heaviest:
            continue
        first[b], last[a] = a, b
        weight[a] = weight[b] = together
    groups = []
    start = 0
    while start < n:
        groups.append(tuple(sorted(order[start : last[start] + 1])))
        start = last[start] + 1
    return ordered(problem, groups)


__all__ = ["Coarse", "TooLarge", "coarsen", "contracted"]
