"""Latency as a mixed-integer programme (``highs`` solves it), after the latency programme of Tarnawski et al. (NeurIPS 2020).

From the definition in ``problem``, with none of the search's reductions: an oracle for it, and its help on small problems where
the choice of bytes or kinds is more than it can carry. Weak on large ones.

Slots are the pieces 0 .. q - 1 of every accelerator. Binary x[v, s] says that node v is in slot s, x[v, cpu] that it is on a
CPU; each node is in one place. Per tensor and slot, r[h, s] >= x[reader, s] - x[maker, s] and g[h, s] >= x[maker, s] -
x[reader, s] for each reader: received, sent. With M the longest that a plan of interest takes, and ready[v] as in ``Schedule``:

- start[s] >= ready[maker of h] - M (1 - r[h, s]), and start[s + 1] >= start[s] + length[s] on one accelerator, where
  length[s] sums the seconds of what is in s and the transfers of r and g;
- ready[v] >= start[s] + length[s] - M (1 - x[v, s]); ready[v] >= ready[u] + cpu[v] x[v, cpu] for each u that v reads, on CPUs
  or not: what a piece makes is ready when the piece ends. No node is ready before the longest path to it could be.

Times alone let pieces wait for each other in a circle that takes no time. Where transfers may cost nothing there is a second
clock, on which every step takes one tick.

Nodes of a colour have the same sums over the slots of each accelerator. Memory is a row per accelerator; with ``Programs``, a
column per slot and weight, and per slot and level of bytes alive (``Liveness`` it does not know). Identical accelerators
are numbered by their first node, pieces left empty are the last.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from passes.model.highs import SAFETY, SCALE, Rows, Watch, solve_rows
from passes.partition.latency.problem import LatencyProblem, Piece

_APART = 1e-3
"""Of ``SCALE`` units: a transfer of fewer might hide in the solver's tolerance."""


@dataclass(frozen=True)
class LatencyMilp:
    """``status``: ``optimal``, ``feasible``, ``infeasible`` (no plan at or below ``below``) or ``unknown``; ``pieces`` in an
    order in which they can run, None without a plan; ``bound`` in seconds; ``nodes`` of the search tree."""

    status: str
    pieces: tuple[Piece, ...] | None
    bound: float
    nodes: int


def solve_latency_milp(
    problem: LatencyProblem,
    *,
    start: Sequence[Piece] | None = None,
    below: float = math.inf,
    seconds: float = 60.0,
    gap: float = 0.0,
    watch: Watch = lambda value, bound: True,
) -> LatencyMilp:
    """The best plan at or below ``below`` seconds. ``start``: the pieces of a plan to begin from; ``gap``: relative, at which
    to stop. Bytes are as exact as the solver's tolerance: ``problem.faults`` tells whether the plan fits to the last one."""
    if problem.programs is not None and problem.programs.liveness is not None:
        raise ValueError("the programme knows of no op inside a node")
    model = _Model(problem, below)
    answer = solve_rows(
        model.rows,
        model.end,
        model.factor,
        start=None if start is None else model.values(start),
        seconds=seconds,
        gap=gap,
        watch=watch,
    )
    pieces = None if answer.values is None else model.pieces(answer.values)
    return LatencyMilp(answer.status, pieces, answer.bound, answer.nodes)


@dataclass(frozen=True)
class _Clock:
    """Columns: when slots start and when what nodes make is ready; the longest that either may be."""

    start: list[int]
    ready: list[int]
    most: float


class _Model:
    def __init__(self, problem: LatencyProblem, below: float) -> None:
        self.problem = problem
        horizon = min(below, _longest(problem))
        self.factor = SCALE / horizon if horizon > 0 else 1.0
        self.most = horizon * self.factor * (1 + SAFETY)
        self.devices = [(k, d) for k, kind in enumerate(problem.kinds) for d in range(kind.count)]
        self.slots = [(number, i) for number in range(len(self.devices)) for i in range(problem.pieces)]
        self.rows = Rows()
        self.end = self.rows.column(0.0, horizon * self.factor if math.isfinite(below) else math.inf)
        runs = [self._runs(problem.seconds[kind]) for kind in range(len(problem.kinds))]
        on_cpu = self._runs(problem.cpu)
        kinds = [self.devices[number][0] for number, _ in self.slots]
        self.x = [[self.rows.column(0.0, float(runs[k][v]), integer=True) for k in kinds] for v in range(problem.nodes)]
        self.on_cpu = [self.rows.column(0.0, float(runs_), integer=True) for runs_ in on_cpu]
        for v in range(problem.nodes):
            self.rows.row([(c, 1.0) for c in (*self.x[v], self.on_cpu[v])], 1.0, 1.0)
        self.received: list[list[int]] = []
        self.lengths = [self._length(s, kind) for s, kind in enumerate(kinds)]
        cpu = [(self.on_cpu[v], float(problem.cpu[v]) * self.factor if on_cpu[v] else 0.0) for v in range(problem.nodes)]
        self.clock = self._run(self._early(), self.lengths, cpu, self.most)
        for moment in self.clock.ready:
            self.rows.row([(self.end, 1.0), (moment, -1.0)], lower=0.0)
        for s, first in enumerate(self.clock.start):
            self.rows.row([(self.end, 1.0), (first, -1.0), *((c, -a) for c, a in self.lengths[s])], lower=0.0)
        self.order = self.clock
        if (problem.transfer * self.factor < _APART).any():
            ticks = float(problem.nodes + len(self.slots) + 1)
            one = self.rows.column(1.0, 1.0)
            steps = [(column, 1.0) for column in self.on_cpu]
            self.order = self._run([0.0] * problem.nodes, [[(one, 1.0)] for _ in self.slots], steps, ticks)
        self._colours()
        self._memory()
        self._numbered()

    def _runs(self, seconds: Sequence[float] | np.ndarray) -> list[bool]:
        """Whether each node can be where it takes so long."""
        return [math.isfinite(own) and own * self.factor <= self.most for own in map(float, seconds)]

    def _early(self) -> list[float]:
        """When each node is ready at the earliest: the longest path to it, each on its fastest device."""
        problem = self.problem
        fastest = np.minimum(problem.cpu, problem.seconds.min(axis=0, initial=np.inf))
        early = [float(own) * self.factor * (1 - SAFETY) if math.isfinite(own) else 0.0 for own in fastest]
        arrive = [0.0] * problem.nodes
        made: list[list[int]] = [[] for _ in early]
        for h, readers in enumerate(problem.consumers):
            for v in readers:
                made[v].append(int(problem.producer[h]))
        for v, own in enumerate(early):
            arrive[v] = own + max((arrive[u] for u in made[v]), default=0.0)
        return arrive

    def _length(self, s: int, kind: int) -> list[tuple[int, float]]:
        """The terms of slot s's length; sets what it receives."""
        problem, rows = self.problem, self.rows
        terms = [
            (self.x[v][s], float(problem.seconds[kind, v]) * self.factor)
            for v in range(problem.nodes)
            if rows.upper[self.x[v][s]] > 0
        ]
        received = []
        for h, readers in enumerate(problem.consumers):
            cost = float(problem.transfer[kind, h]) * self.factor
            maker = self.x[int(problem.producer[h])][s]
            paid = cost <= self.most
            r = rows.column(0.0, float(paid))
            received.append(r)
            g = rows.column(0.0, float(paid)) if cost else -1
            for v in readers:
                rows.row([(r, 1.0), (self.x[v][s], -1.0), (maker, 1.0)], lower=0.0)
                if g >= 0:
                    rows.row([(g, 1.0), (maker, -1.0), (self.x[v][s], 1.0)], lower=0.0)
            terms += [(c, cost) for c in (r, g) if c >= 0 and cost and paid]
        self.received.append(received)
        return terms

    def _run(
        self, early: list[float], lengths: list[list[tuple[int, float]]], cpu: list[tuple[int, float]], most: float
    ) -> _Clock:
        """Rows of a clock: slots take ``lengths``, a node on a CPU its column in ``cpu`` times what stands beside it."""
        problem, rows = self.problem, self.rows
        clock = _Clock(
            [rows.column(0.0, most) for _ in self.slots],
            [rows.column(moment, max(most, moment)) for moment in early],
            most,
        )
        for (s, (device, _)), (following, (other, _)) in itertools.pairwise(enumerate(self.slots)):
            if device == other:
                ends = [(clock.start[s], -1.0), *((c, -a) for c, a in lengths[s])]
                rows.row([(clock.start[following], 1.0), *ends], lower=0.0)
        for s, first in enumerate(clock.start):
            for v in range(problem.nodes):
                terms = [(clock.ready[v], 1.0), (first, -1.0), *((c, -a) for c, a in lengths[s])]
                rows.row([*terms, (self.x[v][s], -2 * most)], lower=-2 * most)
            for h, column in enumerate(self.received[s]):
                maker = clock.ready[int(problem.producer[h])]
                rows.row([(first, 1.0), (maker, -1.0), (column, -most)], lower=-most)
        for v, (column, taken) in enumerate(cpu):
            rows.row([(clock.ready[v], 1.0), (column, -taken)], lower=0.0)
        for h, readers in enumerate(problem.consumers):
            maker = clock.ready[int(problem.producer[h])]
            for v in readers:
                column, taken = cpu[v]
                rows.row([(clock.ready[v], 1.0), (maker, -1.0), (column, -taken)], lower=0.0)
        return clock

    def _on(self, v: int, device: int) -> list[int]:
        """The columns that say that v is on an accelerator."""
        return [self.x[v][s] for s, (other, _) in enumerate(self.slots) if other == device]

    def _colours(self) -> None:
        for colour in self.problem.colours:
            for u, v in itertools.pairwise(colour):
                self.rows.row([(self.on_cpu[u], 1.0), (self.on_cpu[v], -1.0)], 0.0, 0.0)
                for device in range(len(self.devices)):
                    terms = [(c, 1.0) for c in self._on(u, device)] + [(c, -1.0) for c in self._on(v, device)]
                    self.rows.row(terms, 0.0, 0.0)

    def _memory(self) -> None:
        for device, (kind, _) in enumerate(self.devices):
            limit = self.problem.kinds[kind].memory
            if limit is None:
                continue
            unit = SCALE / max(limit, 1)
            terms = []
            for s, (other, _) in enumerate(self.slots):
                if other == device:
                    terms += [(column, size * unit) for column, size in self._bytes(s, limit)]
            self.rows.row(terms, upper=limit * unit)

    def _bytes(self, s: int, limit: int) -> list[tuple[int, float]]:
        """Columns whose sum, each times what stands beside it, is the bytes of slot s; what is over the limit is ruled out."""
        rows, problem, programs = self.rows, self.problem, self.problem.programs
        terms = [(self.x[v][s], size) for v, size in enumerate(problem.size.tolist()) if size]
        if programs is not None:
            terms += [(self.received[s][h], size) for h, size in enumerate(programs.received.tolist()) if size]
            shared = [
                (size, readers) for size, readers in zip(programs.weight_bytes.tolist(), programs.weight_readers, strict=True)
            ]
            # The largest of what is alive is what all that is no larger need, level upon level.
            levels = sorted({0, *programs.live.tolist()})
            for low, high in itertools.pairwise(levels):
                shared.append((high - low, tuple(np.flatnonzero(programs.live >= high).tolist())))
            for size, readers in shared:
                column = rows.column(0.0, 1.0)
                for v in readers:
                    rows.row([(column, 1.0), (self.x[v][s], -1.0)], lower=0.0)
                terms.append((column, size))
        for column, size in terms:
            if size > limit:
                rows.upper[column] = 0.0
        return [(column, float(size)) for column, size in terms if 0 < size <= limit]

    def _numbered(self) -> None:
        """Of identical accelerators, and of the pieces of one, one numbering."""
        everything = range(self.problem.nodes)
        for device, (kind, number) in enumerate(self.devices):
            if number == 0:
                continue
            assert self.devices[device - 1][0] == kind
            for v in everything:
                before = [(c, 1.0) for u in range(v) for c in self._on(u, device - 1)]
                self.rows.row([*((c, -1.0) for c in self._on(v, device)), *before], lower=0.0)
        for s, (_, i) in enumerate(self.slots):
            if i:
                for v in everything:
                    self.rows.row([(self.x[v][s], -1.0), *((self.x[u][s - 1], 1.0) for u in everything)], lower=0.0)

    def pieces(self, values: Sequence[float]) -> tuple[Piece, ...]:
        """The plan, in the order of the clock that tells its steps apart."""
        held: dict[int, list[int]] = {}
        for v, row in enumerate(self.x):
            s = int(np.argmax([values[c] for c in row] + [values[self.on_cpu[v]]]))
            if s < len(row):
                held.setdefault(s, []).append(v)
        order = sorted(held, key=lambda s: (values[self.order.start[s]], s))
        return tuple(Piece(*self.devices[self.slots[s][0]], tuple(held[s])) for s in order)

    def values(self, pieces: Sequence[Piece]) -> dict[int, float]:
        """Where a plan has its nodes, as values of columns, accelerators numbered as the rows ask."""
        first: dict[tuple[int, int], int] = {}
        for piece in pieces:
            key = (piece.kind, piece.device)
            first[key] = min(first.get(key, self.problem.nodes), piece.nodes[0])
        number = {}
        for kind in range(len(self.problem.kinds)):
            ranked = sorted((key for key in first if key[0] == kind), key=lambda key: first[key])
            number.update({key: self.devices.index((kind, i)) for i, key in enumerate(ranked)})
        slot: dict[int, int] = {}
        run = [0] * len(self.devices)
        for piece in pieces:
            device = number[piece.kind, piece.device]
            slot.update(dict.fromkeys(piece.nodes, device * self.problem.pieces + run[device]))
            run[device] += 1
        found = {c: float(slot.get(v) == s) for v, row in enumerate(self.x) for s, c in enumerate(row)}
        return found | {c: float(v not in slot) for v, c in enumerate(self.on_cpu)}


def _longest(problem: LatencyProblem) -> float:
    """No plan need take longer: each node where it is slowest, every tensor sent, and received by every reader."""
    times = np.vstack([problem.seconds, problem.cpu[None, :]])
    total = float(np.where(np.isfinite(times), times, 0.0).max(axis=0).sum())
    for h, readers in enumerate(problem.consumers):
        total += float(problem.transfer[:, h].max(initial=0.0)) * (1 + len(readers))
    return total


__all__ = ["LatencyMilp", "solve_latency_milp"]
