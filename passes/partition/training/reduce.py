"""Exact reductions of a training problem: units that some optimal plan keeps with a neighbour.

Let z be the only unit that v directly precedes (or the only one that directly precedes v). Move v into z's stage Z, from its
own stage A: nested ideals stay nested. On any kind write p for seconds and c for transfer seconds of one side.

- Z gains p(v) and at worst parts every tensor of v that does not join z; it no longer parts tensors that join v and z alone.
- A at worst parts, in place of what joins v and z alone, the tensors of v that do not join z. What joins v, z and others was
  parted by both and is at worst still.
- No other stage sees a difference.

So no load grows when p(v) + sum c(v's tensors not joining z) <= sum c(tensors joining v and z alone), on every kind and for
each side of the load (of the objective ``sum``: for both sides together). Kinds that run z must run v, and v must take no bytes
where memory is limited. A stage that becomes empty is dropped. The rules of ``passes/model/stages/reduce.py`` are the case of
tensors with a direction.
"""

from __future__ import annotations

import heapq
import math

import numpy as np

from passes.model.stages.reduce import Groups
from passes.partition.training.problem import TrainingProblem, topological


def reduce_training(problem: TrainingProblem, objective: str) -> tuple[TrainingProblem, Groups]:
    """Applies the rule until it applies nowhere; the smaller problem, and the units of each of its units."""
    limited = any(kind.memory is not None for kind in problem.kinds)
    movable = np.flatnonzero(problem.size == 0).tolist() if limited else list(range(problem.count))
    if movable:
        reducer = _Reducer(problem, objective)
        if reducer.joins(movable):
            return reducer.quotient()
    return problem, tuple((v,) for v in range(problem.count))


class _Reducer:
    def __init__(self, problem: TrainingProblem, objective: str) -> None:
        n = problem.count
        self.problem = problem
        both = objective == "sum"
        sides = problem.seconds.sum(axis=0, keepdims=True) if both else problem.seconds
        kinds = len(problem.kinds)
        # Flat over sides and kinds: plain numbers, since most sums have a handful of terms.
        self.seconds: list[list[float]] = np.moveaxis(sides, 2, 0).reshape(n, len(sides) * kinds).tolist()
        self.runs = [[not math.isinf(x) for x in row] for row in self.seconds]
        cost = np.zeros((len(problem.pins), len(sides), kinds))
        cost[np.arange(len(problem.pins)), 0 if both else problem.side] = problem.transfer.T
        self.cost: list[list[float]] = cost.reshape(len(problem.pins), len(sides) * kinds).tolist()
        self.after = [set(targets) for targets in problem.following]
        self.before: list[set[int]] = [set() for _ in range(n)]
        for v, targets in enumerate(problem.following):
            for w in targets:
                self.before[w].add(v)
        self.pins = [set(pins) for pins in problem.pins]
        self.tensors: list[set[int]] = [set() for _ in range(n)]
        for h, pins in enumerate(problem.pins):
            for v in pins:
                self.tensors[v].add(h)
        self.limited = any(kind.memory is not None for kind in problem.kinds)
        self.size = [int(b) for b in problem.size]
        self.members: list[list[int]] = [[v] for v in range(n)]

    def joins(self, queue: list[int]) -> bool:
        """Applies the rule to the units of ``queue``, ascending, and to those around what was joined; whether any was."""
        any_joined = False
        while queue:
            v = heapq.heappop(queue)
            target = self._target(v) if self.members[v] else -1
            if target >= 0:
                any_joined = True
                for changed in sorted(self._join(v, target)):
                    heapq.heappush(queue, changed)
        return any_joined

    def _target(self, v: int) -> int:
        for near in (self.after[v], self.before[v]):
            if len(near) == 1 and self._fits(v, z := next(iter(near))):
                return z
        return -1

    def _fits(self, v: int, z: int) -> bool:
        if self.limited and self.size[v]:
            return False
        kinds = len(self.problem.kinds)
        runs = [all(self.runs[v][k::kinds]) for k in range(kinds)]
        if any(all(self.runs[z][k::kinds]) and not runs[k] for k in range(kinds)):
            return False
        gained = [h for h in self.tensors[v] if z not in self.pins[h]]
        lost = [h for h in self.tensors[v] if len(self.pins[h]) == 2 and z in self.pins[h]]
        return all(
            seconds + sum(self.cost[h][c] for h in gained) - sum(self.cost[h][c] for h in lost) <= 0
            for c, seconds in enumerate(self.seconds[v])
            if runs[c % kinds]
        )

    def _join(self, v: int, z: int) -> set[int]:
        """Makes v part of z; returns the units whose neighbourhood changed."""
        self.members[z] += self.members[v]
        self.members[v] = []
        self.seconds[z] = [a + b for a, b in zip(self.seconds[z], self.seconds[v], strict=True)]
        self.runs[z] = [a and b for a, b in zip(self.runs[z], self.runs[v], strict=True)]
        self.size[z] += self.size[v]
        for u in self.before[v]:
            self.after[u] = (self.after[u] - {v}) | {z}
        for w in self.after[v]:
            self.before[w] = (self.before[w] - {v}) | {z}
        self.before[z] = (self.before[z] | self.before[v]) - {v, z}
        self.after[z] = (self.after[z] | self.after[v]) - {v, z}
        changed = {z} | self.before[z] | self.after[z]
        for h in sorted(self.tensors[v]):
            self.pins[h] = (self.pins[h] - {v}) | {z}
            self.tensors[z].add(h)
            if len(self.pins[h]) == 1:
                self.tensors[z].discard(h)
            changed |= self.pins[h]
        return changed

    def quotient(self) -> tuple[TrainingProblem, Groups]:
        problem = self.problem
        kept = [v for v in range(problem.count) if self.members[v]]
        index = {v: i for i, v in enumerate(kept)}
        order = [kept[i] for i in topological([{index[w] for w in self.after[v]} for v in kept])]
        place = {v: i for i, v in enumerate(order)}
        groups = tuple(tuple(sorted(self.members[v])) for v in order)
        tensors = [h for h, pins in enumerate(self.pins) if len(pins) > 1]
        reduced = TrainingProblem(
            names=tuple(problem.names[v] for v in order),
            kinds=problem.kinds,
            seconds=np.stack([problem.seconds[:, :, list(nodes)].sum(axis=2) for nodes in groups], axis=2)
            if groups
            else problem.seconds,
            size=np.array([self.size[v] for v in order], np.int64),
            following=tuple(tuple(sorted(place[w] for w in self.after[v])) for v in order),
            pins=tuple(tuple(sorted(place[v] for v in self.pins[h])) for h in tensors),
            side=problem.side[tensors],
            transfer=np.ascontiguousarray(problem.transfer[:, tensors]),
        )
        return reduced, groups


__all__ = ["reduce_training"]
