"""Local search over any assignment of nodes to devices: annealing with restarts, the same plan for the same seed.

No contiguity is asked (``any_split`` says what such a plan is). The search starts from the plans it is given, then from
random ones, and keeps the best that breaks no constraint. Its work is counted in proposals, so the result does not depend on
the machine unless the time runs out; time is looked at between restarts only. There is no bound: this is a baseline and
a warm start for the mixed-integer programme.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from passes.partition.dp import Stages
from passes.partition.problem import COMM, Ints, Problem, slots, violations

Assignment: TypeAlias = tuple[int, ...]
"""Device of each node; devices are numbered kind by kind, as ``kind_of`` lists them."""

PROPOSALS_PER_SECOND = 1_000_000
"""What a fast machine does: only there to shorten restarts when little time is left."""
TEMPERATURES = ((0.05, 5e-5), (0.02, 2e-4), (0.01, 2e-5))
"""First and last temperature relative to the value to beat, in turn: which schedule serves best differs by problem."""


def kind_of(problem: Problem) -> tuple[int, ...]:
    """Kind of each device."""
    return tuple(k for k, kind in enumerate(problem.kinds) for _ in range(kind.count))


@dataclass(frozen=True)
class Search:
    """How long: ``restarts`` of ``proposals`` each, ``seconds`` in all (looked at between restarts)."""

    restarts: int = 12
    proposals: int = 400_000
    seconds: float = 10.0
    seed: int = 1


def local_search(
    problem: Problem, starts: Sequence[Sequence[int]] = (), search: Search | None = None, *, enough: float = 0.0
) -> Assignment | None:
    """The best assignment found, None when none satisfied every constraint. Stops early at a value of ``enough``.

    ``starts``: assignments to begin from, feasible or not; the restarts after them alternate between random assignments and
    the best so far."""
    search = search or Search()
    began = time.perf_counter()
    runs = _Runs(problem)
    if runs.impossible:
        return None
    rng = random.Random(search.seed)
    best: Assignment | None = None
    value = float("inf")
    for number in range(max(search.restarts, len(starts))):
        left = search.seconds - (time.perf_counter() - began)
        if number and left <= 0:
            break
        if number < len(starts):
            start = np.array(starts[number], np.int64)
        elif best is not None and number % 2:
            start = np.array(best, np.int64)
        else:
            start = runs.random(rng)
        proposals = min(search.proposals, int(max(left, 0.05) * PROPOSALS_PER_SECOND))
        found, assignment = runs.anneal(start, proposals, value, number, rng.getrandbits(40))
        if found < value and runs.feasible(assignment):
            value, best = found, tuple(int(d) for d in assignment)
        if value <= enough:
            break
    return best


class _Runs:
    """The problem as the kernel's arrays."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
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
        held: list[list[int]] = [[] for _ in range(n)]
        for w, readers in enumerate(problem.weight_readers):
            for v in readers:
                held[v].append(w)
        forced = np.zeros(tensors, np.int64)
        forced[list(problem.forced)] = 1
        limits = np.array([np.inf if kind.memory is None else float(kind.memory) for kind in problem.kinds])
        self.scale = float(np.where(runnable, problem.seconds, np.inf).min(axis=0).sum()) if n and not self.impossible else 0.0
        self.scale = max(self.scale / max(1, problem.devices), float(problem.transfer.max(initial=0.0)), 1e-300)
        self.arrays = (
            self.kinds,
            limits,
            problem.seconds,
            np.array([len(pins_of(problem, h)) for h in range(tensors)], np.int64),
            problem.producer,
            problem.transfer,
            slots(problem.comm) * problem.tensor_bytes,
            forced,
            *_rows(touching),
            *_rows([list(row) for row in near]),
            problem.weight_bytes,
            *_rows(held),
            problem.live,
            COMM.index(problem.comm),
            problem.stages or 0,
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

    def anneal(self, start: Ints, proposals: int, value: float, number: int, seed: int) -> tuple[float, Ints]:
        from passes.partition.any_kernels import anneal

        start = np.array([d if d in c else c[0] for d, c in zip(start.tolist(), self.choices, strict=True)], np.int64)
        scale = value if np.isfinite(value) and value > 0 else self.scale
        hot, cold = TEMPERATURES[number % len(TEMPERATURES)]
        found, assignment = anneal(start, *self.arrays, scale, proposals, hot, cold, seed)
        return float(found), assignment

    def feasible(self, assignment: Ints) -> bool:
        """Whether the assignment breaks no constraint, from the definition."""
        return not violations(self.problem, stages_of(self.problem, assignment.tolist()), ordered=False)


def stages_of(problem: Problem, assignment: Sequence[int]) -> Stages:
    """The nodes of each device that holds any, with its kind; ordered by first node."""
    kinds = kind_of(problem)
    held: dict[int, list[int]] = {}
    for v, d in enumerate(assignment):
        held.setdefault(d, []).append(v)
    return tuple((kinds[d], tuple(nodes)) for d, nodes in held.items())


def assignment_of(problem: Problem, stages: Stages) -> Assignment:
    """The stages on the devices of their kinds, in order. Raises ValueError where a kind has too few devices."""
    free = [list(range(kind.count)) for kind in problem.kinds]
    first = np.cumsum([0, *(kind.count for kind in problem.kinds)])
    assignment = [-1] * problem.size
    for kind, nodes in stages:
        if not free[kind]:
            raise ValueError(f"more stages than devices of kind {problem.kinds[kind].type}")
        device = int(first[kind]) + free[kind].pop(0)
        for v in nodes:
            assignment[v] = device
    return tuple(assignment)


def pins_of(problem: Problem, h: int) -> tuple[int, ...]:
    """Maker and readers of a tensor, the maker first, each once."""
    maker = int(problem.producer[h])
    return (maker, *(v for v in problem.consumers[h] if v != maker))


def _rows(rows: Iterable[Sequence[int]]) -> tuple[Ints, Ints]:
    """Rows of different length as offsets and one array."""
    listed = list(rows)
    ptr = np.zeros(len(listed) + 1, np.int64)
    ptr[1:] = np.cumsum([len(row) for row in listed])
    return ptr, np.array([x for row in listed for x in row], np.int64)


__all__ = ["Assignment", "Search", "assignment_of", "kind_of", "local_search", "pins_of", "stages_of"]
