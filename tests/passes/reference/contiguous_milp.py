"""Contiguous stages as a mixed-integer programme: an oracle of the dynamic programme that shares nothing with its walk over
ideals.

The slots are pairs of a kind and a position in the pipeline, of which q[s] says that it is taken: at most one kind a position,
no more positions of a kind than it has devices, none left out, and the maker of a tensor at most at the position of its readers
(sums over the positions up to each). That is the dynamic programme's set of plans, nested ideals, and not only convex stages,
which can depend on each other in a circle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from passes.reference.assignment.local_search import Sides
from passes.reference.assignment.milp import MilpResult, Model
from passes.stages.problem import Problem


def solve_contiguous(
    problem: Problem, sides: Sides | None = None, precedence: Sequence[tuple[int, int]] | None = None
) -> MilpResult:
    """The best plan in contiguous stages. ``precedence``: pairs of nodes of which the first must not lie after the second,
    where the tensors do not say so."""
    edges = [(int(u), v) for u, readers in zip(problem.producer, problem.consumers, strict=True) for v in readers]
    model = _Pipeline(problem, sides=sides)
    model.positions(edges if precedence is None else precedence)
    return model.solve()


class _Pipeline(Model):
    def places(self) -> list[tuple[int, int]]:
        return [(k, s) for s in range(self.problem.devices) for k in range(len(self.problem.kinds))]

    def in_order(self, held: Mapping[int, Sequence[int]]) -> Iterable[int]:
        return sorted(held)

    def _number(self) -> None:
        """Positions tell devices apart."""

    def positions(self, precedence: Sequence[tuple[int, int]]) -> None:
        """The rows of the module."""
        problem, rows = self.problem, self.rows
        at: list[list[int]] = [[] for _ in range(problem.devices)]
        for s, (_, position) in enumerate(self.slots):
            at[position].append(s)
        for k, kind in enumerate(problem.kinds):
            rows.row([(self.taken[s], 1.0) for s, (other, _) in enumerate(self.slots) if other == k], upper=kind.count)
        for position, here in enumerate(at):
            rows.row([(self.taken[s], 1.0) for s in here], upper=1.0)
            if position:
                before = [(self.taken[s], 1.0) for s in at[position - 1]]
                rows.row([*((self.taken[s], -1.0) for s in here), *before], lower=0.0)
        for u, v in sorted(set(precedence)):
            for position in range(problem.devices - 1):
                upto = [s for place in at[: position + 1] for s in place]
                rows.row([*((self.x[u][s], 1.0) for s in upto), *((self.x[v][s], -1.0) for s in upto)], lower=0.0)
