"""A beam over boundaries: a chain of ideals picked by minimum cuts, where the lattice is too large to walk.

A stage begins at an ideal J that is given. Which ideals could end it? Those within reach of its seconds whose cut is small,
and an ideal of small cut is a minimum closure (Picard, 1976): a minimum cut of a network with one arc per tensor, out of its
maker and cut when the maker is in and some reader is out, and arcs that no cut can use against the precedence. An ideal must
also hold enough seconds and not too many: one node is forced in, and seconds are rewarded or charged at several prices; every
pair of a node and a price gives one candidate. Of all candidates of all states those that got furthest begin the next
stages.

The chain is a plan for identical devices, and its stages one after the other are an order; the programme over the prefixes of
that order knows what the beam does not (several kinds, memory, replicas). Nothing is proven: a beam gives no bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from passes.model.stages.arrays import csr
from passes.model.stages.lattice.dp import KeepOn
from passes.model.stages.lattice.tables import Tables
from passes.model.stages.problem import Floats, Ints
from passes.model.work import did

MOST_NODES = 2_500
"""Nodes beyond which the table of ancestors is too large."""
WIDTH = 2
"""States kept from stage to stage."""
FORCED = 24
"""Nodes that are forced in, in turn, per state."""
Ideal: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]
"""Per node: whether it is in."""
PRICES = (-8.0, -1.5, -0.4, -0.1, 0.3)
"""Seconds of cut that a second of compute is worth; below 0 it is charged."""


@dataclass(frozen=True)
class Boundaries:
    """How stages on identical devices are judged: ``seconds[n]`` of the nodes, ``moved[H]`` of a tensor through one boundary;
    what a boundary moves ``adds`` to the seconds of the stages on both sides, or stands beside them. ``stages``: the most."""

    seconds: Floats
    moved: Floats
    adds: bool
    stages: int


@dataclass(frozen=True)
class _State:
    """An ideal that is reached, and the seconds that move its cut; ``stages``: the ideals before it."""

    inside: Ideal
    cut: float
    before: tuple[Ideal, ...]


class Beam:
    """Chains of boundaries for one problem; ``order`` looks for one at a trial value."""

    def __init__(self, tables: Tables, rule: Boundaries) -> None:
        self.tables, self.rule = tables, rule
        n = tables.problem.size
        self.ancestors = np.eye(n, dtype=np.float32)
        for v in range(n):
            for u in tables.pred[tables.pred_ptr[v] : tables.pred_ptr[v + 1]].tolist():
                np.maximum(self.ancestors[v], self.ancestors[u], out=self.ancestors[v])
        self.readers = [np.array(readers, np.int64) for readers in tables.problem.consumers]

    def order(self, trial: float, keep_on: KeepOn) -> list[int] | None:
        """A topological order, stage by stage of a chain whose stages take at most ``trial``; None when the beam finds none."""
        n, seconds = self.tables.problem.size, self.rule.seconds
        states = [_State(np.zeros(n, np.bool_), 0.0, ())]
        for stage in range(self.rule.stages):
            for state in states:
                rest = float(seconds[~state.inside].sum())
                if rest + (state.cut if self.rule.adds else 0.0) <= trial:
                    return self._along((*state.before, state.inside))
            found: dict[bytes, tuple[float, _State]] = {}
            for state in states:
                if not keep_on(0, stage / self.rule.stages):
                    return None
                for inside, cut in self.following(state.inside, state.cut, trial):
                    reach = float(seconds[inside].sum()) - (cut if self.rule.adds else 0.0)
                    found.setdefault(inside.tobytes(), (reach, _State(inside, cut, (*state.before, state.inside))))
            states = [state for _, (_, state) in sorted(found.items(), key=lambda item: (-item[1][0], item[0]))[:WIDTH]]
        return None

    def _along(self, chain: tuple[Ideal, ...]) -> list[int]:
        stage_of = np.full(self.tables.problem.size, len(chain), np.int64)
        for stage, inside in reversed(list(enumerate(chain))):
            stage_of[inside] = stage
        order: list[int] = np.argsort(stage_of, kind="stable").tolist()
        return order

    def following(self, start: Ideal, start_cut: float, trial: float) -> list[tuple[Ideal, float]]:
        """Ideals that may end a stage which begins at ``start``, with their cuts; ``start_cut`` is that of ``start``."""
        from passes.partition import flow_kernels

        rule, problem = self.rule, self.tables.problem
        room = trial - start_cut if rule.adds else trial
        missing = np.where(start, 0.0, rule.seconds)
        need = self.ancestors @ missing
        free = np.flatnonzero(~start & (need <= room))
        if not len(free):
            return []
        place = np.full(problem.size, -1, np.int64)
        place[free] = np.arange(len(free))
        makers, outside, costs, rows = [], [], [], []
        fixed = 0.0
        for h, readers in enumerate(self.readers):
            maker = int(problem.producer[h])
            if not (start[maker] or place[maker] >= 0):
                continue
            left = readers[~start[readers]]
            if not len(left):
                continue
            beyond = bool((place[left] < 0).any())
            if start[maker] and beyond:
                fixed += float(rule.moved[h])
                continue
            makers.append(int(place[maker]))
            outside.append(beyond)
            costs.append(float(rule.moved[h]))
            rows.append([] if beyond else place[left].tolist())
        network = _Network(self.tables, free, place, makers, outside, costs, rows)
        forced = free[np.argsort(need[free], kind="stable")][:: max(1, -(-len(free) // FORCED))]
        most = len(forced) * len(PRICES)
        inside, cuts = np.zeros((most, len(free)), np.bool_), np.empty(most)
        count = flow_kernels.closures(
            network.first,
            network.arcs,
            network.head,
            network.capacity,
            np.ascontiguousarray(rule.seconds[free]),
            np.array(PRICES),
            place[forced],
            network.maker,
            network.reader_ptr,
            network.reader,
            network.cost,
            fixed,
            room,
            trial,
            rule.adds,
            inside,
            cuts,
        )
        did("arc", most * len(network.arcs))
        result = []
        for row, cut in zip(inside[:count], cuts[:count].tolist(), strict=True):
            whole = start.copy()
            whole[free[row]] = True
            result.append((whole, cut))
        return result


class _Network:
    """Arrays of the network over the free nodes: node i, tensor h at ``len(free) + h``, source and sink. The first pairs of
    arcs are source to node, then node to sink, one of each per node."""

    def __init__(
        self,
        tables: Tables,
        free: Ints,
        place: Ints,
        makers: list[int],
        outside: list[bool],
        costs: list[float],
        rows: list[list[int]],
    ) -> None:
        count = len(free)
        source, sink = count + len(makers), count + len(makers) + 1
        ends = [(source, i, 0.0) for i in range(count)] + [(i, sink, 0.0) for i in range(count)]
        never = 1e30
        for i, v in enumerate(free.tolist()):
            for u in place[tables.pred[tables.pred_ptr[v] : tables.pred_ptr[v + 1]]].tolist():
                if u >= 0:
                    ends.append((i, u, never))
        for h, (maker, beyond, cost, readers) in enumerate(zip(makers, outside, costs, rows, strict=True)):
            if beyond:
                ends.append((maker, sink, cost))
                continue
            ends.append((source if maker < 0 else maker, count + h, cost))
            ends += [(count + h, reader, never) for reader in readers]
        tail = np.array([[a, b] for a, b, _ in ends], np.int64)
        self.head = np.ascontiguousarray(tail[:, ::-1]).reshape(-1)
        self.capacity = np.zeros(2 * len(ends))
        self.capacity[::2] = [capacity for _, _, capacity in ends]
        from_ = tail.reshape(-1)
        self.arcs = np.argsort(from_, kind="stable")
        self.first = np.zeros(sink + 2, np.int64)
        np.cumsum(np.bincount(from_, minlength=sink + 1), out=self.first[1:])
        self.maker = np.array(makers, np.int64)
        self.reader_ptr, self.reader = csr(rows)
        self.cost = np.array(costs)


__all__ = ["Beam", "Boundaries"]
