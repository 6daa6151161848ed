"""Throughput without contiguity: any assignment of nodes to devices, by local search and by refuting trial values.

A device holds one set of nodes, which need not be an interval of the graph; data may flow back and forth between two devices.
Load, memory and demands are those of ``problem``; the order of its nodes plays no part, so a quotient by classes that lie on
a cycle is a valid input here. Never worse than a contiguous plan, by up to a fifth on the public workloads; what it costs is
more borders to cross, and a schedule that overlaps several samples on devices that wait for each other.

1. Upper bound: the contiguous programme (cycles joined), then annealing with restarts (``local_search``).
2. Lower bound: load balance and largest node (``bounds``).
3. For a trial value t below the upper bound: exact reductions that hold for plans at or below t (``any_reduce``), then the
   mixed-integer programme with the load capped at t. Told to be infeasible, t is a lower bound; a plan is a better
   upper bound. Trials come ``STEPS`` below the upper bound, so that a small gap is proven early; the last tells whether
   anything is better by more than ``DISTINCT``.

A cap prunes far more than the same programme minimised from above: at a 1 % gap minutes become seconds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from passes.partition.any_reduce import reduce_any, restrict
from passes.partition.bounds import lower_bound, prices
from passes.partition.dp import Stages
from passes.partition.local_search import Assignment, Search, assignment_of, local_search, stages_of
from passes.partition.problem import Problem, plan_costs, violations
from passes.partition.reduce import Groups, ordered, quotient, reduce
from passes.partition.throughput import Budget, Progress, Solution, Statistics, solve

STEPS = (0.00999, 0.002)
"""Relative distances of the first trials below the best value."""
DISTINCT = 1e-8
"""Relative difference of values that the mixed-integer solver can tell apart; what is called optimal is so to this."""
_PROPOSALS = 3_000
"""Of the annealing, for each place of each node."""
_SHARE = 0.1
"""Part of the time left that the contiguous search may take; local searches in proportion."""
_QUICK = 0.02
"""Part of the time left for each trial before the long local search: many need no more."""


def solve_any(
    problem: Problem,
    budget: Budget | None = None,
    progress: Progress = lambda label, fraction: None,
    *,
    together: Sequence[Sequence[int]] = (),
    starts: Sequence[Stages] = (),
) -> Solution:
    """The best plan found within ``budget.seconds``, with a valid lower bound; stages ordered by first node.

    ``together``: disjoint classes of nodes that share a device (others stand alone), cyclic or not. ``starts``: known plans
    as stages of (kind, nodes). An interrupt from the keyboard returns the best plan so far, if there is one."""
    classes = _completed(problem.size, together)
    search = _Search(quotient(problem, classes), budget or Budget(), progress)
    label = {v: g for g, nodes in enumerate(classes) for v in nodes}
    for stages in starts:
        search.accept(tuple((kind, tuple(sorted({label[v] for v in nodes}))) for kind, nodes in stages))
    solution = search.run()
    if solution.stages is None:
        return solution
    lifted = [(kind, tuple(sorted(v for g in nodes for v in classes[g]))) for kind, nodes in solution.stages]
    return replace(solution, stages=tuple(sorted(lifted, key=lambda stage: stage[1])))


def _completed(size: int, together: Sequence[Sequence[int]]) -> Groups:
    """The classes and the nodes in none, by first member."""
    inside = {v for nodes in together for v in nodes}
    if len(inside) != sum(len(nodes) for nodes in together):
        raise ValueError("classes of nodes that share a device overlap")
    listed = [tuple(sorted(nodes)) for nodes in together if len(nodes)] + [(v,) for v in range(size) if v not in inside]
    return tuple(sorted(listed))


class _Search:
    def __init__(self, problem: Problem, budget: Budget, progress: Progress) -> None:
        self.problem, self.budget, self.progress = problem, budget, progress
        self.started = time.perf_counter()
        self.statistics = Statistics()
        self.best: Stages | None = None
        self.value = math.inf
        self.bound, self.reason = lower_bound(problem, prices(problem))
        self.infeasible = False

    def run(self) -> Solution:
        try:
            self._phase("contiguous", self._contiguous)
            self._phase("local search", lambda: self._local(Search(restarts=6, proposals=200_000), _SHARE / 4))
            self._phase("milp", lambda: self._refute(_QUICK))
            self._phase("local search", lambda: self._local(Search(restarts=6, proposals=4_000_000, seed=2), 2 * _SHARE))
            self._phase("milp", lambda: self._refute(1.0))
        except KeyboardInterrupt:
            if self.best is None:
                raise
            self.reason += "; interrupted"
        return self._solution()

    def accept(self, stages: Stages) -> bool:
        """Keeps the stages when they are feasible and better, both from the definition."""
        value = max((cost.load for cost in plan_costs(self.problem, stages)), default=0.0)
        if value < self.value and not violations(self.problem, stages, ordered=False):
            self.value, self.best = value, stages
            return True
        return False

    def _phase(self, name: str, work: Callable[[], None]) -> None:
        start = time.perf_counter()
        self.progress(f"partition: {name}", None)
        try:
            if not self._tight():
                work()
        finally:
            self.statistics.seconds[name] = self.statistics.seconds.get(name, 0.0) + time.perf_counter() - start

    def _tight(self) -> bool:
        return self.value <= self.bound * (1 + 3 * DISTINCT) or self.value == self.bound == 0

    def _left(self) -> float:
        return self.budget.seconds - (time.perf_counter() - self.started)

    def _contiguous(self) -> None:
        """The best contiguous plan that a part of the time finds."""
        classes = _acyclic(self.problem)
        joined = quotient(self.problem, classes)
        merged = reduce(joined)
        seconds = max(0.05, _SHARE * self._left())
        found = solve(quotient(joined, merged), replace(self.budget, seconds=seconds), self.progress)
        self.statistics.ideals, self.statistics.transitions = found.statistics.ideals, found.statistics.transitions
        if found.stages is not None:
            self.accept(
                tuple(
                    (kind, tuple(sorted(v for m in nodes for c in merged[m] for v in classes[c])))
                    for kind, nodes in found.stages
                )
            )

    def _local(self, search: Search, share: float) -> None:
        """Annealing within a share of the time left."""
        self._anneal(replace(search, proposals=self._proposals(search.proposals), seconds=share * self._left()))

    def _proposals(self, most: int) -> int:
        """In proportion to the places of all nodes, at most ``most``."""
        return min(most, _PROPOSALS * self.problem.size * self.problem.devices)

    def _anneal(self, search: Search) -> None:
        """Annealing of what the reductions for plans at or below the value leave, from the best plan and from chance."""
        reduced, groups = self._reduced(self.value)
        starts: list[Assignment] = []
        if self.best is not None:
            label = {v: g for g, nodes in enumerate(groups) for v in nodes}
            starts.append(
                assignment_of(reduced, tuple((kind, tuple(sorted({label[v] for v in nodes}))) for kind, nodes in self.best))
            )
        found = local_search(reduced, starts, search, enough=self.bound)
        if found is not None:
            self._lift(stages_of(reduced, found), groups)

    def _reduced(self, below: float) -> tuple[Problem, Groups]:
        allowed = restrict(self.problem, below)
        groups = reduce_any(allowed, below)
        return quotient(allowed, groups), groups

    def _lift(self, stages: Stages, groups: Groups) -> bool:
        return self.accept(tuple((kind, tuple(sorted(v for g in nodes for v in groups[g]))) for kind, nodes in stages))

    def _refute(self, share: float) -> None:
        """Trials one after another, each within a share of the time left, until one cannot tell."""
        steps = list(STEPS)
        while not self._tight() and self._left() > 0:
            step = steps[0] if steps else DISTINCT
            if steps and self.bound >= self.value * (1 - step) * (1 - DISTINCT):
                steps.pop(0)
                continue
            below = self.value * (1 - step) if math.isfinite(self.value) else math.inf
            if not self._trial(below, share * self._left()):
                return

    def _trial(self, below: float, seconds: float) -> bool:
        """One programme: is there a plan at or below ``below``? False when it could not tell."""
        from passes.partition.milp import SAFETY, solve_milp

        reduced, groups = self._reduced(below)

        def watch(value: float, bound: float) -> bool:
            known = max(self.bound, min(bound, below))
            self.progress("partition: milp", known / self.value if math.isfinite(self.value) and self.value > 0 else None)
            return self._left() > 0

        # Any plan below the trial will do: a tighter trial then prunes more than carrying on with this one.
        result = solve_milp(reduced, below=below, seconds=seconds, gap=1.0, watch=watch)
        self.statistics.tested += result.nodes
        if result.status == "infeasible":
            if math.isfinite(below):
                self.bound = max(self.bound, below * (1 - SAFETY))
                self.reason = "mixed-integer programme: no assignment is better by more than the gap"
            else:
                self.infeasible = True
                self.reason = "mixed-integer programme: no assignment satisfies every constraint"
            return math.isfinite(below)
        if result.bound > self.bound:
            self.bound, self.reason = result.bound, "dual bound of the mixed-integer programme"
        better = result.stages is not None and self._lift(result.stages, groups)
        if better and not self._tight():
            self._anneal(Search(restarts=2, proposals=self._proposals(300_000), seconds=0.1 * max(0.0, self._left())))
        return better

    def _solution(self) -> Solution:
        if self.best is None:
            bound = math.inf if self.infeasible else self.bound
            return Solution("infeasible" if self.infeasible else "unknown", None, math.inf, bound, self.reason, self.statistics)
        status = "optimal" if self._tight() else "feasible"
        bound = self.value if status == "optimal" else min(self.bound, self.value)
        return Solution(status, self.best, self.value, bound, self.reason, self.statistics)


def _acyclic(problem: Problem) -> Groups:
    """Nodes on a common cycle as one, in topological order."""
    import networkx as nx

    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(problem.size))
    for u, readers in zip(problem.producer, problem.consumers, strict=True):
        graph.add_edges_from((int(u), v) for v in readers)
    return ordered(problem, [sorted(nodes) for nodes in nx.strongly_connected_components(graph)])


__all__ = ["DISTINCT", "solve_any"]
