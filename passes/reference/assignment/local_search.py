"""Local search over any assignment of nodes to devices: annealing with restarts, the same plan each time.

No contiguity is asked (``assignment`` says what such a plan is). Each restart has a trial value a little below the best known
and anneals what the loads have above it (``anneal_kernels``); a plan within the trial lowers it, and the restart goes on.
Restarts begin from random plans and from the best so far, in turn. The work is counted in proposals, so the result does not
depend on the machine unless the time runs out; time, and whether to go on, are looked at between slices of a fraction of a
second. There is no bound: this is a baseline, and what the mixed-integer programme starts from.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from passes.costs.memory.footprint import slots
from passes.solvers.work import did, now
from passes.stages.arrays import Ints, csr
from passes.stages.lattice.dp import Stages
from passes.stages.load import COMM
from passes.stages.problem import Floats, Problem, plan_costs, violations

Assignment: TypeAlias = tuple[int, ...]
"""Device of each node; devices are numbered kind by kind, as ``kind_of`` lists them."""

SCHEDULES = ((0.003, 8e-5, 0.01), (0.05, 5e-5, 0.005), (0.01, 3e-5, 0.01))
"""First and last temperature, and how far below the best the trial value is, all relative to the best; in turn, since which
serves best differs by problem."""
SLICE = 400_000
"""Of work between two looks at all that is done: a proposal counts one and the mean degree of a node."""


def kind_of(problem: Problem) -> tuple[int, ...]:
    """Kind of each device."""
    return tuple(k for k, kind in enumerate(problem.kinds) for _ in range(kind.count))


@dataclass(frozen=True)
class Search:
    """How long: ``restarts`` of ``proposals`` each, ``seconds`` in all."""

    restarts: int = 12
    proposals: int = 400_000
    seconds: float = 10.0


def plain_search(problem: Problem, seconds: float) -> Search:
    """What the local search does when it is all there is: the published baseline has ten restarts as well. A restart of a
    small problem makes ten times as many proposals as there are assignments."""
    proposals = min(1_000_000, 2_000 * problem.size * problem.devices, 10 * problem.devices ** min(problem.size, 20))
    return Search(restarts=10, proposals=proposals, seconds=seconds)


@dataclass(frozen=True, eq=False)
class Sides:
    """Where the two passes of training count apart: ``seconds[2, kinds, n]`` of forward and backward, and the side of each
    tensor. The value of a plan is then the largest forward load + the largest backward load."""

    seconds: Floats
    side: Ints


def local_search(
    problem: Problem,
    search: Search | None = None,
    *,
    enough: float = 0.0,
    sides: Sides | None = None,
    keep_on: Callable[[Assignment | None], bool] = lambda best: True,
) -> Assignment | None:
    """The best assignment found, None when none satisfied every constraint. Stops early at a value of ``enough``, or when
    ``keep_on``, told the best so far after each slice, says so."""
    search = search or Search()
    runs = _Runs(problem, sides)
    if runs.impossible:
        return None
    ends = now() + search.seconds
    rng = random.Random(1)
    for number in range(search.restarts):
        state = np.array(runs.best, np.int64) if runs.best is not None and number % 2 else runs.random(rng)
        hot, cold, below = SCHEDULES[number % len(SCHEDULES)]
        left = search.proposals
        while left > 0:
            steps = min(runs.slice, left)
            done, then = 1 - left / search.proposals, 1 - (left - steps) / search.proposals
            heat = (hot * (cold / hot) ** done, hot * (cold / hot) ** then)
            left -= max(1, runs.anneal(state, steps, below, heat, rng.getrandbits(40)))
            if not keep_on(runs.best) or runs.value <= enough or now() >= ends:
                return runs.best
    return runs.best


class _Runs:
    """The problem as the kernel's arrays, and the best plan so far."""

    def __init__(self, problem: Problem, sides: Sides | None = None) -> None:
        from passes.reference.assignment.anneal_kernels import Instance

        self.problem = problem
        self.best: Assignment | None = None
        self.value = float("inf")
        n, tensors = problem.size, len(problem.consumers)
        self.kinds = np.array(kind_of(problem), np.int64)
        runnable = np.isfinite(problem.seconds)
        self.choices = [[d for d, k in enumerate(self.kinds) if runnable[k, v]] for v in range(n)]
        self.impossible = not all(self.choices)
        touching: list[list[int]] = [[] for _ in range(n)]
        near: list[dict[int, None]] = [{} for _ in range(n)]
        for h in range(tensors):
            members = pins_of(problem, h)
            for v in members:
                touching[v].append(h)
                # A node that everything reads would make a neighbourhood of everything: few neighbours of it will do.
                near[v].update(dict.fromkeys(u for u in members[:16] if u != v))
        forced = np.zeros(tensors, np.int64)
        forced[list(problem.forced)] = 1
        limits = np.array([np.inf if kind.memory is None else float(kind.memory) for kind in problem.kinds])
        self.seconds = problem.seconds[None] if sides is None else sides.seconds
        self.scale = float(np.where(runnable, problem.seconds, np.inf).min(axis=0).sum()) if n and not self.impossible else 0.0
        self.scale = max(self.scale / max(1, problem.devices), float(problem.transfer.max(initial=0.0)), 1e-300)
        self.shares = np.full(len(self.seconds), 1.0 / len(self.seconds))
        self.slice = max(100, int(SLICE / (2 + sum(map(len, touching)) / max(n, 1))))
        lists = [csr(rows) for rows in (touching, [list(row) for row in near], problem.touched[1])]
        pins = np.array([len(pins_of(problem, h)) for h in range(tensors)], np.int64)
        side = np.zeros(tensors, np.int64) if sides is None else sides.side
        self.instance = Instance(
            kind_of=self.kinds,
            limits=limits,
            seconds=self.seconds,
            tensors=np.column_stack([pins, problem.producer, side, slots(problem.comm) * problem.tensor_bytes, forced]),
            transfer=problem.transfer,
            rows=np.column_stack([pointers for pointers, _ in lists]),
            touching=lists[0][1],
            near=lists[1][1],
            weights=lists[2][1],
            weight_bytes=problem.weight_bytes,
            live=problem.live,
            comm=COMM.index(problem.comm),
            stages=problem.stages or 0,
        )

    def random(self, rng: random.Random) -> Ints:
        """An assignment of nodes, in runs of the problem's order, to devices that support them."""
        length = max(1, self.problem.size // (3 * len(self.kinds)))
        device, assigned = 0, []
        for v, choices in enumerate(self.choices):
            if v == 0 or rng.random() < 1 / length or device not in choices:
                device = rng.choice(choices)
            assigned.append(device)
        return np.array(assigned, np.int64)

    def anneal(self, state: Ints, steps: int, below: float, heat: tuple[float, float], seed: int) -> int:
        """One slice from ``state``, which it changes, with the trial value ``below`` the best; returns the proposals made."""
        from passes.reference.assignment.anneal_kernels import anneal

        scale = self.value if np.isfinite(self.value) and self.value > 0 else self.scale
        caps = scale * (1 - below) * self.shares
        made, value, found = anneal(self.instance, state, caps, scale, steps, *heat, seed)
        did("proposal", int(made) * SLICE / self.slice)
        if value < self.value and not violations(self.problem, stages_of(self.problem, found.tolist()), ordered=False):
            self.value, self.best = value, tuple(int(d) for d in found)
        return int(made)


def stages_of(problem: Problem, assignment: Sequence[int]) -> Stages:
    """The nodes of each device that holds any, with its kind; ordered by first node."""
    kinds = kind_of(problem)
    held: dict[int, list[int]] = {}
    for v, d in enumerate(assignment):
        held.setdefault(d, []).append(v)
    return tuple((kinds[d], tuple(nodes)) for d, nodes in held.items())


def sided_value(problem: Problem, stages: Stages, sides: Sides | None = None) -> float:
    """The largest load, or the sum over sides of the largest load of each, from the definition."""
    if sides is None:
        return max((cost.load for cost in plan_costs(problem, stages)), default=0.0)
    total = 0.0
    for s, seconds in enumerate(sides.seconds):
        transfer = np.where(sides.side == s, problem.transfer, 0.0)
        total += max(
            (cost.load for cost in plan_costs(replace(problem, seconds=seconds, transfer=transfer), stages)), default=0.0
        )
    return total


def pins_of(problem: Problem, h: int) -> tuple[int, ...]:
    """Maker and readers of a tensor, the maker first, each once."""
    maker = int(problem.producer[h])
    return (maker, *(v for v in problem.consumers[h] if v != maker))
