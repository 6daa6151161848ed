"""Exact reductions of a latency problem: fewer nodes, the same least latency.

*Free sources.* A source that takes no time on a CPU or on any accelerator that runs it, makes one tensor and shares no colour
(a weight, in operator graphs). It is either in the piece that holds all its readers, where it costs its bytes and nothing else,
or on a CPU, where each piece that reads it pays one transfer. Nothing else is better: in a piece with some of its readers that
piece sends it instead of receiving it, at the same price, and the other readers wait. So a free source is no node of the
search but a choice within each piece: the bytes, or the transfer. What reads only free sources whose transfers cost nothing
is as good as a source.

Groups of nodes that some optimal plan keeps together:

- *A source and its one reader*, of one colour: in the reader's piece no transfer is paid; on CPUs it takes no time. With q > 1
  it must take none on accelerators either: it moves from an earlier piece to the reader's. (Of several readers one would wait
  for another on CPUs.)
- *One colour, one maker* (q = 1): all that v reads is made by u of its colour, and v takes no time on a CPU, or nobody else
  reads what u makes. They share a piece, or both are on CPUs, where v ends when u ends (or right after it).

A reduced problem can also leave nodes out (``without``): a relaxation. Take any plan and forget a node: nobody waits longer, no
piece pays more, and pieces stay contiguous as long as the order of what is left is kept (``Reduced.after``). So its
least latency is a lower bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from passes.graph.graph import DisjointSets, ordered_groups
from passes.reference.latency.problem import LatencyProblem, Piece
from passes.stages.arrays import Ints
from passes.stages.problem import Floats, Kind


@dataclass(frozen=True, eq=False)
class Free:
    """A free source: ``node`` of the problem. A piece that holds all of ``groups``, its readers, takes in its bytes or pays
    ``transfer[T]``; one that holds some of them pays. ``inside[T]``: an accelerator can hold it."""

    node: int
    groups: tuple[int, ...]
    transfer: Floats
    inside: tuple[bool, ...]
    size: int


@dataclass(frozen=True, eq=False)
class Reduced:
    """Groups in topological order, in place of nodes; the rest as in ``LatencyProblem``. ``received``: bytes of a piece that
    receives a tensor. ``after``: pairs of groups of which the second comes after the first though no tensor says so."""

    problem: LatencyProblem
    groups: tuple[tuple[int, ...], ...]
    seconds: Floats
    cpu: Floats
    size: Ints
    producer: tuple[int, ...]
    consumers: tuple[tuple[int, ...], ...]
    transfer: Floats
    received: Ints
    free: tuple[Free, ...]
    colours: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, int], ...] = ()

    @cached_property
    def following(self) -> tuple[set[int], ...]:
        """Groups that read any tensor of each."""
        found: tuple[set[int], ...] = tuple(set() for _ in self.groups)
        for u, readers in zip(self.producer, self.consumers, strict=True):
            found[u].update(readers)
        return found

    @cached_property
    def makers(self) -> tuple[set[int], ...]:
        """Groups that make what each reads."""
        found: tuple[set[int], ...] = tuple(set() for _ in self.groups)
        for u, readers in enumerate(self.following):
            for v in readers:
                found[v].add(u)
        return found

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return self.problem.kinds

    @property
    def pieces(self) -> int:
        return self.problem.pieces


class _Merger:
    """Groups of nodes under construction."""

    def __init__(self, problem: LatencyProblem) -> None:
        self.problem = problem
        n = problem.nodes
        self.sets = DisjointSets(n)
        self.colour = [-1] * n
        for c, members in enumerate(problem.colours):
            for v in members:
                self.colour[v] = c
        self.made: list[list[int]] = [[] for _ in range(n)]
        self.read: list[list[int]] = [[] for _ in range(n)]
        for h, readers in enumerate(problem.consumers):
            if readers:
                self.made[int(problem.producer[h])].append(h)
                for v in readers:
                    self.read[v].append(h)
        self.free: set[int] = set()

    def idle(self, v: int) -> bool:
        """Takes no time on a CPU."""
        return float(self.problem.cpu[v]) == 0.0

    def weightless(self, v: int) -> bool:
        """Takes no time on an accelerator that runs it."""
        times = self.problem.seconds[:, v]
        return not times[np.isfinite(times)].any()

    def run(self) -> None:
        for v in range(self.problem.nodes):
            self._source(v)
        if self.problem.pieces == 1:
            for v in range(self.problem.nodes):
                self._follower(v)

    def _source(self, v: int) -> None:
        if len(self.made[v]) > 1 or not self.idle(v) or not self._nothing_comes_in(v):
            return
        if self.colour[v] < 0:
            if self.weightless(v):
                self.free.add(v)
        elif not self.read[v] and self.made[v] and (self.problem.pieces == 1 or self.weightless(v)):
            readers = self.problem.consumers[self.made[v][0]]
            if len(readers) == 1 and self.colour[readers[0]] == self.colour[v]:
                self.sets.join(v, readers[0])

    def _nothing_comes_in(self, v: int) -> bool:
        """v reads nothing, or only free sources that cost nothing to transfer."""
        makers = [int(self.problem.producer[h]) for h in self.read[v]]
        return all(u in self.free for u in makers) and not self.problem.transfer[:, self.read[v]].any()

    def _maker(self, v: int) -> int:
        makers = {int(self.problem.producer[h]) for h in self.read[v]}
        return makers.pop() if len(makers) == 1 else -1

    def _follower(self, v: int) -> None:
        u = self._maker(v)
        if u < 0 or u in self.free or self.colour[v] < 0 or self.colour[v] != self.colour[u]:
            return
        if self.sets.root(v) != v or self.sets.root(u) == v:
            return
        alone = all(self.problem.consumers[h] == (v,) for h in self.made[u])
        joined = [w for w in range(self.problem.nodes) if w not in (u, v) and self.sets.root(w) == self.sets.root(u)]
        if self.idle(v) or (alone and not any(self.made[w] for w in joined)):
            self.sets.join(v, u)


def apart(problem: LatencyProblem) -> Reduced:
    """The problem with every node a group of its own, nothing free."""
    return grouped(problem, [(v,) for v in range(problem.nodes)], ())


def reduced(problem: LatencyProblem) -> Reduced:
    """The problem in groups. Where pieces take bytes that are no sum over nodes, a group may be worth more apart: there are
    none."""
    if problem.programs is not None:
        return apart(problem)
    merger = _Merger(problem)
    merger.run()
    groups = [nodes for nodes in merger.sets.listed() if nodes[0] not in merger.free]
    return grouped(problem, groups, merger.free)


def grouped(
    problem: LatencyProblem,
    groups: Sequence[tuple[int, ...]],
    sources: Iterable[int],
    after: Sequence[tuple[int, int]] = (),
) -> Reduced:
    """The problem whose nodes are ``groups``, less those that are in none. ``sources``: to choose within pieces.
    ``after``: pairs of nodes in this order. A group takes the sum of its nodes' times. Raises ValueError for a cycle."""
    groups = sorted(groups, key=min)
    label = {v: g for g, nodes in enumerate(groups) for v in nodes}
    sources = set(sources)
    edges = [(label[u], label[v]) for u, v in after]
    for h, readers in enumerate(problem.consumers):
        maker = int(problem.producer[h])
        if maker in label:
            edges += [(label[maker], label[v]) for v in readers if v in label]
    order = ordered_groups(len(groups), edges)
    if len(order) < len(groups):
        raise ValueError("the groups form a cycle")
    place = {g: i for i, g in enumerate(order)}
    label = {v: place[g] for v, g in label.items()}
    groups = [groups[g] for g in order]
    stated = np.isfinite(problem.seconds)
    producer, consumers, columns, free = [], [], [], []
    for h, readers in enumerate(problem.consumers):
        maker = int(problem.producer[h])
        held = {label[v] for v in readers if v in label}
        if maker in sources and held:
            inside, size = tuple(stated[:, maker].tolist()), int(problem.size[maker])
            free.append(Free(maker, tuple(sorted(held)), problem.transfer[:, h].copy(), inside, size))
        elif maker in label and held - {label[maker]}:
            producer.append(label[maker])
            consumers.append(tuple(sorted(held - {label[maker]})))
            columns.append(h)
    colours = []
    for colour in problem.colours:
        found = tuple(sorted({label[v] for v in colour if v in label}))
        if len(found) > 1:
            colours.append(found)
    kinds = len(problem.kinds)
    seconds = np.array([problem.seconds[:, list(nodes)].sum(axis=1) for nodes in groups]).reshape(len(groups), kinds).T
    return Reduced(
        problem,
        tuple(tuple(sorted(nodes)) for nodes in groups),
        np.ascontiguousarray(seconds),
        np.array([problem.cpu[list(nodes)].sum() for nodes in groups], dtype=np.float64),
        np.array([problem.size[list(nodes)].sum() for nodes in groups], dtype=np.int64),
        tuple(producer),
        tuple(consumers),
        np.ascontiguousarray(problem.transfer[:, columns]),
        problem.programs.received[columns] if problem.programs is not None else np.zeros(len(columns), np.int64),
        tuple(free),
        tuple(colours),
        tuple(sorted({(label[u], label[v]) for u, v in after})),
    )


def restricted(reduced: Reduced, below: float) -> Reduced:
    """The problem of plans that end before ``below``: a group that takes longer on a kind is never there. Besides what it
    prunes, a number that stands for never does not swallow the others in sums over an ideal."""
    return replace(reduced, seconds=np.where(reduced.seconds > below, np.inf, reduced.seconds))


def expanded(reduced: Reduced, pieces: Sequence[tuple[int, int, Sequence[int]]]) -> list[Piece]:
    """The pieces (kind, device, groups) as nodes. Free sources join the piece that holds all their readers while its
    accelerator has room, those that save the most seconds per byte first; those that save nothing stay on CPUs, where
    whatever else reads a source finds it."""
    found = [[v for g in groups for v in reduced.groups[g]] for _, _, groups in pieces]
    used: dict[tuple[int, int], int] = {}
    home: dict[int, int] = {}
    for p, (kind, device, groups) in enumerate(pieces):
        used[kind, device] = used.get((kind, device), 0) + sum(int(reduced.size[g]) for g in groups)
        home.update(dict.fromkeys(groups, p))

    def worth(source: Free, kind: int) -> float:
        saved = float(source.transfer[kind])
        return saved / source.size if source.size else math.inf if saved > 0 else 0.0

    candidates = []
    for number, source in enumerate(reduced.free):
        places = {home.get(g, -1) for g in source.groups}
        if len(places) == 1 and -1 not in places:
            p = places.pop()
            kind, device, _ = pieces[p]
            if source.inside[kind] and source.transfer[kind] > 0:
                candidates.append((-worth(source, kind), number, p, kind, device, source))
    for _, _, p, kind, device, source in sorted(candidates, key=lambda found: found[:2]):
        limit = reduced.kinds[kind].memory
        if limit is None or used[kind, device] + source.size <= limit:
            used[kind, device] += source.size
            found[p].append(source.node)
    return [Piece(kind, device, tuple(sorted(nodes))) for (kind, device, _), nodes in zip(pieces, found, strict=True)]
