"""Throughput without contiguity: any assignment of nodes to devices, by local search and by refuting trial values.

A device holds one set of nodes, which need not be an interval of the graph; data may flow back and forth between two devices.
Load, memory and demands are those of ``problem``; the order of its nodes plays no part, so a quotient by classes that lie on
a cycle is a valid input here. Never worse than a contiguous plan, by up to a fifth on the public workloads; what it costs is
more borders to cross, and a schedule that overlaps several samples on devices that wait for each other.

1. Upper bound: the contiguous programme (cycles joined), then a short annealing (``local_search``).
2. Lower bound: load balance and largest node (``bounds``).
3. For a trial value t below the upper bound: exact reductions that hold for plans at or below t (``reduce``), then the
   mixed-integer programme with the load capped at t. Told to be infeasible, t is a lower bound; a plan is a better
   upper bound. Trials come some way (``Policy.steps``) below the upper bound, so that a small gap is proven early; the last
   tells whether anything is better by more than ``DISTINCT``. A cap prunes far more than the same programme minimised from
   above: at a 1 % gap minutes become seconds.
4. Where a short trial cannot tell: all the annealing that the baseline is, so that nothing worse than its plan
   comes out, then trials with all the time that is left.

With ``sides`` (training) a load has a forward and a backward part and the value is the largest of the one plus the largest
of the other; reductions that join nodes are left out then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from passes.graph.graph import components
from passes.partition.lattice.objective import Budget, IdealSearch, Solution
from passes.partition.lattice.search.throughput import solve
from passes.reference.assignment.local_search import Assignment, Sides, local_search, plain_search, sided_value, stages_of
from passes.reference.assignment.reduce import reduce_any
from passes.solvers.anytime import Progress
from passes.solvers.highs import PROVEN, SAFETY
from passes.stages.bounds import best_bound, lower_bound, prices
from passes.stages.lattice.dp import Stages
from passes.stages.problem import Problem, violations
from passes.stages.reduce import Groups, completed, groups_of, members_of, ordered, quotient, reduce

DISTINCT = SAFETY
"""Relative difference of values that the mixed-integer solver can tell apart."""


@dataclass(frozen=True)
class Policy:
    """The numbers that steer this search (``tests.bench.any_split``, ``tests.bench.ablation``)."""

    steps: tuple[float, ...] = (0.0095, 0.002)
    """Relative distances of the first trials below the best value: so a gap of 1 % is proven early."""
    contiguous_share: float = 0.1
    first_share: float = 0.025
    """Parts of the time left that the contiguous search and the first annealing may take."""
    short: float = 2.0
    """Seconds of each of the first trials: easy problems are proven by them, and spared the annealing."""


POLICY = Policy()


@dataclass(frozen=True)
class AnySolution(Solution):
    """``contiguous``: the contiguous plan that the search began with, for comparison, and its value."""

    contiguous: Stages | None = None
    contiguous_value: float = math.inf


def solve_any(
    problem: Problem,
    budget: Budget | None = None,
    progress: Progress = lambda label, fraction: None,
    *,
    together: Sequence[Sequence[int]] = (),
    starts: Sequence[Stages] = (),
    sides: Sides | None = None,
) -> AnySolution:
    """The best plan found within ``budget.seconds``, with a valid lower bound; stages ordered by first node.

    ``together``: disjoint classes of nodes that share a device (others stand alone), cyclic or not; none with ``sides``.
    ``starts``: known plans as stages of (kind, nodes). An interrupt from the keyboard returns the best plan so far, if there
    is one."""
    classes = completed(problem.size, together)
    if len({v for nodes in classes for v in nodes}) != sum(map(len, classes)):
        raise ValueError("classes of nodes that share a device overlap")
    if sides is not None and together:
        raise ValueError("classes of nodes are joined before their load is told by side")
    search = _Search(quotient(problem, classes) if together else problem, budget or Budget(), progress, sides)
    for known in starts:
        search.accept(groups_of(known, classes))
    solution = search.run()
    stages, contiguous = (plan and members_of(plan, classes) for plan in (solution.stages, search.contiguous))
    if stages is not None:
        stages = tuple(sorted(stages, key=lambda stage: stage[1]))
    return AnySolution(**{**vars(solution), "stages": stages}, contiguous=contiguous, contiguous_value=search.contiguous_value)


class _Search(IdealSearch):
    def __init__(self, problem: Problem, budget: Budget, progress: Progress, sides: Sides | None) -> None:
        super().__init__(budget, progress, _simple_bound(problem, sides), PROVEN)
        self.problem, self.sides = problem, sides
        self.contiguous: Stages | None = None
        self.contiguous_value = math.inf

    def run(self) -> Solution:
        self.search(self._phases)
        return self.solution()

    def _phases(self) -> None:
        if self.sides is None:
            self.phase("contiguous", self._contiguous)
        self.phase("local search", lambda: self._anneal(POLICY.first_share * self.left()))
        self.phase("trials", lambda: self._prove(POLICY.short))
        self.phase("local search", lambda: self._anneal(self.left()))
        self.phase("trials", lambda: self._prove(math.inf))

    def accept(self, stages: Stages) -> bool:
        """Keeps the stages when they are feasible and better, both from the definition."""
        value = sided_value(self.problem, stages, self.sides)
        if value >= self.value or violations(self.problem, stages, ordered=False):
            return False
        self.value, self.best = value, stages
        return True

    def phase(self, name: str, work: Callable[[], None]) -> None:
        super().phase(name, lambda: None if self._done() else work())

    def _tell(self, name: str) -> None:
        known = self.bound / self.value if math.isfinite(self.value) and self.value > 0 else None
        self.progress(f"partition: {name}", known)

    def _done(self) -> bool:
        return self.infeasible or self.tight() or self.left() <= 0

    def _contiguous(self) -> None:
        """The best contiguous plan that a part of the time finds."""
        classes = _acyclic(self.problem)
        joined = quotient(self.problem, classes)
        merged = reduce(joined)
        seconds = max(0.05, POLICY.contiguous_share * self.left())
        found = solve(quotient(joined, merged), replace(self.limits, seconds=seconds), self.progress)
        self.statistics.ideals, self.statistics.transitions = found.statistics.ideals, found.statistics.transitions
        self.interrupted = found.interrupted
        if found.stages is not None:
            self.contiguous_value = found.value
            self.contiguous = members_of(members_of(found.stages, merged), classes)
            self.accept(self.contiguous)
        if found.interrupted:
            raise KeyboardInterrupt

    def _anneal(self, seconds: float) -> None:
        """The baseline's annealing, on the problem as it stands; its plans count as soon as they are found."""
        told: list[Assignment] = []

        def keep_on(assignment: Assignment | None) -> bool:
            self._tell("local search")
            if assignment is not None and told[-1:] != [assignment]:
                told.append(assignment)
                self.accept(stages_of(self.problem, assignment))
            return not self._done()

        search = plain_search(self.problem, seconds)
        local_search(self.problem, search, enough=self.bound, sides=self.sides, keep_on=keep_on)

    def _reduced(self, below: float) -> tuple[Problem, Groups]:
        """The problem of plans at or below a value, and the nodes of each of its nodes."""
        if self.sides is not None:
            return self.problem, tuple((v,) for v in range(self.problem.size))
        groups = reduce_any(self.problem, below)
        return quotient(self.problem, groups), groups

    def _prove(self, seconds: float) -> None:
        """Trials one after another until one cannot tell in so many seconds."""
        steps = list(POLICY.steps)
        while not self._done():
            value = self.value
            step = steps[0] if steps else DISTINCT
            if steps and self.bound >= value * (1 - step) * (1 - DISTINCT):
                steps.pop(0)
            elif not self._trial(value * (1 - step) if math.isfinite(value) else math.inf, seconds):
                return

    def _trial(self, below: float, seconds: float) -> bool:
        """One programme: is there a plan at or below ``below``? False when it could not tell, and no better plan was found."""
        from passes.reference.assignment.milp_process import solver_for

        reduced, groups = self._reduced(below)

        def watch(found: float, bound: float) -> bool:
            self._tell("trials")
            return not self._done()

        # Any plan below the trial will do: a tighter trial then prunes more than carrying on with this one.
        solver, seconds = solver_for(reduced), min(seconds, self.left())
        result = solver(reduced, below=below, seconds=seconds, gap=1.0, watch=watch, sides=self.sides)
        self.statistics.tested += result.nodes
        if result.fault:
            self.reason = f"{self.reason}; mixed-integer programme: {result.fault}"
        if result.status == "infeasible" and math.isinf(below):
            self.infeasible = True
            self.reason = "mixed-integer programme: no assignment satisfies every constraint"
            return False
        least = below * (1 - SAFETY) if result.status == "infeasible" else min(result.bound, below)
        if least > self.bound:
            refuted = result.status == "infeasible"
            self.reason = f"mixed-integer programme: {'no plan is better by more than the gap' if refuted else 'dual bound'}"
            self.bound = least
        better = result.stages is not None and self.accept(members_of(result.stages, groups))
        return better or result.status == "infeasible"


def _simple_bound(problem: Problem, sides: Sides | None) -> tuple[float, str]:
    """Load balance and largest node; with sides also the sum of what holds for either."""
    bound, reason = best_bound(problem, prices(problem))
    if sides is None:
        return bound, reason
    # No device does more on both sides together than the value; nor on one side than its largest.
    apart = [replace(problem, seconds=seconds) for seconds in sides.seconds]
    least = sum(lower_bound(side, prices(side))[0] for side in apart)
    return (least, "load balance of each side") if least > bound else (bound, reason)


def _acyclic(problem: Problem) -> Groups:
    """Nodes on a common cycle as one, in topological order."""
    return ordered(problem, components(problem.neighbours[1]))
