"""What searches have in common: limits, statistics, the best plan and bound so far; and what an objective brings to one."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Self, TypeAlias

from ir.core.outcomes import Outcome
from passes.solvers.interrupts import interruptible
from passes.solvers.work import now
from passes.stages.bounds import prices
from passes.stages.lattice.dp import Found, KeepOn, Stages, solve_family
from passes.stages.lattice.ideals import Family, Tables
from passes.stages.problem import Floats, Problem, part_of, within
from passes.stages.reduce import Groups

Progress = Callable[[str, float | None], None]
Parts: TypeAlias = tuple[tuple[int, tuple[int, ...]], ...]
"""Stages of a plan in pipeline order: the position of the solution's stage that it is part of, and its nodes."""


@dataclass(frozen=True)
class Budget:
    """Limits on a search: ideals walked over per enumeration, bytes stored for a family, pairs of ideals tested in each phase
    (ten to a hundred million a second), seconds in all. The first three make the same plan on any machine; the seconds only
    stop a machine that is slower than expected. ``beaten``: the value of a plan of another kind; a search whose bound reaches
    it ends. ``first``: the search ends with its first plan."""

    ideals: int = 5_000_000
    memory: int = 512 << 20
    pairs: int = 60_000_000
    seconds: float = 10.0
    beaten: float = math.inf
    first: bool = False


@dataclass
class Statistics:
    """What a search did: ideals walked over, the most held at once, pairs of them met and priced in full, seconds by phase."""

    ideals: int = 0
    stored: int = 0
    tested: int = 0
    transitions: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Solution:
    """``stages`` is None when no plan was found: ``status`` is then ``infeasible`` or ``undecided``. ``value`` and ``bound`` in
    seconds per sample; ``reason``: how the bound was reached; ``interrupted``: from the keyboard. ``apart``: where a device
    runs several stages, all stages of the plan, as ``parts``. ``devices``: by name, of each of ``stages``; empty where
    ``place`` chooses them."""

    status: Outcome
    stages: Stages | None
    value: float
    bound: float
    reason: str
    statistics: Statistics
    interrupted: bool = False
    apart: Parts = ()
    devices: tuple[tuple[str, ...], ...] = ()

    @property
    def parts(self) -> Parts:
        """The stages of the plan."""
        return self.apart or uncut(self.stages or ())


def uncut(stages: Stages) -> Parts:
    """Each stage of a solution as a stage of the plan."""
    return tuple((position, nodes) for position, (_, nodes) in enumerate(stages))


class Anytime:
    """A search that has its best plan and its bound at every moment, and gives neither up."""

    def __init__(self, budget: Budget, progress: Progress, bound: tuple[float, str], equal: float) -> None:
        """``equal``: relative distance at which a value counts as equal to its bound."""
        self.budget, self.progress, self.equal = budget, progress, equal
        self.started = now()
        self.statistics = Statistics()
        self.best: Stages | None = None
        self.value = math.inf
        self.bound, self.reason = bound
        self.infeasible = self.interrupted = False

    def search(self, work: Callable[[], None]) -> None:
        """Runs the whole search. An interrupt from the keyboard ends it; with no plan yet, it is passed on."""
        try:
            with interruptible():
                work()
        except KeyboardInterrupt:
            if self.best is None:
                raise
            self.interrupted = True

    def phase(self, name: str, work: Callable[[], None]) -> None:
        """Runs a phase; its seconds are counted, also those of one that ends by an exception."""
        start = time.perf_counter()
        self.progress(f"partition: {name}", None)
        try:
            work()
        finally:
            self.statistics.seconds[name] = self.statistics.seconds.get(name, 0.0) + time.perf_counter() - start

    def tight(self) -> bool:
        """Whether the plan is proven to be the best."""
        return self.value <= self.bound * (1 + self.equal) or self.value == self.bound == 0

    def left(self) -> float:
        """Seconds until the time is over; negative behind it, and once a plan is found where the first one will do."""
        return -math.inf if self.enough() else self.budget.seconds - (now() - self.started)

    def enough(self) -> bool:
        """Whether the first plan will do, and is found."""
        return self.budget.first and self.best is not None

    def tell(self, bound: float, reason: str) -> None:
        """Keeps a bound that is higher than the one known."""
        if bound > self.bound:
            self.bound, self.reason = bound, reason

    def solution(self) -> Solution:
        """What the search has reached."""
        if self.best is None:
            without: Outcome = "infeasible" if self.infeasible else "undecided"
            bound = math.inf if self.infeasible else self.bound
            return Solution(without, None, math.inf, bound, self.reason, self.statistics, self.interrupted)
        status: Outcome = "optimal" if self.tight() else "within-gap"
        bound = self.value if status == "optimal" else min(self.bound, self.value)
        return Solution(status, self.best, self.value, bound, self.reason, self.statistics, self.interrupted)


class SearchObjective(ABC):
    """What an objective brings. ``problem`` is walked at ``price``; stages are (label, nodes), the label being its own. The
    defaults are those of a programme over ideals of the problem's own kinds, and add no bounds."""

    problem: Problem
    price: Floats
    contracts = True
    """Whether the programme takes tables of a quotient of the problem."""

    @abstractmethod
    def bound(self) -> tuple[float, str]:
        """A lower bound and how it was reached."""

    @abstractmethod
    def value(self, stages: Stages) -> float:
        """The value of a plan from the definition; inf when it breaks a constraint."""

    @abstractmethod
    def dearest(self, stages: Stages) -> Sequence[int]:
        """The nodes of the stage that costs most."""

    def programme(
        self, tables: Tables, family: Family, order: Sequence[int], trial: float, keep_on: KeepOn, floor: float = 0.0
    ) -> Found:
        """The best plan of value at most ``trial`` whose boundaries are in the family; values up to ``floor`` are equally good.
        ``tables`` and ``family`` call ``order[i]`` node i, and so does the answer."""
        return solve_family(tables, family, trial, keep_on, floor=floor)

    def over(self, problem: Problem) -> Self:
        """The same objective over the ideals of another problem."""
        other = copy(self)
        other.problem, other.price = problem, prices(problem)
        return other

    def part(self, nodes: Sequence[int]) -> Self:
        """The objective of ``nodes`` alone (ascending), with all devices: its optimum is no larger."""
        return self.over(part_of(self.problem, nodes))

    def within(self, value: float) -> Self:
        """The objective for plans of value at most ``value``, without numbers that no such plan has (``problem.within``);
        itself where there are none."""
        narrowed = within(self.problem, value)
        return self if narrowed is self.problem else self.over(narrowed)

    def segmented(self, groups: Groups, problem: Problem) -> Self:
        """The objective of plans that keep each group together: its nodes are the groups, its programme takes tables of
        ``problem``, the quotient by them; its price stays."""
        other = copy(self)
        other.problem = problem
        return other

    def tighten(self, tables: Tables, family: Family, bound: float, value: float) -> float:
        """A bound of at least ``bound``, given every ideal that a plan of value at most ``value`` can use."""
        return bound

    def polish(self, tables: Tables, family: Family, value: float, keep_on: KeepOn) -> Stages | None:
        """Of the optimal plans one that is better in another respect, if there is one; ``family`` has every ideal that a plan
        of value at most ``value`` can use."""
        return None

    def moved(self) -> Floats | None:
        """Seconds to move each tensor through a boundary, where they are not the problem's own; None where they are, or depend
        on the stages beside it."""
        return None

    def starts(self, tables: Tables, bound: float, value: float, max_visits: int, keep_on: KeepOn) -> float:
        """A bound of at least ``bound`` from part of a lattice that is too large to walk as a whole; ``value``: of a plan."""
        return bound


__all__ = [
    "Anytime",
    "Budget",
    "Parts",
    "Progress",
    "SearchObjective",
    "Solution",
    "Statistics",
    "uncut",
]
