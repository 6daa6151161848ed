"""The plan of the most samples per second whose stages may each be on devices of unlike speed, which take turns: a fast one has
more turns than a slow one.

Cuts and devices are those that could share the samples in any parts, which is a bound too, in whole turns of rounds of a few
lengths; of the best the length of the round is then chosen anew, the least that is about as good: each turn has buffers of its
own between stages. Links are known for certain only where stages are on devices, so there are up to three plans to choose from:
the best on the ports of devices, the best where links between unlike devices cost what ``detours`` estimates, and one stage on
all devices, which sends nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
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
from passes.graph.sizes import assessed
from passes.graph.symbols import insert_symbols
from passes.partition.best import BELOW
from passes.partition.bridge.plan import with_stages
from passes.partition.decoding.from_module import Asked, asked_of
from passes.partition.decoding.planned import plan_stages
from passes.partition.decoding.problem import (
    Decoding,
    DecodingPlan,
    SharedStage,
    dealt,
    on_all_devices,
    on_one_device,
    shared,
)
from passes.partition.decoding.search import COARSE, MORE_GROUPS, DecodingSearch
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


@dataclass(frozen=True)
class Wanted:
    """What the pass ``partition`` is asked for. ``stages``: exactly so many, 0 for any; ``replicas``: most devices of a stage,
    0 for any number; ``seconds``: of counted work."""

    stages: int
    replicas: int
    seconds: float


class TurnsSearch(DecodingSearch):
    """The search for one problem; its ``value`` is seconds per sample."""

    def branch(self) -> None:
        """Looks for plans of rounds of a few lengths. The bound is that of parts of samples."""
        most = self.in_parts()
        self.infeasible = not most
        for found in (on_one_device(self.problem, 0), on_all_devices(self.problem, 0)):
            if found is not None:
                self.keep(found, found.value)
        for _, turns in self.tries(MORE_GROUPS):
            if self.left() > 0:
                self.try_one(0, turns)
        if self.best is not None and self.left() > 0:
            self.improve(self.tables(0, 0), self.best.groups, most)
        self.tell(1 / most if most else math.inf, "")
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
    asked = asked_of({1: module}, topology, net, (1, MOST_TURNS), stages=wanted.stages, replicas=wanted.replicas)
    ports, links = (replace(problem, loops=False) for problem in (asked.decoding, asked.on_links))
    search = TurnsSearch(ports, GAP, wanted.seconds)
    found = search.run()
    bound = 1 / found.bound if found is not None else math.inf if search.infeasible else 0.0
    beaten = context.incumbent.value if context.incumbent is not None else math.inf
    best: tuple[Module, Plan] | None = None
    if found is not None and bound < beaten:
        context.count(name, nodes=len(asked.units), interrupted=int(search.interrupted), seconds=now() - started, build=0.0)
        for plan in plans(found, ports, links, wanted.seconds):
            with suppress(Infeasible):
                placed = _placed(module, topology, asked, plan, bound, wanted, context)
                again = redealt(ports, plan, placed[1])
                if again.value < placed[1].value * (1 - SHORTER):
                    placed = _placed(module, topology, asked, again, bound, wanted, context)
                if best is None or placed[1].value < best[1].value:
                    best = placed
    if best is None:
        raise NoBetterPlan(bound, name)
    context.count(name, stages=len(best[1].stages), seconds=now() - started, **{f"{BOUND}{TURNS}": best[1].bound})
    return best[0]


def least(module: Module, topology: Topology) -> float:
    """Seconds per sample that no plan is below: all ops spread evenly over all devices."""
    from passes.stages.bounds import node_weights, prices
    from passes.stages.from_ir import problem_of

    problem = problem_of(module, topology, network(topology))
    return float(node_weights(problem, prices(problem)).sum()) * (1 - SLACK)


def plans(found: DecodingPlan, ports: Decoding, links: Decoding, seconds: float) -> Iterator[DecodingPlan]:
    """Plans to choose from on the real links; ``found``: the best of ``ports``."""
    yield turned(ports, found)
    if links.borders is not None and links.borders.detours is not None and len(found.stages) > 1:
        known = shared(links, found.stages, 0, found.groups)
        other = TurnsSearch(links, GAP, seconds).attempt(known)
        if other is not None and other.stages != found.stages:
            yield turned(links, other)
        if (alone := on_all_devices(replace(ports, groups=(1, MOST_ALONE)), 0, SHORTER)) is not None:
            yield alone


def turned(problem: Decoding, found: DecodingPlan) -> DecodingPlan:
    """The plan with the shortest round that is about as good as the best."""
    every = (shared(problem, found.stages, 0, turns) for turns in lengths(problem, found))
    return shortest([found, *(plan for plan in every if plan is not None)])


def redealt(problem: Decoding, found: DecodingPlan, placed: Plan) -> DecodingPlan:
    """The plan with the turns that suit what its devices take on the real links, as ``placed`` says; ``found`` itself, of
    infinite value, where all of a stage take as long, or one would have no turn."""
    every = [replace(found, value=math.inf)]
    for turns in lengths(problem, found) if any(row.steps for row in placed.stages) else ():
        stages, value = list[SharedStage](), 0.0
        for stage, row in zip(found.stages, placed.stages, strict=True):
            shares = dealt(row.steps or [1.0] * len(row.devices), [turns] * len(row.devices), turns) or [0]
            counts, left = [sum(share > 0 for share in own) for own in stage.shares], iter(shares)
            stages.append(replace(stage, devices=tuple(counts), shares=tuple(tuple(islice(left, n)) for n in counts)))
            busy = [share * step / turns for share, step in zip(shares, row.steps, strict=False)]
            value = max(value, *busy, 0.0 if busy else stage_seconds(row, "sum")) if all(shares) else math.inf
        every.append(replace(found, stages=tuple(stages), groups=turns, value=value))
    return shortest(every)


def shortest(plans: Sequence[DecodingPlan]) -> DecodingPlan:
    """The plan with the shortest round of those that are about as good as the best."""
    enough = min(plan.value for plan in plans) * (1 + SHORTER)
    return min((plan for plan in plans if plan.value <= enough), key=lambda plan: plan.groups)


def lengths(problem: Decoding, found: DecodingPlan) -> Sequence[int]:
    """The lengths of rounds to choose from: those in which the devices of each stage that has one type alone have equally many
    turns, if there are any."""
    alike = math.lcm(*(sum(stage.devices) for stage in found.stages if sum(count > 0 for count in stage.devices) == 1))
    most = MOST_ALONE if len(found.stages) == 1 else problem.groups[1]
    return range(alike, most + 1, alike) if alike <= most else range(1, most + 1)


def _placed(
    module: Module,
    topology: Topology,
    asked: Asked,
    found: DecodingPlan,
    bound: float,
    wanted: Wanted,
    context: PassContext,
) -> tuple[Module, Plan]:
    """The module with a plan on the real links. Raises Infeasible."""
    among = Among(wanted.stages, wanted.replicas, turns=True)
    certificate = {
        "bound": "stages whose devices share all samples in any parts: no choice of cuts and devices has more",
        "search": f"{len(asked.units)} units, cut where few values cross, on {len(asked.kinds)} kinds of devices",
        "problem": problem_digests(module, "sum", [among])[0],
        **({"stages": str(wanted.stages)} if wanted.stages else {}),
        **({"replicas": f"at most {wanted.replicas}"} if 1 < wanted.replicas < len(topology.devices) else {}),
    }
    taken = {symbol.name for symbol in module.symbols if not isinstance(symbol, Plan)}
    plan = Plan(
        name=unique("@plan", taken),
        objective=THROUGHPUT.name,
        comm="sum",
        value=found.value,
        port_value=math.inf,
        bound=min(bound, found.value),
        status=outcome(found.value, min(bound, found.value)),
        single=single_of(module, topology),
        stages=plan_stages(asked, found),
        certificate=tuple(sorted(certificate.items())),
    )
    members = [tuple(sorted(op for unit in asked.units[s.first : s.behind] for op in unit)) for s in found.stages]
    staged = with_stages(module, members).without(Plan, Schedule, Stage, Program)
    inside = replace(context, sink=DiagnosticSink())
    placed = PlacePass(time_limit=wanted.seconds).run(insert_symbols(staged, (plan,)), inside)
    made = placed.first(Plan)
    assert made is not None
    proven = assessed(made, module.entry, made.value, made.value) if bound >= made.value * (1 - BELOW) else made
    return placed.replace(made, proven), proven
