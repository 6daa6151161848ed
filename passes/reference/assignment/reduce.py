"""Exact reductions when any assignment is allowed: what may be joined or left out without losing the best plan.

``below`` is the value of a known plan; only plans at or below it matter, up to a relative ``TIGHT``. Write p for compute and
t for transfer seconds on the kind at hand.

*Tensors too dear to cut.* If a pin v of a tensor has p(v) + t > below on every kind that runs it, the tensor is cut in no
plan that matters, so all its pins are one node.

*Dominance.* Node v joins z when moving v from any device D to that of z, D', never raises either load. D' gains p(v) and at
worst the tensors of v that z has no part in; it is relieved of those between v and z alone, which were cut. D loses p(v)
and, likewise, at worst pays for the tensors of v without z, and is relieved of those between v and z alone. So with A the
sum of t over tensors of v without z and B over those whose pins are v and z alone, it is enough that p(v) + A <= B on each
kind that may hold z (all of which must run v) and A - p(v) <= B on each kind that may hold v. Where transfers hide behind
compute, saved transfers do not pay for compute: p(v) = 0 is asked. With both directions apart, they are compared apart
(``_directions``); bytes received, where a memory limit can bind, likewise. A node of a demanded cut is left alone, and
nothing is joined when the number of stages is prescribed, since a device may end up empty. No rule asks for an order: the
joined nodes may lie on a cycle of the quotient, which plans of this kind may cut anyway.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from ir.core.outcomes import TIGHT
from passes.graph.graph import DisjointSets
from passes.stages.problem import Floats, Problem
from passes.stages.reduce import Groups, memory_can_bind, weighted


def reduce_any(problem: Problem, below: float = float("inf")) -> Groups:
    """Groups of nodes, ascending, by first member: some best plan among those at or below ``below`` keeps each together."""
    if problem.stages is not None:
        return tuple((v,) for v in range(problem.size))
    return _Reducer(problem, below * (1 + TIGHT)).run()


class _Reducer:
    def __init__(self, problem: Problem, cap: float) -> None:
        n = problem.size
        self.problem, self.cap = problem, cap
        self.seconds = [problem.seconds[:, v].copy() for v in range(n)]
        self.transfer = [problem.transfer[:, h].copy() for h in range(len(problem.consumers))]
        self.bytes = [int(b) for b in problem.tensor_bytes]
        self.maker = [int(u) for u in problem.producer]
        self.readers = [set(readers) for readers in problem.consumers]
        self.touching: list[set[int]] = [set() for _ in range(n)]
        for h, readers in enumerate(problem.consumers):
            if set(readers) - {self.maker[h]}:
                for v in (self.maker[h], *readers):
                    self.touching[v].add(h)
        self.fixed = [False] * n
        for h in problem.forced:
            for v in (self.maker[h], *self.readers[h]):
                self.fixed[v] = True
        self.live = [int(b) for b in problem.live]
        self.weighted = weighted(problem)
        self.binding = memory_can_bind(problem)
        self.sets = DisjointSets(n)

    def run(self) -> Groups:
        queue = deque(range(self.problem.size))
        waiting = set(queue)
        while queue:
            v = queue.popleft()
            waiting.discard(v)
            if self.sets.root(v) != v:
                continue
            changed = self._uncut(v) or self._dominated(v)
            for u in sorted(changed):
                if u not in waiting:
                    waiting.add(u)
                    queue.append(u)
        return self.sets.listed()

    def _pins(self, h: int) -> set[int]:
        return {self.maker[h], *self.readers[h]}

    def _uncut(self, v: int) -> set[int]:
        """Joins the pins of the first tensor of ``v`` that ``v`` cannot pay for; the nodes whose neighbourhood changed."""
        runs = np.isfinite(self.seconds[v])
        for h in sorted(self.touching[v]):
            paid = self.transfer[h] + (self.seconds[v] if self.problem.comm == "sum" else 0.0)
            others = sorted(self._pins(h) - {v})
            if (paid[runs] > self.cap).all() and not self.fixed[v] and not any(self.fixed[u] for u in others):
                changed: set[int] = set()
                for u in others:
                    changed |= self._join(u, v)
                return changed
        return set()

    def _dominated(self, v: int) -> set[int]:
        """Joins ``v`` to the first neighbour that dominates it; the nodes whose neighbourhood changed."""
        if self.fixed[v]:
            return set()
        alone = {next(iter(pins - {v})) for h in self.touching[v] if len(pins := self._pins(h)) == 2}
        for z in sorted(alone):
            if not self.fixed[z] and self._dominates(z, v):
                return self._join(v, z)
        return set()

    def _dominates(self, z: int, v: int) -> bool:
        compute = self.seconds[v]
        runs, hosts = np.isfinite(compute), np.isfinite(self.seconds[z])
        if (hosts & ~runs).any():
            return False
        comm = self.problem.comm
        if comm != "sum" and (compute[hosts] > 0).any():
            return False
        if comm == "duplex":
            if not all((g[runs] <= r[runs]).all() for g, r in self._directions(v, z, self.transfer)):
                return False
        else:
            zero = np.zeros_like(compute)
            gained = sum((self.transfer[h] for h in sorted(self.touching[v]) if z not in self._pins(h)), zero)
            relieved = sum((self.transfer[h] for h in sorted(self.touching[v]) if self._pins(h) == {v, z}), zero)
            saved = compute[runs] if comm == "sum" else 0.0
            if ((compute + gained)[hosts] > relieved[hosts]).any() or ((gained[runs] - saved) > relieved[runs]).any():
                return False
        if self.binding:
            if self.weighted[v] or self.live[v] > self.live[z]:
                return False
            sizes = [np.array([float(size)]) for size in self.bytes]
            return all((g <= r).all() for g, r in self._directions(v, z, sizes))
        return True

    def _directions(self, v: int, z: int, amount: list[Floats]) -> tuple[tuple[Floats, Floats], ...]:
        """Two pairs (gained at worst, relieved for certain). First, D' receives and D sends: v's operands that z neither makes
        nor reads, against what v makes and z reads. Second, D' sends and D receives: what v makes and others than z
        read, against what z makes and v alone reads."""
        zero = np.zeros_like(amount[0])
        gained, relieved, back, freed = zero.copy(), zero.copy(), zero.copy(), zero.copy()
        for h in sorted(self.touching[v]):
            if self.maker[h] == v:
                if z in self.readers[h]:
                    relieved = relieved + amount[h]
                if self.readers[h] - {v, z}:
                    back = back + amount[h]
            elif z not in self._pins(h):
                gained = gained + amount[h]
            elif self.maker[h] == z and self.readers[h] <= {v, z}:
                freed = freed + amount[h]
        return (gained, relieved), (back, freed)

    def _join(self, v: int, target: int) -> set[int]:
        """Makes v part of ``target``; returns the nodes whose neighbourhood changed."""
        self.sets.join(v, target)
        self.seconds[target] = self.seconds[target] + self.seconds[v]
        self.live[target] = max(self.live[target], self.live[v])
        self.weighted[target] = self.weighted[target] or self.weighted[v]
        for h in self.touching[v]:
            if v in self.readers[h]:
                self.readers[h].discard(v)
                self.readers[h].add(target)
            if self.maker[h] == v:
                self.maker[h] = target
        self.touching[target] |= self.touching[v]
        changed = {target}
        for h in sorted(self.touching[target]):
            pins = self._pins(h)
            if len(pins) == 1:
                self.touching[target].discard(h)
            changed |= pins
        return changed
