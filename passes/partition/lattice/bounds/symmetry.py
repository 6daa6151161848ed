"""Interchangeable branches counted once: precedence that keeps an optimum and turns 2^m ideals into m + 1.

A *row* is a set of nodes of which any two may change places: same seconds, weights and neighbours, and nets
(``minimum_cuts.nets_of``) that hold all of the row or one each, alike but for that one. So only how many of a row lie in each
stage matters, and an optimal plan has them in stages that do not fall along the row: each may be asked to precede the next.

Branches of several nodes are rows that are *linked*: net after net of two nodes, the next row's b-th node reading the b-th of
this one. With links, and the precedence along them, left aside, each row is interchangeable by itself. Sorting every row keeps
the precedence along the links (if a_i <= b_i for every i, so for both sorted), but not who is linked with whom in a stage: of
the nodes of two linked rows that lie in a stage, x of the first and y of the second, at best min(x, y) are linked with each
other, and the rest pay, |x - y| links in all. That best is reached in every stage and along a whole path of rows at once, by
going on first with the branches begun in the same stage. So links become *turns* (``Turns``), which cost exactly that, and the
optimum over sorted rows is the optimum (``assigned`` gives the plan).
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from passes.stages.canonical import Refinement, hashed
from passes.stages.lattice.dp import Stages
from passes.stages.problem import Joins, Problem, Turns, precedence
from passes.stages.reduce import ordered, permuted


@dataclass(frozen=True)
class Symmetric:
    """``problem``: with the rows sorted by precedence, links turned; its node i is node ``order[i]``. ``paths``: rows of nodes
    by branch, each row linked to the next, in the old numbering."""

    problem: Problem
    order: tuple[int, ...]
    paths: tuple[tuple[tuple[int, ...], ...], ...]

    def assigned(self, stages: Stages) -> Stages:
        """The plan in the old numbering, each stage going on first with the branches it began: it costs what the turns say."""
        stage_of = {self.order[v]: s for s, (_, nodes) in enumerate(stages) for v in nodes}
        for path in self.paths:
            progress = [0] * len(path[0])
            latest = [-1] * len(path[0])
            counts = [[sum(stage_of[v] == s for v in row) for row in path] for s in range(len(stages))]
            for s, done in enumerate(counts):
                for level, count in enumerate(done):
                    ready = [b for b, reached in enumerate(progress) if reached == level]
                    ready.sort(key=lambda b: (latest[b] != s, b))
                    for b in ready[:count]:
                        progress[b], latest[b] = level + 1, s
                        stage_of[path[level][b]] = s
        return tuple((kind, tuple(sorted(v for v in stage_of if stage_of[v] == s))) for s, (kind, _) in enumerate(stages))


def symmetric(problem: Problem) -> Symmetric | None:
    """The problem (with ``joins``) with interchangeable branches sorted; None when there are none."""
    assert problem.joins is not None, "only nets without direction are turned"
    view = _View(problem, problem.joins)
    paths = view.paths()
    if not paths:
        return None
    small = view.sorted(paths)
    order = tuple(nodes[0] for nodes in ordered(small, [(v,) for v in range(small.size)]))
    return Symmetric(permuted(small, order), order, tuple(paths))


class _View:
    """Nodes with their neighbours and nets."""

    def __init__(self, problem: Problem, joins: Joins) -> None:
        n = problem.size
        self.problem, self.joins = problem, joins
        self.before, self.after = problem.neighbours
        self.on: list[list[int]] = [[] for _ in range(n)]
        for h, pins in enumerate(joins.pins):
            for v in pins:
                self.on[v].append(h)
        self.price = [(int(joins.side[h]), joins.transfer[:, h].tobytes()) for h in range(len(joins.pins))]
        self.held = problem.touched[1]
        own = [0] * n
        for size, readers in zip(problem.weight_bytes.tolist(), problem.weight_readers, strict=True):
            if len(readers) == 1:
                own[readers[0]] += size
        self.alone: list[Hashable] = [(joins.seconds[:, :, v].tobytes(), int(problem.live[v]), own[v]) for v in range(n)]

    def colours(self) -> list[int]:
        """A number of each node, the same for interchangeable ones."""
        order = hashed(len(self.problem.consumers), [])  # a tensor here says who comes before whom, and nothing else
        prices = hashed(len(self.joins.pins), [self.joins.side, *np.ascontiguousarray(self.joins.transfer).view(np.int64)])
        view = Refinement(self.problem, order, self.joins.pins, prices)
        return _numbered(view.refined(hashed(self.problem.size, [_numbered(self.alone)]))[0].tolist())

    def paths(self) -> list[tuple[tuple[int, ...], ...]]:
        """Rows linked to paths, by branch, each verified."""
        rows: dict[int, list[int]] = defaultdict(list)
        colour = self.colours()
        for v, c in enumerate(colour):
            rows[c].append(v)
        rows = {c: row for c, row in rows.items() if len(row) > 1}
        following = self._links(rows, colour)
        led_to = {later for later, _ in following.values()}
        found = []
        for c in sorted(rows):
            if c in led_to:
                continue
            path, here = [tuple(rows[c])], c
            while here in following:
                here, partner = following[here]
                path.append(tuple(partner[v] for v in path[-1]))
            links = {frozenset(pair) for a, b in itertools.pairwise(path) for pair in zip(a, b, strict=True)}
            if all(self._interchangeable(row, links) for row in path):
                found.append(tuple(path))
        return found

    def _links(self, rows: dict[int, list[int]], colour: Sequence[int]) -> dict[int, tuple[int, dict[int, int]]]:
        """Of each row the next one that it is linked to, and the partner of each of its nodes; no row is next to two."""
        following: dict[int, tuple[int, dict[int, int]]] = {}
        taken: set[int] = set()
        for c in sorted(rows):
            nodes = rows[c]
            for later in sorted({colour[u] for u in self.after[nodes[0]]} & set(rows)):
                partners = {v: [u for u in self.after[v] if colour[u] == later] for v in nodes}
                one_each = all(len(found) == 1 for found in partners.values())
                if later in taken or not one_each or len({found[0] for found in partners.values()}) < len(rows[later]):
                    continue
                if len(rows[later]) == len(nodes):
                    following[c] = later, {v: found[0] for v, found in partners.items()}
                    taken.add(later)
                    break
        return following

    def _interchangeable(self, row: Sequence[int], links: set[frozenset[int]]) -> bool:
        """Whether any two of the row may change places, links left aside: the definition, checked net by net."""
        whole = set(row)
        signs = set()
        for v in row:
            nets: list[tuple[Any, ...]] = []
            for h in self.on[v]:
                pins = set(self.joins.pins[h])
                if whole <= pins:
                    nets.append((0, (h,), ()))
                elif len(whole & pins) > 1:
                    return False
                elif frozenset(pins) in links:
                    nets.append((2 if pins & self.after[v] else 3, self.price[h], ()))
                else:
                    nets.append((1, self.price[h], tuple(sorted(pins - {v}))))
            weights = []
            for w in self.held[v]:
                readers = set(self.problem.weight_readers[w])
                if len(readers) > 1 and not whole <= readers:
                    return False
                if len(readers) > 1:
                    weights.append(w)
            before = tuple(sorted(u for u in self.before[v] if frozenset((u, v)) not in links))
            after = tuple(sorted(u for u in self.after[v] if frozenset((u, v)) not in links))
            signs.add((self.alone[v], before, after, tuple(sorted(nets)), tuple(weights)))
        return len(signs) == 1

    def sorted(self, paths: Sequence[Sequence[Sequence[int]]]) -> Problem:
        """The problem with the rows in order and turns for links; its numbers need not be topological."""
        problem, joins = self.problem, self.joins
        after = [set(found) for found in self.after]
        turned: set[int] = set()
        signs, costs, sides = [], [], []
        for path in paths:
            for row in path:
                for v, u in itertools.pairwise(row):
                    after[v].add(u)
            for row, later in itertools.pairwise(path):
                linking = [h for h in self.on[row[0]] if set(joins.pins[h]) == {row[0], later[0]}]
                for v, u in zip(row, later, strict=True):
                    turned.update(h for h in self.on[v] if set(joins.pins[h]) == {v, u})
                for h in linking:
                    sign = np.zeros(problem.size)
                    sign[list(row)], sign[list(later)] = 1.0, -1.0
                    signs.append(sign)
                    costs.append(joins.transfer[:, h])
                    sides.append(int(joins.side[h]))
        kept = [h for h in range(len(joins.pins)) if h not in turned]
        kinds = len(problem.kinds)
        turns = Turns(
            np.array(signs).reshape(len(signs), problem.size),
            np.array(costs).reshape(len(costs), kinds).T.copy(),
            np.array(sides, np.int64),
        )
        return replace(
            problem,
            **precedence(problem.names, kinds, after),
            joins=Joins(
                tuple(joins.pins[h] for h in kept),
                np.ascontiguousarray(joins.transfer[:, kept]),
                joins.side[kept],
                joins.seconds,
                turns,
            ),
        )


def _numbered(keys: Sequence[Hashable]) -> list[int]:
    """Equal keys get equal numbers, in order of first appearance."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]
