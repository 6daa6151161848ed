"""Plans that fit with all that they need: weights, and the activations that are alive at once.

The search limits what is a sum over nodes (``build``), which activations alive at once are not. So a plan that fits by that sum
is counted whole: by ``alive``, or for a training step, whose gradients are summed in ways of their own, by ``footprint``. Where
it is too large others are looked for: by a lower limit, by what is missing; and by problems in which the values that were alive
where most was count as memory of the ops that make and read them, all copies of a layer alike, which is right for plans that
treat copies alike. Then plans by name. No other plan is ruled out: what is found fits, and the bound of the search, which
counts less, is one of all plans that fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import cached_property

import numpy as np

from ir.core.module import Func, Module
from ir.core.types import Replicate, type_bytes
from passes.costs.memory.footprint import Footprint
from passes.meshes.costs.footprint import footprint
from passes.meshes.costs.price import price
from passes.meshes.layouts import fullest
from passes.meshes.staged import Staged
from passes.meshes.synced import synchronised
from passes.partition.layouts.decide import decisions_of, truthful
from passes.partition.layouts.mesh.alive import Alive
from passes.partition.layouts.mesh.named import plans_by_name
from passes.partition.layouts.problem.build import ShardInput
from passes.partition.layouts.problem.problem import Floats, ShardProblem
from passes.partition.layouts.solver.search import NoPlanError, ShardPlan, solve
from passes.solvers.work import now

MOST_TRIES = 5
"""Limits that are tried in each of the two ways."""


class Fitter:
    """Counts plans of one problem whole against a limit, in bytes of the smallest device; None: there is no limit.
    ``nearest``: what the plan needs that missed it least."""

    def __init__(
        self, module: Module, given: ShardInput, limit: float | None, *, training: bool, microbatches: int = 1
    ) -> None:
        self.module, self.given, self.limit = module, given, limit
        self.training, self.microbatches = training, microbatches
        self.resources = {name: resource.type for name, resource in module.resources.items()}
        self.nearest: Footprint | None = None
        self.last: Staged | None = None
        self.after: tuple[Staged, Staged] | None = None

    @property
    def func(self) -> Func:
        """The one that positions of ops in ``staged`` are of."""
        return self.given.func

    @cached_property
    def alive(self) -> Alive:
        """What counts plans of inference."""
        return Alive(self.module, self.given)

    def staged(self, choices: Sequence[int]) -> Staged:
        """A plan as the one stage that it is, with its bill. The last one is remembered."""
        given, func = self.given, self.given.func
        decisions = decisions_of(given, choices)
        if self.last is None or self.last.decisions != decisions:
            bill = price(
                self.module,
                func,
                given.mesh,
                decisions,
                training=self.training,
                microbatches=self.microbatches,
            )
            self.last = Staged(tuple(range(len(func.ops))), given.mesh, decisions, bill)
        return self.last

    def synchronised(self, choices: Sequence[int]) -> Staged:
        """The same with how its gradients are synchronised (``synced``), but for what a plan that is kept may still gain."""
        before = self.staged(choices)
        if self.after is None or self.after[0] is not before:
            self.after = before, before
            if self.training:
                self.after = before, synchronised(self.module, before, self.microbatches, flips=0)
        return self.after[1]

    @cached_property
    def named(self) -> list[ShardPlan]:
        """The plans by name that hold their weights."""
        return [*plans_by_name(self.module, self.given, memory=self.limit)]

    def improved(self, plan: ShardPlan, gap: float) -> ShardPlan:
        """``plan``, or the best plan by name where that is quicker: a search that did not reach the relative ``gap`` is no
        worse than what anybody would write."""
        if plan.gap <= gap:
            return plan
        best = min((plan, *self.named), key=lambda one: one.value)
        return plan if best is plan else replace(best.bounded(plan.bound, plan.reason), reason=plan.reason)

    def counted(self, plan: ShardPlan, bound: float) -> ShardPlan:
        """The plan with its seconds all told, and a bound of all plans."""
        if self.training:
            value = self.synchronised(plan.choices).bill.overlapped
        else:
            value = self.given.problem.cost(truthful(self.given, plan.choices))
        return replace(plan, value=value).bounded(bound, plan.reason or ("overlap" if self.given.overlap is not None else ""))

    def needs(self, choices: Sequence[int]) -> Footprint:
        """What a plan needs of the fullest device."""
        found = self.footprint(choices)
        if self.nearest is None or found.total < self.nearest.total:
            self.nearest = found
        return found

    def footprint(self, choices: Sequence[int]) -> Footprint:
        """The same, counted anew."""
        if self.training:
            return footprint(self.func, self.resources, self.synchronised(choices))
        return self.alive.needs(choices)

    def fits(self, choices: Sequence[int]) -> bool:
        return self.limit is None or self.needs(choices).total <= self.limit

    def fitting(self, plan: ShardPlan, gap: float, *, seconds: float) -> ShardPlan | None:
        """``plan`` where it fits, else the quickest of those found that do, until one is within the relative ``gap`` of the
        bound; None where there is none."""
        if self.limit is None or self.fits(plan.choices):
            return plan
        best: ShardPlan | None = None
        for other in self.others(plan, now() + seconds):
            if best is None or other.value < best.value:
                best = other.bounded(plan.bound, "workspace")
            if best.gap <= gap:
                break
        return best

    def others(self, plan: ShardPlan, ends: float) -> Iterator[ShardPlan]:
        """Plans that fit where ``plan`` does not, each way to look for them in turn."""
        yield from self.lowered(plan, ends)
        yield from (named for named in self.named if self.fits(named.choices))

    def lowered(self, plan: ShardPlan, ends: float) -> Iterator[ShardPlan]:
        """Those under lower limits, as the problem is, then where what was alive is memory too."""
        for leaning in (False, True):
            lower = self.lower(plan, leaning, ends)
            if lower is not None:
                yield lower

    def lower(self, plan: ShardPlan, leaning: bool, ends: float) -> ShardPlan | None:
        """The first plan that fits under ever lower limits: lower by what is missing or, where no plan is within that, by half
        as much."""
        assert self.limit is not None
        problem, asked, alive = self.given.problem, 1.0, set[str]()
        for left in range(MOST_TRIES, 0, -1):
            bytes_ = self.needs(plan.choices)
            if bytes_.total <= self.limit:
                return plan
            if now() > ends or plan.interrupted:
                break
            if leaning:
                alive |= bytes_.alive
                problem = self.leaning(alive)
            room = problem.memory(plan.choices) - asked * (bytes_.total - self.limit)
            try:
                other = solve(problem, memory=room, seconds=max(0.1, (ends - now()) / left))
            except NoPlanError:
                asked /= 2
                continue
            choices = other.choices
            plan = replace(other, value=self.given.problem.cost(choices), memory=self.given.problem.memory(choices))
        return None

    def leaning(self, alive: AbstractSet[str]) -> ShardProblem:
        """The problem in which ``alive`` values are memory too: half by the layouts in which they are made, half by those in
        which they are read; of arguments and weights that stand whole, the parts that are read. What stands for one node is
        spread over all nodes of its kind."""
        given, problem = self.given, self.given.problem
        often = Counter(problem.kinds)
        added: dict[int, Floats] = {}

        def add(node: int, bytes_: Floats) -> None:
            kind = problem.kinds[node]
            added[kind] = added.get(kind, 0.0) + bytes_ / often[kind]

        kept, whole = {*given.kept.values()}, (Replicate(),) * len(given.mesh.axes)
        stand = self.resources | {arg.name: arg.type for arg in given.func.args}
        stand = {name: stand[name] for name in stand.keys() & alive - kept}
        for node, op in enumerate(given.func.ops):
            free = given.strategies[problem.kinds[node]]
            for port, name in enumerate(op.operands):
                if name in stand and free and None not in free[0]:
                    asked = [tuple(s.operands[port] for s in each if s is not None) for each in free]
                    parts = [0.0 if lies == whole else fullest(stand[name], lies, given.mesh) for lies in asked]
                    add(node, (type_bytes(stand[name]) or 0) * np.array(parts))
        for value in problem.values:
            maker, result = value.maker
            if maker >= len(given.func.ops) or given.func.ops[maker].results[result].name not in alive:
                continue  # not made here, or not alive
            name, type_ = given.func.ops[maker].results[result].name, given.func.ops[maker].results[result].type
            layouts, needs = given.layouts[name].placements, problem.value_kinds[value.kind].needs
            sizes = (type_bytes(type_) or 0) / 2 * np.array([fullest(type_, lies, given.mesh) for lies in layouts])
            add(maker, sizes[problem.node(maker).makes[result] % len(layouts)])
            as_asked = np.array([sizes[keys[0]] if keys[0] < len(sizes) else 0.0 for keys in needs])
            for node, port in value.readers:
                add(node, as_asked[problem.node(node).reads[port]] / len(value.readers))
        kinds = tuple(
            replace(kind, memory=kind.memory + added[number]) if number in added else kind
            for number, kind in enumerate(problem.node_kinds)
        )
        return replace(problem, node_kinds=kinds)
