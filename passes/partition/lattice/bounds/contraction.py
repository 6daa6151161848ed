"""Relaxed contraction: a small problem whose optimum is a lower bound on that of a problem too large to walk.

Nodes are merged until few ideals are left, and whatever a merge could make dearer is made cheaper, so every plan of the problem
becomes a plan of the relaxed one whose loads are no larger. A tensor is seen as a *net*: the nodes that make or read it; a
stage that holds some of them but not all pays for it (received or sent: loads add both up).

*Move* v, all of whose successors are the one node w (or all of whose predecessors are), into w's stage. That stage gains p(v)
and at worst pays the nets that v has without w; it no longer pays those of v and w alone. The stage that v left at worst pays
the same nets and no longer those of v and w alone. No other stage changes. So with

    need = p(v) + sum c(nets of v without w) - sum c(nets of v and w alone),

by kind of device and side of a load, loads do not grow where need <= 0; where need > 0, that much is taken off the nets that v
has without w, and off p(v) when they cost too little. Weights of v are dropped where memory can bind. A tensor read by many
side chains (an encoding by the keys of every decoder layer) gives way once, not once for each.

That keeps precedence: a stage takes a node only between its neighbours. Merges are applied one after the other, each to the
problem that those before left.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from passes.graph.graph import DisjointSets
from passes.partition.lattice.bounds.minimum_cuts import nets_of
from passes.partition.lattice.bounds.policy import POLICY
from passes.stages.problem import Floats, Joins, Problem, precedence
from passes.stages.reduce import Groups, ordered


@dataclass(frozen=True)
class Relaxed:
    """``problem`` has ``joins``; its optimum is a lower bound. ``groups``: members of each of its nodes."""

    problem: Problem
    groups: Groups


class Relaxer:
    """Relaxations of one problem, at the scale of a load ``value``."""

    def __init__(self, problem: Problem, value: float) -> None:
        self.problem, self.value = problem, value
        self.apart = _apart(problem)

    def relax(self, give: float, apart: float) -> Relaxed:
        """One move may need at most ``give`` of a load, and something only where the node is ``apart`` from (neither before nor
        behind) at least so large a part of all nodes: such nodes multiply the lattice most."""
        merging = _Merging(self.problem)
        merging.move(give * self.value, self.apart >= apart)
        return merging.relaxed()


def relaxes(problem: Problem) -> bool:
    """Whether anything here applies: compute and transfers of a load add up."""
    return problem.joins is not None or problem.comm == "sum"


def _apart(problem: Problem) -> Floats:
    """Of each node the part of all nodes that it is neither before nor behind."""
    n = problem.size
    after = [0] * n
    before = [0] * n
    following = problem.neighbours[1]
    for v in range(n - 1, -1, -1):
        for u in following[v]:
            after[v] |= after[u] | 1 << u
    for v in range(n):
        for u in following[v]:
            before[u] |= before[v] | 1 << v
    related = np.array([after[v].bit_count() + before[v].bit_count() + 1 for v in range(n)], np.float64)
    return 1 - related / max(n, 1)


class _Merging:
    """The problem while nodes merge. A group goes by its root; ``nets[h]``: roots joined, ``cost[h][G, T]``, ``seconds[v][G,
    T]``."""

    def __init__(self, problem: Problem) -> None:
        n, kinds = problem.size, len(problem.kinds)
        self.problem = problem
        seconds = problem.seconds[None] if problem.joins is None else problem.joins.seconds
        self.sides = len(seconds)
        self.seconds = [seconds[:, :, v].copy() for v in range(n)]
        self.before, self.after = ([set(found) for found in side] for side in problem.neighbours)
        nets = nets_of(problem)
        self.nets = [set(pins) for pins in nets.pins]
        self.cost = [np.zeros((self.sides, kinds)) for _ in self.nets]
        self.on: list[set[int]] = [set() for _ in range(n)]
        for h, pins in enumerate(self.nets):
            self.cost[h][int(nets.side[h])] = nets.transfer[:, h]
            if len(pins) > 1 and nets.transfer[:, h].any():
                for v in pins:
                    self.on[v].add(h)
        self.weights = np.ones(n, np.bool_)
        self.sets = DisjointSets(n)
        total = np.array([math.fsum(row[np.isfinite(row)]) for row in problem.seconds])
        rate = np.array([kind.count * kind.replicas for kind in problem.kinds]) / np.maximum(total, 1e-300)
        self.slow = rate < POLICY.slow * rate.max(initial=0.0)

    def _sum(self, nets: set[int]) -> Floats:
        return sum((self.cost[h] for h in sorted(nets)), np.zeros((self.sides, len(self.problem.kinds))))

    def move(self, most: float, eligible: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> None:
        """Moves nodes one at a time until none is left that needs at most ``most``; what is not ``eligible`` only where it
        needs nothing."""
        queue = list(range(self.problem.size))
        while queue:
            v = heapq.heappop(queue)
            if self.sets.root(v) != v:
                continue
            for beside in (self.after[v], self.before[v]):
                if len(beside) == 1 and self._gives_way(v, next(iter(beside)), most if eligible[v] else 0.0):
                    for changed in sorted(self._join(v, next(iter(beside)))):
                        heapq.heappush(queue, changed)
                    break

    def _gives_way(self, v: int, w: int, most: float) -> bool:
        """Whether v may move to w; if so, what that needs is taken off."""
        alone = {h for h in self.on[v] if self.nets[h] == {v, w}}
        others = {h for h in self.on[v] if w not in self.nets[h]}
        finite = np.isfinite(self.seconds[v])
        need = np.where(finite, self.seconds[v], 0.0) + self._sum(others) - self._sum(alone)
        if (need[:, ~self.slow] > most).any() or (most == 0 and (need > 0).any()):
            return False
        lacks = ~finite & np.isfinite(self.seconds[w])
        if lacks.any() and (most == 0 or lacks[:, ~self.slow].any()):
            return False
        self.seconds[v] = np.where(lacks, 0.0, self.seconds[v])
        need = np.maximum(need, 0.0)
        for h in sorted(others, key=lambda h: (-float(self.cost[h].max()), h)):
            taken = np.minimum(need, self.cost[h])
            self.cost[h] = self.cost[h] - taken
            need = need - taken
        self.seconds[v] = np.maximum(self.seconds[v] - need, 0.0)
        self.weights[v] = False
        return True

    def _join(self, v: int, w: int) -> set[int]:
        """Makes v part of w; returns the nodes whose neighbourhood changed."""
        self.sets.join(v, w)
        self.seconds[w] = self.seconds[w] + self.seconds[v]
        for h in self.on[v]:
            self.nets[h] = (self.nets[h] - {v}) | {w}
            self.on[w].add(h)
        for h in [h for h in self.on[w] if len(self.nets[h]) == 1]:
            self.on[w].discard(h)
        for u in self.before[v]:
            self.after[u] = (self.after[u] - {v}) | {w}
        for u in self.after[v]:
            self.before[u] = (self.before[u] - {v}) | {w}
        self.before[w] = (self.before[w] | self.before[v]) - {v, w}
        self.after[w] = (self.after[w] | self.after[v]) - {v, w}
        return {w, *self.before[w], *self.after[w], *(u for h in self.on[w] for u in self.nets[h])}

    def relaxed(self) -> Relaxed:
        """The problem as it is now."""
        problem, kinds = self.problem, len(self.problem.kinds)
        groups = ordered(problem, self.sets.listed())
        roots = [self.sets.root(nodes[0]) for nodes in groups]
        place = {root: i for i, root in enumerate(roots)}
        label = [place[self.sets.root(v)] for v in range(problem.size)]
        seconds = np.array([self.seconds[root] for root in roots]).reshape(len(roots), self.sides, kinds)
        seconds = np.ascontiguousarray(seconds.transpose(1, 2, 0))
        merged: dict[tuple[tuple[int, ...], int], Floats] = {}
        for pins, side, cost in self._live_nets(place):
            merged[pins, side] = merged.get((pins, side), 0.0) + cost
        nets = sorted(merged)
        transfer = np.array([merged[net] for net in nets]).reshape(len(nets), kinds)
        names = tuple(problem.names[nodes[0]] for nodes in groups)
        weights = [w for w, readers in enumerate(problem.weight_readers) if any(self.weights[v] for v in readers)]
        small = replace(
            problem,
            **precedence(names, kinds, [{place[u] for u in self.after[root]} for root in roots]),
            names=names,
            seconds=np.ascontiguousarray(seconds.sum(axis=0)),
            live=np.zeros(len(roots), np.int64),
            weight_bytes=problem.weight_bytes[weights],
            weight_readers=tuple(
                tuple(sorted({label[v] for v in problem.weight_readers[w] if self.weights[v]})) for w in weights
            ),
            comm="sum",
            forced=(),
            stages=None,
            joins=Joins(
                tuple(pins for pins, _ in nets),
                np.ascontiguousarray(transfer.T),
                np.array([side for _, side in nets], np.int64),
                seconds,
            ),
        )
        return Relaxed(small, groups)

    def _live_nets(self, place: dict[int, int]) -> Iterator[tuple[tuple[int, ...], int, Floats]]:
        """Nets of two nodes and more that cost something: places of their nodes, side, cost by kind."""
        for pins, cost in zip(self.nets, self.cost, strict=True):
            if len(pins) > 1:
                for side in range(self.sides):
                    if cost[side].any():
                        yield tuple(sorted(place[v] for v in pins)), side, cost[side]
