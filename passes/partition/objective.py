"""What an objective brings to the shared search (``search``), and what the search gives back."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from passes.model.stages.lattice.dp import Found, KeepOn, Stages
from passes.model.stages.lattice.ideals import Family, Tables
from passes.model.stages.problem import Floats, Problem
from passes.model.stages.reduce import Groups

Progress = Callable[[str, float | None], None]


@dataclass(frozen=True)
class Budget:
    """Limits on a search: ideals walked over per enumeration, bytes stored for a family, pairs of ideals tested in each phase
    (ten to a hundred million a second), seconds in all. The first three make the same plan on any machine; the seconds only
    stop a machine that is slower than expected. ``beaten``: the value of a plan of another kind; a search whose bound reaches
    it ends."""

    ideals: int = 5_000_000
    memory: int = 512 << 20
    pairs: int = 60_000_000
    seconds: float = 10.0
    beaten: float = math.inf


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
    """``stages`` is None when no plan was found; ``status`` is then ``infeasible`` when that is proven, else ``unknown``.
    ``value`` and ``bound`` in seconds per sample; ``reason``: how the bound was reached; ``interrupted``: from the keyboard."""

    status: str
    stages: Stages | None
    value: float
    bound: float
    reason: str
    statistics: Statistics
    interrupted: bool = False


@dataclass(frozen=True)
class AnySolution(Solution):
    """``contiguous``: the contiguous plan that the search began with, for comparison, and its value."""

    contiguous: Stages | None = None
    contiguous_value: float = math.inf


@dataclass(frozen=True)
class PieceSolution(Solution):
    """``stages`` holds the nodes of each device; ``parts``: (device, by its place in ``stages``, nodes) of each piece, in the
    order in which data flows."""

    parts: tuple[tuple[int, tuple[int, ...]], ...] = ()


@dataclass(frozen=True)
class PlacedSolution(Solution):
    """``devices``: by name, of each stage."""

    devices: tuple[tuple[str, ...], ...] = ()


class SearchObjective(Protocol):
    """What an objective brings. ``problem`` is walked at ``price``; stages are (label, nodes), the label being its own."""

    problem: Problem
    price: Floats

    def bound(self) -> tuple[float, str]:
        """A lower bound and how it was reached."""

    def value(self, stages: Stages) -> float:
        """The value of a plan from the definition; inf when it breaks a constraint."""

    def programme(
        self, tables: Tables, family: Family, order: Sequence[int], trial: float, keep_on: KeepOn, floor: float = 0.0
    ) -> Found:
        """The best plan of value at most ``trial`` whose boundaries are in the family; values up to ``floor`` are equally good.
        ``tables`` and ``family`` call ``order[i]`` node i, and so does the answer."""

    def within(self, value: float) -> SearchObjective:
        """The objective for plans of value at most ``value``, without numbers that no such plan has (``problem.within``);
        itself where there are none."""

    def segmented(self, groups: Groups) -> SearchObjective:
        """The objective of plans that keep each group together: its nodes are the groups, its programme takes tables of its
        ``problem``."""

    def tighten(self, tables: Tables, family: Family, bound: float, value: float) -> float:
        """A bound of at least ``bound``, given every ideal that a plan of value at most ``value`` can use."""

    def dearest(self, stages: Stages) -> Sequence[int]:
        """The nodes of the stage that costs most."""

    def part(self, nodes: Sequence[int]) -> SearchObjective:
        """The objective of ``nodes`` alone (ascending), with all devices: its optimum is no larger."""

    def polish(self, tables: Tables, family: Family, value: float, keep_on: KeepOn) -> Stages | None:
        """Of the optimal plans one that is better in another respect, if there is one; ``family`` has every ideal that a plan
        of value at most ``value`` can use."""

    def moved(self) -> Floats | None:
        """Seconds to move each tensor through a boundary, where they are not the problem's own; None where they are, or depend
        on the stages beside it."""

    def starts(self, tables: Tables, bound: float, value: float, max_visits: int, keep_on: KeepOn) -> float:
        """A bound of at least ``bound`` from part of a lattice that is too large to walk as a whole; ``value``: of a plan."""

    @property
    def contracts(self) -> bool:
        """Whether the programme takes tables of a quotient of the problem."""


__all__ = ["AnySolution", "Budget", "PieceSolution", "PlacedSolution", "Progress", "SearchObjective", "Solution", "Statistics"]
