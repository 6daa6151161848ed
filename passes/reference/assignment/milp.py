"""Least largest load of any assignment as a mixed-integer programme (``highs`` solves it).

Binary x[v, s] says that node v lies in slot s; each node lies in one. The slots are the devices. (Tests add rows that ask for
contiguous stages, as an oracle of the dynamic programme: ``places`` and ``in_order`` are theirs to replace.)

Transfers are counted per tensor and slot, not per edge: r[h, s] >= x[reader, s] - x[maker, s] for each reader, g[h, s] >=
x[maker, s] - x[reader, s]; where x is whole the least r and g are too. A tensor with one reader needs one column for both
where the directions are not told apart. Columns that cost nothing in a slot are left out.

Identical devices are numbered by their first node in a list of the heaviest: x[v_i, d] <= sum of x[v_j, d - 1] over j < i.

Numbers are scaled so that the largest load is about ``SCALE`` and memory limits are ``SCALE``, since the solver's tolerances
are absolute. What alone is over ``below`` or over a limit on memory is ruled out by the bounds of its columns, so that no
coefficient is large.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ir.core.outcomes import Outcome
from passes.costs.memory.footprint import slots
from passes.reference.assignment.local_search import Sides, kind_of, sided_value
from passes.solvers.highs import SAFETY, SCALE, Answer, Rows, Watch, solve_rows
from passes.solvers.work import now
from passes.stages.problem import Problem

VANISHES = 1e-3
"""Where the value of a plan is less than this part of what numbers are scaled by, they are scaled by that value instead."""


@dataclass(frozen=True)
class MilpResult:
    """``status``: the outcome of the search for a plan at or below ``below``. ``stages`` lists (kind, nodes) of each slot that
    holds nodes. ``fault``: how the process that solved it died, if it did."""

    status: Outcome
    stages: tuple[tuple[int, tuple[int, ...]], ...] | None
    bound: float
    nodes: int
    fault: str = ""


def solve_milp(
    problem: Problem,
    *,
    below: float = math.inf,
    seconds: float = 60.0,
    gap: float = 0.0,
    watch: Watch = lambda value, bound: True,
    sides: Sides | None = None,
) -> MilpResult:
    """The best plan at or below ``below``, which must be finite when a plan is known. ``gap``: relative, at which to stop.
    ``sides``: where the value is the largest forward load plus the largest backward load."""
    ends, scale = now() + seconds, _sum(problem)
    found = Model(problem, below, sides).solve(seconds, gap, watch)
    while math.isinf(below) and found.stages is not None:
        # Numbers are scaled by ``scale``. Where a plan is worth far less, tolerances hide what it is made of.
        value = sided_value(problem, found.stages, sides)
        if not 0 < value < VANISHES * scale:
            break
        nearer = Model(problem, value, sides).solve(max(0.0, ends - now()), gap, watch)
        nodes = found.nodes + nearer.nodes
        if nearer.stages is None:
            return replace(found, status="within-gap", bound=0.0, nodes=nodes, fault=nearer.fault)
        found, scale = replace(nearer, nodes=nodes), value
    return found


def _sum(problem: Problem) -> float:
    """An upper bound of the value of any plan."""
    return float(np.where(np.isfinite(problem.seconds), problem.seconds, 0.0).sum() + problem.transfer.sum())


class Model:
    """The rows of one problem."""

    def __init__(self, problem: Problem, below: float = math.inf, sides: Sides | None = None) -> None:
        self.problem, self.sides = problem, sides
        reference = below if math.isfinite(below) else _sum(problem)
        self.factor = SCALE / reference if reference > 0 else 1.0
        self.slots = self.places()
        self.rows = Rows()
        top = below * self.factor if math.isfinite(below) else math.inf
        self.load = self.rows.column(0.0, top)
        self.most = top * (1 + SAFETY)
        self.loads = [self.load] if sides is None else [self.rows.column(0.0, math.inf) for _ in sides.seconds]
        if sides is not None:
            self.rows.row([(self.load, 1.0), *((column, -1.0) for column in self.loads)], lower=0.0)
        self.runs = runs = np.isfinite(problem.seconds) & (problem.seconds * self.factor <= self.most)
        self.x = [[self.rows.column(0.0, float(runs[k, v]), integer=True) for k, _ in self.slots] for v in range(problem.size)]
        for v in range(problem.size):
            self.rows.row([(c, 1.0) for c in self.x[v]], 1.0, 1.0)
        for s in range(len(self.slots)):
            self._slot(s)
        self._demands()
        self._number()

    def places(self) -> list[tuple[int, int]]:
        """The slots: kind and number of each."""
        return [(k, d) for d, k in enumerate(kind_of(self.problem))]

    def in_order(self, held: Mapping[int, Sequence[int]]) -> Iterable[int]:
        """The slots that hold nodes, in the order in which they are told."""
        return held

    def _slot(self, s: int) -> None:
        """Load and memory of one slot."""
        problem, rows = self.problem, self.rows
        kind = self.slots[s][0]
        limit = problem.kinds[kind].memory
        amounts = problem.seconds[None] if self.sides is None else self.sides.seconds
        side = [0] * len(problem.consumers) if self.sides is None else self.sides.side.tolist()
        compute = [
            [(self.x[v][s], seconds[kind, v] * self.factor) for v in range(problem.size) if self.runs[kind, v]]
            for seconds in amounts
        ]
        received: list[list[tuple[int, float]]] = [[] for _ in amounts]
        sent: list[list[tuple[int, float]]] = [[] for _ in amounts]
        buffers: list[tuple[int, float]] = []
        for h, readers in enumerate(problem.consumers):
            cost = problem.transfer[kind, h] * self.factor
            maker = int(problem.producer[h])
            others = [v for v in readers if v != maker]
            size = slots(problem.comm) * int(problem.tensor_bytes[h]) if limit is not None else 0
            if not others or (cost == 0 and size == 0):
                continue
            # One column for both directions where it is the same tensor, cost and pair of nodes.
            both = problem.comm != "duplex" and size == 0 and len(others) == 1
            # Numbers that stand for never make no coefficients: a bound on the column says the same.
            paid = cost <= self.most
            r = rows.column(0.0, float(paid and (limit is None or size <= limit)))
            g = r if both else rows.column(0.0, float(paid)) if cost else -1
            cost = cost if paid else 0.0
            for v in others:
                rows.row([(r, 1.0), (self.x[v][s], -1.0), (self.x[maker][s], 1.0)], lower=0.0)
                if g >= 0:
                    rows.row([(g, 1.0), (self.x[maker][s], -1.0), (self.x[v][s], 1.0)], lower=0.0)
            received[side[h]].append((r, cost))
            if g >= 0 and not both:
                sent[side[h]].append((g, cost))
            buffers.append((r, float(size)))
        for load, work, into, out in zip(self.loads, compute, received, sent, strict=True):
            parts = {"sum": [work + into + out], "overlap": [work, into + out], "duplex": [work, into, out]}
            for part in parts[problem.comm]:
                rows.row([*part, (load, -1.0)], upper=0.0)
        if limit is not None:
            self._memory(s, limit, buffers)

    def _memory(self, s: int, limit: int, buffers: list[tuple[int, float]]) -> None:
        problem, rows = self.problem, self.rows
        unit = SCALE / max(limit, 1)
        used = [(c, b * unit) for c, b in buffers if b <= limit]
        for size, readers in zip(problem.weight_bytes, problem.weight_readers, strict=True):
            if not size or not readers:
                continue
            if size > limit:
                for v in readers:
                    rows.upper[self.x[v][s]] = 0.0
                continue
            column = self.x[readers[0]][s]
            if len(readers) > 1:
                column = rows.column(0.0, 1.0)
                for v in readers:
                    rows.row([(column, 1.0), (self.x[v][s], -1.0)], lower=0.0)
            used.append((column, float(size) * unit))
        if problem.live.any():
            most = rows.column(0.0, math.inf)
            for u in np.flatnonzero(problem.live).tolist():
                if problem.live[u] > limit:
                    rows.upper[self.x[u][s]] = 0.0
                    continue
                rows.row([(most, 1.0), (self.x[u][s], -float(problem.live[u]) * unit)], lower=0.0)
            used.append((most, 1.0))
        rows.row(used, upper=limit * unit)

    def _demands(self) -> None:
        problem, rows = self.problem, self.rows
        for h in problem.forced:
            for v in problem.consumers[h]:
                for s in range(len(self.slots)):
                    rows.row([(self.x[int(problem.producer[h])][s], 1.0), (self.x[v][s], 1.0)], upper=1.0)
        if problem.stages is not None:
            rows.row([(q, 1.0) for q in self.taken], problem.stages, problem.stages)

    @cached_property
    def taken(self) -> list[int]:
        """Columns that say of each slot whether it holds a node."""
        columns = [self.rows.column(0.0, 1.0, integer=True) for _ in self.slots]
        for s, q in enumerate(columns):
            held = [self.x[v][s] for v in range(self.problem.size)]
            for c in held:
                self.rows.row([(q, 1.0), (c, -1.0)], lower=0.0)
            self.rows.row([(q, -1.0), *((c, 1.0) for c in held)], lower=0.0)
        return columns

    def _number(self) -> None:
        """Tells identical devices apart by their first node."""
        listed = heaviest(self.problem)
        for devices in _alike(self.problem):
            for before, d in itertools.pairwise(devices):
                for i, v in enumerate(listed):
                    self.rows.row([(self.x[v][d], -1.0), *((self.x[u][before], 1.0) for u in listed[:i])], lower=0.0)

    def solve(self, seconds: float = 60.0, gap: float = 0.0, watch: Watch = lambda value, bound: True) -> MilpResult:
        """The best plan that the solver finds within ``seconds``."""
        return self._result(solve_rows(self.rows, self.load, self.factor, seconds=seconds, gap=gap, watch=watch))

    def _result(self, answer: Answer) -> MilpResult:
        if answer.values is None:
            return MilpResult(answer.status, None, answer.bound, answer.nodes)
        held: dict[int, list[int]] = {}
        for v, row in enumerate(self.x):
            held.setdefault(int(np.argmax([answer.values[c] for c in row])), []).append(v)
        stages = tuple((self.slots[s][0], tuple(held[s])) for s in self.in_order(held))
        return MilpResult(answer.status, stages, answer.bound, answer.nodes)


def heaviest(problem: Problem) -> list[int]:
    """The nodes by whose places identical devices are told apart: up to four for each device, by least seconds, descending."""
    least = problem.seconds.min(axis=0) if problem.size else np.zeros(0)
    order = sorted(range(problem.size), key=lambda v: (-least[v], v))
    return order[: 4 * problem.devices]


def _alike(problem: Problem) -> list[range]:
    """Device numbers of each kind, where there are several."""
    first, result = 0, []
    for kind in problem.kinds:
        if kind.count > 1:
            result.append(range(first, first + kind.count))
        first += kind.count
    return result
