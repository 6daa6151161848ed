"""The module of a decoder's step with the plan of most tokens per second, or of the least seconds per token of one group.

The batch is that of the module, the groups are the sets of its states. The plan is the best of those that ``search`` looks
through; where there are none, because nothing fits between its places to cut, ``partition`` asks the search over the lattice,
which cuts anywhere, or whose error says what is missing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ir.core.module import Module, Plan, PlanStage, Program, Schedule, Stage
from ir.core.names import unique
from ir.core.objectives import objective_of
from ir.core.outcomes import outcome
from ir.core.topology import Topology
from ir.text.witness import DEVICES, REPLICAS
from passes.costs.network import network
from passes.framework.base import PassContext
from passes.framework.registry import BOUND
from passes.graph.digest import Among, problem_digests
from passes.graph.serving import batch_of, groups_of
from passes.graph.symbols import insert_symbols
from passes.partition.bridge.plan import with_stages
from passes.partition.decoding.from_module import Asked, asked_of
from passes.partition.decoding.problem import DecodingPlan, on_one_device, shared
from passes.partition.decoding.search import best_on_links, fastest_plan
from passes.solvers.work import now

GAP = 1e-3
"""Relative: how far the bound may be from the value of a plan."""


@dataclass(frozen=True)
class Wanted:
    """What the pass ``partition`` is asked for. ``stages``: exactly so many, 0 for any; ``replicas``: most devices of a stage,
    0 for any number; ``seconds``: of counted work."""

    objective: str
    stages: int
    replicas: int
    seconds: float


def planned(module: Module, topology: Topology, wanted: Wanted, context: PassContext, name: str) -> Module | None:
    """The module with its plan, whose statistics are those of the pass ``name``; None where the search has none. Raises as
    ``batch_of``."""
    started, batch = now(), batch_of(module, wanted.objective)
    groups = groups_of(module)
    net = context.analyses.get(network, topology)
    asked = asked_of({batch: module}, topology, net, (groups, groups), stages=wanted.stages, replicas=wanted.replicas)
    alone = objective_of(wanted.objective).alone
    if alone:
        found = fastest_plan(replace(asked.decoding, groups=(1, 1)))
        interrupted = False
    else:
        found, search = best_on_links(asked.decoding, asked.on_links, GAP, wanted.seconds)
        interrupted = search.interrupted
    if found is None:
        return None
    tokens = 1 if alone else batch
    on_ports = shared(asked.decoding, found.stages, 0, found.groups) or found
    value, bound = on_ports.value / tokens, batch / tokens / found.bound
    certificate = {
        "bound": "stages shared by whole groups: no choice of batch, groups and stages that was left out has more tokens",
        "search": f"{len(asked.units)} units, cut where few values cross, on {len(asked.kinds)} kinds of devices",
    }
    if alone:
        certificate["bound"] = "the shortest way through units and devices"
    if wanted.stages:
        certificate["stages"] = str(wanted.stages)
    elif wanted.replicas == 0:
        certificate["problem"] = problem_digests(module, f"sum {wanted.objective}", [Among(replicas=0)])[0]
    if 1 < wanted.replicas < len(topology.devices):
        certificate["replicas"] = f"at most {wanted.replicas}"
    taken = {symbol.name for symbol in module.symbols if not isinstance(symbol, Plan)}
    plan = Plan(
        name=unique("@plan", taken),
        objective=wanted.objective,
        comm="sum",
        value=value,
        port_value=value,
        bound=min(bound, value),
        status=outcome(value, min(bound, value)),
        single=single_of(asked, groups, alone=alone),
        stages=plan_stages(asked, found),
        certificate=tuple(sorted(certificate.items())),
        tokens=tokens,
    )
    form = DEVICES if wanted.replicas == 1 else REPLICAS
    context.count(
        name,
        nodes=len(asked.units),
        stages=len(plan.stages),
        interrupted=int(interrupted),
        seconds=now() - started,
        build=0.0,
        **{f"{BOUND}{form}": plan.bound},
    )
    members = [tuple(sorted(op for unit in asked.units[s.first : s.behind] for op in unit)) for s in found.stages]
    placed = with_stages(module, members)
    return insert_symbols(placed.without(Plan, Schedule, Stage, Program), (plan,))


def single_of(asked: Asked, groups: int, *, alone: bool) -> float:
    """The value of the best plan of one device; inf where no device holds all."""
    found = on_one_device(replace(asked.decoding, stages=0, groups=(groups, groups)), 0)
    return math.inf if found is None else found.value / (1 if alone else found.batch)


def plan_stages(asked: Asked, found: DecodingPlan) -> tuple[PlanStage, ...]:
    """The stages of a plan. Devices are named where those of a stage differ, or others of their type do; ``place`` chooses them
    elsewhere."""
    left = [list(kind.devices) for kind in asked.kinds]
    alike = {kind.type for kind in asked.kinds if sum(kind.type == other.type for other in asked.kinds) == 1}
    stages = []
    for index, stage in enumerate(found.stages):
        serving = [(kind, share) for kind, shares in enumerate(stage.shares) for share in shares if share]
        devices = tuple(left[kind].pop(0) for kind, _ in serving)
        types = {asked.kinds[kind].type for kind, _ in serving}
        free = len(types) == 1 and types <= alike
        shares = [share for _, share in serving]
        stages.append(
            PlanStage(
                index=index,
                device_type=asked.kinds[serving[0][0]].type if len(types) == 1 else "",
                devices=() if free else devices,
                ops=sum(len(unit) for unit in asked.units[stage.first : stage.behind]),
                replicas=len(devices),
                serves=serves_of(shares) if len(devices) > 1 else (),
            )
        )
    return tuple(stages)


def serves_of(shares: Sequence[int]) -> tuple[int, ...]:
    """The replica of each group, ``shares[replica]`` groups each, those of one replica as far apart as can be. Empty where
    replicas take equally many, in turn."""
    done, found = [0] * len(shares), list[int]()
    for _ in range(sum(shares)):
        replica = min(range(len(shares)), key=lambda r: ((done[r] + 1) / shares[r] if done[r] < shares[r] else math.inf, r))
        done[replica] += 1
        found.append(replica)
    in_turn = [group % len(shares) for group in range(len(found))]
    return () if found == in_turn and len(set(shares)) == 1 else tuple(found)
