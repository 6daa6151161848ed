"""What searches over ideals have in common beside what all have (``passes.solvers.anytime``), and what an objective brings."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

from ir.core.outcomes import Outcome
from passes.solvers.anytime import Anytime, Limits, Result, Statistics
from passes.stages.bounds import prices
from passes.stages.lattice.dp import Found, KeepOn, Stages, solve_family
from passes.stages.lattice.ideals import Family
from passes.stages.lattice.tables import Tables
from passes.stages.problem import Floats, Problem, within
from passes.stages.reduce import Groups, part_of

Parts: TypeAlias = tuple[tuple[int, tuple[int, ...]], ...]
"""Stages of a plan in pipeline order: the position of the solution's stage that it is part of, and its nodes."""


@dataclass(frozen=True, kw_only=True)
class Budget(Limits):
    """Limits on a search over ideals: those walked over per enumeration, bytes stored for a family, pairs of ideals tested in
    each phase (ten to a hundred million a second). These make the same plan on any machine; ``seconds`` only stop a search that
    takes longer than expected."""

    ideals: int = 5_000_000
    memory: int = 512 << 20
    pairs: int = 60_000_000
    seconds: float = 10.0


@dataclass(frozen=True, kw_only=True)
class Solution(Result):
    """``stages`` is None when no plan was found: ``status`` is then ``infeasible`` or ``undecided``. Seconds are per sample.
    ``apart``: where a device runs several stages, all stages of the plan, as ``parts``. ``devices``: by name, of each of
    ``stages``; empty where ``place`` chooses them."""

    stages: Stages | None
    statistics: Statistics
    apart: Parts = ()
    devices: tuple[tuple[str, ...], ...] = ()

    @property
    def parts(self) -> Parts:
        """The stages of the plan."""
        return self.apart or uncut(self.stages or ())


def uncut(stages: Stages) -> Parts:
    """Each stage of a solution as a stage of the plan."""
    return tuple((position, nodes) for position, (_, nodes) in enumerate(stages))


class IdealSearch(Anytime[Stages]):
    """A search for stages that are differences of ideals."""

    limits: Budget

    def solution(self) -> Solution:
        """What the search has reached."""
        common: dict[str, Any] = {"reason": self.reason, "interrupted": self.interrupted, "statistics": self.statistics}
        if self.best is None:
            without: Outcome = "infeasible" if self.infeasible else "undecided"
            bound = math.inf if self.infeasible else self.bound
            return Solution(status=without, stages=None, value=math.inf, bound=bound, **common)
        status: Outcome = "optimal" if self.tight() else "within-gap"
        bound = self.value if status == "optimal" else min(self.bound, self.value)
        return Solution(status=status, stages=self.best, value=self.value, bound=bound, **common)


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
