"""Exact reductions: smaller problems with the same optimum, and the quotient of a problem by groups.

Two rules, each argued by moving a node v of any plan into a neighbour's stage without raising any load (write c for the
transfer seconds on the kind at hand and p for compute):

*Join the reader.* All that v makes is read by one node z only, and p(v) + sum c(what v reads) <= sum c(what v makes), on
every kind. Move v into z's stage, which lies no earlier. That stage gains p(v) and at worst receives all that v reads, but no
longer receives what v makes: its load does not grow. The stage v left loses p(v) and stops sending what v makes; at worst it
now sends all that v reads: no growth. Whoever made what v reads sent it to v's old stage already, or is that stage. A source
with p(v) <= c(v) is the simplest case.

*Join the maker.* All that v reads is made by one node u, and p(v) + sum c(what v makes) <= sum c(what only v reads), on every
kind. Move v into u's stage, which lies no later. That stage gains p(v) and at worst sends what v makes, but no longer sends
what only v reads. The stage v left at worst receives what v makes instead of that. A sink without compute is the simplest
case.

Where compute and transfers overlap (``comm`` not ``sum``) p(v) must be 0, since saved transfers do not pay for compute.
The kinds that run the neighbour must run v. When some memory limit can bind, v must hold no weights, be alive no
wider than its neighbour, and what is received instead must be no larger. A tensor at which a cut is demanded is never
hidden inside a node. A stage may end up empty, so nothing is done when the number of stages is prescribed. Neither rule can
close a cycle: v has no other successor (predecessor) through which a path could return.

The rules are applied one at a time until none applies, each to the problem that the one before left.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from ir.core.outcomes import TIGHT
from passes.costs.memory.footprint import slots
from passes.graph.graph import DisjointSets, topological
from passes.stages.arrays import Ints, csr, distinct, rows_of
from passes.stages.problem import Floats, Joins, Problem

Groups: TypeAlias = tuple[tuple[int, ...], ...]
"""Members of each node of a quotient, ascending; in the topological order of the quotient."""
Labelled: TypeAlias = tuple[tuple[int, tuple[int, ...]], ...]
"""Stages: a label and nodes of each."""


def reduce(problem: Problem, *, certain: bool = False) -> Groups:
    """Groups of nodes that some optimal plan keeps together. ``certain``: also where what a transfer costs depends on its ends,
    and is never less than the problem says: v then joins a neighbour only if no tensor that costs anything is sent anew."""
    nodes = _hopeful(problem) if problem.stages is None else []
    if not nodes:
        return tuple((v,) for v in range(problem.size))
    return _Reducer(problem, certain).run(nodes)


def _hopeful(problem: Problem) -> list[int]:
    """Nodes that seconds alone do not keep from joining a neighbour, as the problem stands: the transfers that either rule
    would save pay for those that it adds, but for rounding."""
    n = problem.size
    pointers, reader, tensor = problem.reading
    lengths = np.diff(pointers)
    alone = lengths[tensor] == 1
    some = lengths > 0
    hopeful = np.ones((2, n), np.bool_)
    for seconds, transfer in zip(problem.seconds, problem.transfer, strict=True):
        made = np.bincount(problem.producer[some], weights=transfer[some], minlength=n)
        cost = transfer[tensor]
        read = np.bincount(reader, weights=cost, minlength=n)
        only = np.bincount(reader[alone], weights=cost[alone], minlength=n)
        compute = np.where(np.isfinite(seconds), seconds, 0.0)
        hopeful[0] &= compute + read <= made * (1 + TIGHT)
        hopeful[1] &= compute + made <= only * (1 + TIGHT)
    return np.flatnonzero(hopeful.any(axis=0)).tolist()


class _Reducer:
    def __init__(self, problem: Problem, certain: bool) -> None:
        n = problem.size
        self.problem, self.certain = problem, certain
        self.summed = problem.comm == "sum"
        self.seconds: list[list[float]] = problem.seconds.T.tolist()
        self.transfer: list[list[float]] = problem.transfer.T.tolist()
        self.made: list[set[int]] = [set() for _ in range(n)]
        self.read: list[set[int]] = [set() for _ in range(n)]
        self.maker = [int(u) for u in problem.producer]
        self.readers = [set(readers) for readers in problem.consumers]
        for h, readers in enumerate(problem.consumers):
            if readers:
                self.made[self.maker[h]].add(h)
                for v in readers:
                    self.read[v].add(h)
        self.forced = set(problem.forced)
        self.live = [int(b) for b in problem.live]
        self.weighted = weighted(problem)
        self.bytes = [int(b) for b in problem.tensor_bytes]
        self.binding = memory_can_bind(problem)
        self.sets = DisjointSets(n)

    def run(self, queue: list[int]) -> Groups:
        """Applies the rules to the nodes of ``queue``, ascending, and to those around what was joined."""
        queued = set(queue)
        while queue:
            v = heapq.heappop(queue)
            queued.discard(v)
            if self.sets.root(v) != v:
                continue
            target = self._reader(v)
            if target < 0:
                target = self._maker(v)
            if target < 0:
                continue
            for changed in sorted(self._join(v, target) - queued):
                heapq.heappush(queue, changed)
                queued.add(changed)
        return ordered(self.problem, self.sets.listed())

    def _fits(self, v: int, other: int, gained: set[int], lost: set[int]) -> bool:
        """Whether v may join ``other``: seconds and, where it matters, bytes of ``lost`` pay for those of ``gained``."""
        hosts = self.seconds[other]
        if self.certain and any(any(self.transfer[h]) for h in gained):
            return False
        for k, cost in enumerate(self.seconds[v]):
            if math.isinf(cost):
                if hosts[k] != cost:
                    return False
                continue
            bonus = sum(self.transfer[h][k] for h in lost) - sum(self.transfer[h][k] for h in gained)
            if cost > (bonus if self.summed else min(bonus, 0.0)):
                return False
        if self.binding:
            extra = sum(self.bytes[h] for h in gained) - sum(self.bytes[h] for h in lost)
            return not self.weighted[v] and self.live[v] <= self.live[other] and extra <= 0
        return True

    def _reader(self, v: int) -> int:
        """The node that v joins by the first rule, or -1."""
        z = _only(z for h in self.made[v] for z in self.readers[h])
        if z < 0 or self.made[v] & self.forced:
            return -1
        return z if self._fits(v, z, self.read[v], self.made[v]) else -1

    def _maker(self, v: int) -> int:
        """The node that v joins by the second rule, or -1."""
        u = _only(self.maker[h] for h in self.read[v])
        if u < 0 or self.read[v] & self.forced:
            return -1
        return u if self._fits(v, u, self.made[v], {h for h in self.read[v] if len(self.readers[h]) == 1}) else -1

    def _join(self, v: int, target: int) -> set[int]:
        """Makes v part of ``target``; returns the nodes that a rule may apply to now: those around v, and all around ``target``
        where the kinds that it can run on or its live bytes are others."""
        self.sets.join(v, target)
        host = [*map(math.isinf, self.seconds[target]), self.live[target]]
        self.seconds[target] = [a + b for a, b in zip(self.seconds[target], self.seconds[v], strict=True)]
        self.live[target] = max(self.live[target], self.live[v])
        self.weighted[target] = self.weighted[target] or self.weighted[v]
        for h in self.read[v]:
            self.readers[h].discard(v)
            self.readers[h].add(target)
        for h in self.made[v]:
            self.maker[h] = target
        self.read[target] |= self.read[v]
        self.made[target] |= self.made[v]
        around = self.read[v] | self.made[v]
        for h in around:
            if self.maker[h] == target and target in self.readers[h]:  # it stays within the joined node
                self.readers[h].discard(target)
                self.read[target].discard(h)
                if not self.readers[h]:
                    self.made[target].discard(h)
        if host != [*map(math.isinf, self.seconds[target]), self.live[target]]:
            around = self.read[target] | self.made[target]
        changed = {target}
        for h in around:
            if self.maker[h] == target:
                changed |= self.readers[h]
            else:
                changed.add(self.maker[h])
        return changed


def _only(nodes: Iterable[int]) -> int:
    """The node that all of ``nodes`` are; -1 where there are several, or none. Ends at the second."""
    found = -1
    for node in nodes:
        if node != found:
            if found >= 0:
                return -1
            found = node
    return found


def weighted(problem: Problem) -> list[bool]:
    """Whether each node reads a weight that takes bytes."""
    return [any(problem.weight_bytes[w] > 0 for w in weights) for weights in problem.touched[1]]


def memory_can_bind(problem: Problem) -> bool:
    """False when the whole model, with a buffer for every tensor, fits any device."""
    limits = [kind.memory for kind in problem.kinds if kind.memory is not None]
    if not limits:
        return False
    most = (
        int(problem.weight_bytes.sum())
        + int(problem.live.max(initial=0))
        + slots(problem.comm) * int(problem.tensor_bytes.sum())
    )
    return most > min(limits)


def completed(size: int, together: Sequence[Sequence[int]]) -> Groups:
    """The groups, which share no node, and the nodes in none, by first member."""
    inside = {v for nodes in together for v in nodes}
    alone = [(v,) for v in range(size) if v not in inside]
    return tuple(sorted([*(tuple(sorted(nodes)) for nodes in together if len(nodes)), *alone]))


def members_of(stages: Labelled, groups: Groups) -> Labelled:
    """Stages of groups as stages of their members, ascending."""
    return tuple((label, tuple(sorted(v for g in nodes for v in groups[g]))) for label, nodes in stages)


def groups_of(stages: Labelled, groups: Groups) -> Labelled:
    """Stages of members, none of which parts a group, as stages of groups, ascending."""
    number = {v: g for g, nodes in enumerate(groups) for v in nodes}
    return tuple((label, tuple(sorted({number[v] for v in nodes}))) for label, nodes in stages)


def ordered(problem: Problem, groups: Sequence[Sequence[int]]) -> Groups:
    """The groups in a topological order of the quotient, ties by least member. Raises ValueError when it has a cycle."""
    members = tuple(sorted(tuple(sorted(nodes)) for nodes in groups))
    count = len(members)
    label, _, _ = _labels(problem.size, members)
    _, reader, tensor = problem.reading
    maker, reader = label[problem.producer[tensor]], label[reader]
    if (maker <= reader).all():
        return members
    edges = distinct((maker * count + reader)[maker != reader])
    makers, readers = edges // count, edges % count
    order = topological(rows_of(makers, readers, count))
    if len(order) != count:
        raise ValueError("the groups form a cycle")
    return tuple(members[g] for g in order)


def _labels(size: int, groups: Sequence[Sequence[int]]) -> tuple[Ints, Ints, Ints]:
    """The group of each node, -1 where it is in none; where each group begins in the last, all members."""
    pointers, members = csr(groups)
    label = np.full(size, -1, np.int64)
    label[members] = np.repeat(np.arange(len(groups)), np.diff(pointers))
    return label, pointers[:-1], members


def quotient(problem: Problem, groups: Groups) -> Problem:
    """The problem whose nodes are the groups (in topological order, as ``ordered`` gives them). Nodes in no group are left out,
    and what joins the others to them."""
    if groups == tuple((v,) for v in range(problem.size)) and all(problem.consumers):
        return problem
    count = max(len(groups), 1)
    label, starts, members = _labels(problem.size, groups)
    _, reader, tensor = problem.reading
    maker, read = label[problem.producer], label[reader]
    outside = (read != maker[tensor]) & (read >= 0) & (maker[tensor] >= 0)
    pairs = distinct((tensor * count + read)[outside])
    readers = rows_of(pairs // count, pairs % count, len(maker))
    kept = [h for h, row in enumerate(readers) if row or h in problem.forced]
    position = {h: i for i, h in enumerate(kept)}
    place = label.tolist()
    holders = [_groups_of(nodes, place) for nodes in problem.weight_readers]
    held = [w for w, row in enumerate(holders) if row]
    return Problem(
        names=tuple(problem.names[nodes[0]] for nodes in groups),
        kinds=problem.kinds,
        seconds=_sums(problem.seconds, members, starts),
        producer=maker[kept],
        consumers=tuple(readers[h] for h in kept),
        transfer=np.ascontiguousarray(problem.transfer[:, kept]),
        tensor_bytes=problem.tensor_bytes[kept],
        tensor_names=tuple(problem.tensor_names[h] for h in kept),
        live=np.maximum.reduceat(problem.live[members], starts) if len(members) else problem.live,
        weight_bytes=problem.weight_bytes[held],
        weight_readers=tuple(holders[w] for w in held),
        comm=problem.comm,
        forced=tuple(position[h] for h in problem.forced),
        stages=problem.stages,
        most=problem.most,
        replicas=problem.replicas,
        joins=None if problem.joins is None else _joins(problem.joins, place, members, starts),
        borders=tuple(position[h] for h in problem.borders if h in position),
        sequences=problem.sequences,
    )


def permuted(problem: Problem, order: Iterable[int]) -> Problem:
    """The same problem with node ``order[i]`` called i; ``order`` must be topological."""
    return quotient(problem, tuple((v,) for v in order))


def part_of(problem: Problem, nodes: Sequence[int]) -> Problem:
    """The problem of ``nodes`` (ascending) alone: what joins them to others is left out, and so are demands on the plan."""
    joins = None if problem.joins is None else replace(problem.joins, turns=None)
    return permuted(replace(problem, forced=(), stages=None, joins=joins, borders=()), nodes)


def _groups_of(nodes: Sequence[int], label: Sequence[int]) -> tuple[int, ...]:
    """The groups of ``nodes``, ascending."""
    if len(nodes) == 1 and label[nodes[0]] >= 0:
        return (label[nodes[0]],)
    return tuple(sorted({label[v] for v in nodes} - {-1}))


def _sums(rows: Floats, members: Ints, starts: Ints) -> Floats:
    """``rows[.., n]`` added up by group."""
    return np.ascontiguousarray(np.add.reduceat(rows[..., members], starts, axis=-1)) if len(members) else rows


def _joins(joins: Joins, label: Sequence[int], members: Ints, starts: Ints) -> Joins:
    """Tensors without a direction that still join several groups."""
    pins = [_groups_of(nodes, label) for nodes in joins.pins]
    kept = [h for h, nodes in enumerate(pins) if len(nodes) > 1]
    turns = joins.turns
    return Joins(
        tuple(pins[h] for h in kept),
        np.ascontiguousarray(joins.transfer[:, kept]),
        joins.side[kept],
        _sums(joins.seconds, members, starts),
        None if turns is None else replace(turns, signs=_sums(turns.signs, members, starts)),
    )
