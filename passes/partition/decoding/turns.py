"""The plan of the most samples per second whose stages may each be on devices of unlike speed, which take turns: a fast one has
more turns than a slow one.

1. The bound: devices of a stage share the samples in any parts, not in whole turns.
2. Cuts and devices: the best plan in whole turns, of rounds of a few lengths (``TurnsSearch``).
3. The round of that plan: the shortest that is about as good (``turned``), since between stages each turn has buffers of its
   own.
4. The real links, which are known once stages are on devices (``Placing``). The best of up to three plans is taken: that on the
   ports of devices, one for which links between unlike devices cost what ``detours`` estimates, and one stage on all devices,
   which sends nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

from ir.core.diagnostics import DiagnosticSink, Infeasible
from ir.core.module import Module, Plan, Program, Schedule, Stage
from ir.core.names import unique
from ir.core.objectives import THROUGHPUT
from ir.core.outcomes import SLACK, outcome
from ir.core.topology import Topology
from ir.text.witness import TURNS
from passes.costs.network import network
from passes.framework.base import NoBetterPlan, PassContext
from passes.framework.registry import BOUND
from passes.graph.digest import Among, problem_digests
from passes.graph.serving import MOST_ROUND
from passes.graph.sizes import assessed
from passes.graph.symbols import insert_symbols
from passes.partition.best import BELOW
from passes.partition.bridge.plan import with_stages
from passes.partition.decoding.from_module import Asked, asked_of
from passes.partition.decoding.planned import Wanted, plan_stages
from passes.partition.decoding.problem import (
    Decoding,
    DecodingPlan,
    SharedStage,
    dealt,
    on_all_devices,
    on_one_device,
    shared,
)
from passes.partition.decoding.search import COARSE, FEW_STATES, MORE_GROUPS, TRIED, DecodingSearch
from passes.partition.place import PlacePass
from passes.solvers.work import now
from passes.stages.load import stage_seconds
from passes.stages.placement_from_ir import on_one_device as single_of

GAP = 1e-3
"""Relative: how much better a plan is at least that is looked for."""
EXACT = 1e-9
"""Relative: how far the bound may be from what it is of."""
SHORTER = 5e-3
"""Relative: how much slower a plan of a shorter round may be."""
MOST_TURNS = 64
"""Of a round of several stages, whose edges have buffers for each turn."""
MOST_ALONE = 256
"""Of a round of one stage."""


class TurnsSearch(DecodingSearch):
    """The search for one problem; its ``value`` is seconds per sample."""

    def branch(self) -> None:
        """Looks for plans of rounds of a few lengths. The bound is that of parts of samples."""
        most = self.in_parts()
        self.infeasible = not most and self.all_devices and not self.limited
        self.tell(1 / most if most else math.inf, "")
        for found in (on_one_device(self.problem, 0), on_all_devices(self.problem, 0)):
            if found is not None:
                self.keep(found, found.value)
        if self.limited and len(self.vectors) > FEW_STATES:
            self.in_larger_bundles(self.limits.seconds * TRIED)
        for _, turns in self.tries(MORE_GROUPS):
            if self.left() > 0:
                self.try_one(0, turns)
        if self.best is not None and self.left() > 0:
            self.improve(self.tables(0, 0), self.best.groups, most)
        if self.best is not None:
            self.of_others = self.of_any_stages()

    def in_parts(self) -> float:
        """The highest rate, but for ``EXACT``, of devices that share all samples in any parts; 0 where none fits."""
        tables = self.tables(0, 0)
        most = self.highest(tables, *self.problem.groups)
        least = most / (1 + COARSE)
        while most > least * (1 + EXACT):
            middle = math.sqrt(least * most)
            least, most = (middle, most) if self.reaches(tables, 1, 1 / middle, exact=False) else (least, middle)
        return most


def planned_in_turns(module: Module, topology: Topology, wanted: Wanted, context: PassContext, name: str) -> Module:
    """The module with its plan, on devices; its statistics are those of the pass ``name``. Raises NoBetterPlan where none fits
    or is better than the incumbent of ``context``."""
    started, net = now(), context.analyses.get(network, topology)
    shape = {"stages": wanted.stages, "replicas": wanted.replicas}
    asked = asked_of({1: module}, topology, net, (1, MOST_TURNS), stream=True, **shape)
    ports, links = asked.decoding, asked.on_links
    search = TurnsSearch(ports, GAP, wanted.seconds)
    found = search.run()
    bound = 1 / found.bound if found is not None else least(module, topology)
    if search.infeasible or found is None or (context.incumbent is not None and bound >= context.incumbent.value):
        raise NoBetterPlan(math.inf if search.infeasible else bound, name)
    context.count(name, nodes=len(asked.units), build=0.0)
    placing = Placing(module, topology, asked, ports, bound, wanted, context)
    placing.interrupted = search.interrupted
    placing.consider(found)
    if placing.differ and len(found.stages) > 1 and not placing.interrupted:
        other = TurnsSearch(links, GAP, wanted.seconds)
        plan = other.attempt(shared(links, found.stages, 0, found.groups))
        placing.interrupted |= other.interrupted
        if plan is not None and plan.stages != found.stages:
            placing.consider(plan)
        if (alone := on_all_devices(replace(ports, groups=(1, MOST_ALONE)), 0, SHORTER)) is not None:
            placing.consider(alone)
    if placing.best is None:
        raise NoBetterPlan(bound, name)
    placed, made = placing.best
    told = assessed(made, module.entry, made.value, made.value) if bound >= made.value * (1 - BELOW) else made
    counted = {"stages": len(told.stages), "seconds": now() - started, f"{BOUND}{TURNS}": told.bound}
    context.count(name, interrupted=int(placing.interrupted), **counted)
    return placed.replace(made, told)


def least(module: Module, topology: Topology) -> float:
    """Seconds per sample that no plan is below: all ops spread evenly over all devices."""
    from passes.stages.bounds import evenly_spread
    from passes.stages.from_ir import problem_of

    return evenly_spread(problem_of(module, topology, network(topology))) * (1 - SLACK)


def turned(problem: Decoding, found: DecodingPlan, most: int) -> DecodingPlan:
    """The plan with the shortest round, of at most so many turns, that is about as good as the best of these."""
    if not any(unlike(stage) for stage in found.stages):
        return replace(found, groups=1)  # alike devices have one turn each
    rounds = lengths(found, most)
    every = [found] if found.groups in rounds else []
    every += [plan for turns in rounds if (plan := shared(problem, found.stages, 0, turns)) is not None]
    return shortest(every or [found])


def unlike(stage: SharedStage) -> bool:
    """Whether a stage has devices of several types."""
    return sum(count > 0 for count in stage.devices) > 1


def lengths(found: DecodingPlan, most: int) -> list[int]:
    """The lengths of rounds, of at most so many turns, that meet again soon enough with those of stages of alike devices."""
    alike = math.lcm(*(sum(stage.devices) for stage in found.stages if not unlike(stage)))
    return [turns for turns in range(1, most + 1) if math.lcm(turns, alike) <= MOST_ROUND]


def shortest(plans: Sequence[DecodingPlan]) -> DecodingPlan:
    """The plan with the shortest round of those that are about as good as the best."""
    enough = min(plan.value for plan in plans) * (1 + SHORTER)
    return min((plan for plan in plans if plan.value <= enough), key=lambda plan: plan.groups)


def redealt(found: DecodingPlan, placed: Plan, turns: int) -> DecodingPlan | None:
    """The plan with so many turns of each stage of unlike devices, dealt by what these take on the real links, as ``placed``
    says; None where they take as long in each stage, or one would have no turn."""
    if not any(row.steps for row in placed.stages):
        return None
    stages, value = list[SharedStage](), 0.0
    for stage, row in zip(found.stages, placed.stages, strict=True):
        if not row.steps:
            stages.append(stage)
            value = max(value, stage_seconds(row, "sum"))
            continue
        shares = dealt(row.steps, [turns] * len(row.steps), turns)
        if shares is None or not all(shares):
            return None
        counts, left = [sum(share > 0 for share in own) for own in stage.shares], iter(shares)
        stages.append(replace(stage, devices=tuple(counts), shares=tuple(tuple(islice(left, count)) for count in counts)))
        value = max(value, *(share * step / turns for share, step in zip(shares, row.steps, strict=True)))
    return replace(found, stages=tuple(stages), groups=turns, value=value)


@dataclass
class Placing:
    """Plans of ``ports`` on the real links, of which ``best`` is the best so far, as module and plan. No plan is below
    ``bound`` seconds. ``interrupted``: from the keyboard."""

    module: Module
    topology: Topology
    asked: Asked
    ports: Decoding
    bound: float
    wanted: Wanted
    context: PassContext
    best: tuple[Module, Plan] | None = None
    interrupted: bool = False

    @property
    def differ(self) -> bool:
        """Whether links between unlike devices cost more than their ports."""
        borders = self.asked.on_links.borders
        return borders is not None and borders.detours is not None

    def consider(self, found: DecodingPlan) -> None:
        """Keeps a plan if it is the best on the real links, with turns by ports or by these links. Each turn has buffers of its
        own on a device: where they do not fit, rounds are shorter."""
        most = MOST_ALONE if len(found.stages) == 1 else MOST_TURNS
        while most and not (self.interrupted and self.best is not None):
            plan = turned(self.ports, found, most)
            if plan.groups not in lengths(plan, most):
                return
            if (placed := self.place(plan)) is not None:
                dealt = [redealt(plan, placed, turns) for turns in lengths(plan, most)]
                every = [one for one in dealt if one is not None]
                if every and shortest(every).value < placed.value * (1 - SHORTER):
                    self.place(shortest(every))
                return
            most = min(most, plan.groups) // 2

    def place(self, found: DecodingPlan) -> Plan | None:
        """The plan on devices; None where it does not fit. It is kept if it is the best."""
        inside = replace(self.context, sink=DiagnosticSink(), statistics={**self.context.statistics})
        with suppress(Infeasible):
            module = PlacePass(time_limit=self.wanted.seconds).run(self.with_plan(found), inside)
            plan = module.first(Plan)
            assert plan is not None
            if self.best is None or plan.value < self.best[1].value:
                self.best = module, plan
            self.interrupted |= bool(inside.statistics[PlacePass.name]["interrupted"])
            return plan
        return None

    @cached_property
    def single(self) -> float:
        return single_of(self.module, self.topology)

    @cached_property
    def certificate(self) -> tuple[tuple[str, str], ...]:
        stages, replicas = self.wanted.stages, self.wanted.replicas
        certificate = {
            "bound": "stages whose devices share all samples in any parts: no choice of cuts and devices has more",
            "search": f"{len(self.asked.units)} units, cut where few values cross, on {len(self.asked.kinds)} kinds of devices",
            "problem": problem_digests(self.module, "sum", [Among(stages, replicas, turns=True)])[0],
            **({"stages": str(stages)} if stages else {}),
            **({"replicas": f"at most {replicas}"} if 1 < replicas < len(self.topology.devices) else {}),
        }
        return tuple(sorted(certificate.items()))

    def with_plan(self, found: DecodingPlan) -> Module:
        """The module with a plan, not placed yet."""
        taken = {symbol.name for symbol in self.module.symbols if not isinstance(symbol, Plan)}
        plan = Plan(
            name=unique("@plan", taken),
            objective=THROUGHPUT.name,
            comm="sum",
            value=found.value,
            port_value=math.inf,
            bound=min(self.bound, found.value),
            status=outcome(found.value, min(self.bound, found.value)),
            single=self.single,
            stages=plan_stages(self.asked, found),
            certificate=self.certificate,
        )
        members = [tuple(sorted(op for unit in self.asked.units[s.first : s.behind] for op in unit)) for s in found.stages]
        return insert_symbols(with_stages(self.module, members).without(Plan, Schedule, Stage, Program), (plan,))
