"""Assign: replay a plan that a person or a script edited, in the place of ``partition``.

Reads nothing but the entry function and the topology; writes what ``partition`` writes: ``StageSet`` on every entry op, and a
``Plan`` whose stages hold the devices asked for (``place`` keeps those and computes seconds and memory; it also is what finds a
device too small). Its bound holds for every plan of this model on this topology, whoever made it: the one that the plan states,
where that was proven for the same problem (``passes/graph/digest.py``) or these stages (``passes/plan/proof.py``), else one
that takes no search.

A faulty plan raises InvalidInput with every fault found: an op that is unknown, ambiguous, listed twice in one stage or not at
all; a device that is unknown or used twice; replicas that are not alike; a value that would travel to an earlier stage.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import ClassVar

from ir.core.diagnostics import Diagnostic, InvalidInput
from ir.core.facets import StageSet
from ir.core.module import Module, Plan, PlanStage, Program, Schedule, Stage
from ir.core.objectives import THROUGHPUT, Planned
from ir.core.outcomes import SLACK
from ir.core.topology import Topology
from passes.costs.learning import step_text
from passes.costs.memory.liveness import states_bytes
from passes.costs.network import Network, network
from passes.framework.base import PassContext, needed
from passes.framework.expanded import on_expanded
from passes.graph.digest import Among, of_objective, problem_digests
from passes.graph.faults import NotAChoice
from passes.graph.graph import stage_members
from passes.graph.positional import POSITION, positional
from passes.graph.serving import MOST_ROUND, groups_of, tokens_of
from passes.graph.symbols import insert_symbols
from passes.meshes.undecided import undecided
from passes.partition.replay.faults import (
    DeviceTwice,
    NoTurns,
    ReplicasOfTypes,
    StageWithoutOp,
    TurnsOfSharedDevices,
    TurnsRarelyMeet,
    WrongServing,
)
from passes.partition.replay.stated import StatedPass
from passes.plan.proof import proof_of
from passes.stages.load import COMM
from passes.stages.placement_from_ir import on_one_device


@dataclass(frozen=True)
class AssignPass(StatedPass):
    """Give every op the stage, and every stage the device, that a plan states.

    ``ops``, ``devices``, ``objective``, ``bound``, ``source``, ``made_for``: as of ``StatedPass``; a stage without a device is
    placed by ``place``. ``proof``, ``problem``: how the stated bound was reached, and the digest of the problem that it was
    proven for (empty: for none); ``certificate``: ``KEY=TEXT``, what else is said of that bound. ``microbatches``: of a
    training step of a model; of a profile, which trains as a stream, 0. ``flush``: whether the pipeline is empty behind each
    step. ``serves``: ``STAGE:REPLICA,..``, the replica of a stage that has each turn, or of a decoder the one that serves each
    group.
    """

    name: ClassVar[str] = "assign"
    comm: str = "sum"
    proof: str = ""
    problem: str = ""
    certificate: tuple[str, ...] = ()
    microbatches: int = 0
    flush: bool = True
    serves: tuple[str, ...] = ()

    @on_expanded
    def run(self, module: Module, context: PassContext) -> Module:
        """Raises InvalidInput for a plan that does not fit the model or the topology."""
        topology = needed(module, Topology)
        if self.comm not in COMM:
            raise InvalidInput(NotAChoice("comm", self.comm, f"one of {', '.join(COMM)}"), where=self.source)
        module = undecided(module)
        entry = module.entry
        planned = Planned.PROFILE if states_bytes(entry) else Planned.OPS
        self._check_objective(planned)
        steps = max(1, self.microbatches) if self.training and planned is Planned.OPS else 0
        problems: list[Diagnostic] = []
        stages = self._stages(entry, problems)
        net = context.analyses.get(network, topology)
        unlike = POSITION in dict(entry.attributes) or (self.objective == THROUGHPUT.name and not module.states)
        devices = self._devices(topology, problems, unlike=unlike)
        count = 1 + max((index for of_op in stages.values() for index in of_op), default=0)
        problems += [StageWithoutOp(index).at(self._where(index)) for index in sorted(devices) if index >= count]
        if problems:
            raise InvalidInput(problems)
        assigned = replace(entry, ops=tuple(op.with_facets(StageSet(stages[op.id])) for op in entry.ops))
        stage_members(assigned)
        placed = module.replace(entry, assigned)
        replicated = any(len(names) > 1 for names in devices.values())
        alone = len({name for names in devices.values() for name in names}) == sum(map(len, devices.values()))
        if steps:
            bound, reason = step_bound(placed, topology, net, steps, alone and self.flush and not replicated)
        else:
            bound, reason = plan_bound(placed, topology, net, self.comm)
        certificate = {"bound": reason, "plan": "given, not searched for"}
        computed = {entry.ops[i].id for i in positional(module)}  # in each stage that needs them
        once = all(len(indices) == 1 for name, indices in stages.items() if name not in computed)
        tokens = tokens_of(module, self.objective)
        bound, single = bound / tokens, on_one_device(module, topology, steps) / tokens
        serving = self._serving(module, topology, devices)
        plan = Plan(
            name="@plan",
            objective=self.objective,
            comm=self.comm,
            value=math.inf,
            port_value=math.inf,
            bound=bound,
            status="within-gap",
            single=single,
            stages=tuple(
                PlanStage(
                    index=index,
                    device_type=_type_of(topology, devices.get(index, [])),
                    devices=tuple(devices.get(index, ())),
                    replicas=max(1, len(devices.get(index, ()))),
                    ops=sum(index in of_op for of_op in stages.values()),
                    serves=serving.get(index, ()),
                )
                for index in range(count)
            ),
            microbatches=steps if self.training else 1,
            flush=self.flush,
            tokens=tokens,
        )
        # What was proven is of plans with one stage per device and one stage per op, all or some of them; or of these stages.
        comm = self.comm + (step_text(module, steps) if steps else of_objective(self.objective))
        among = _among(placed, plan, len(topology.devices)) if alone and once and self.problem else []
        known = problem_digests(module, comm, among)
        if self.problem in known or (self.problem and self.problem == proof_of(placed, replace(plan, bound=self.bound))):
            certificate |= dict(text.split("=", 1) for text in self.certificate)
            certificate |= {"problem": self.problem, "bound": self.proof}
            plan = replace(plan, bound=self.bound)
        plan = replace(plan, certificate=tuple(sorted(certificate.items())))
        context.count(self.name, ops=len(stages), stages=count)
        return insert_symbols(placed.without(Plan, Schedule, Stage, Program), (plan,))

    def _serving(self, module: Module, topology: Topology, devices: Mapping[int, Sequence[str]]) -> dict[int, tuple[int, ...]]:
        """Of each stage that says it, or whose replicas are unlike, the replica that has each turn, or serves each group.

        Raises InvalidInput where these are others than the replicas and groups that there are, or where a stage that says it
        shares its devices with others."""
        groups, found = groups_of(module), dict[int, tuple[int, ...]]()
        for index, names in devices.items():
            if len({topology.device(name).type for name in names}) > 1:
                found[index] = tuple(turn % len(names) for turn in range(groups or len(names)))
        for text in self.serves:
            index, listed = self._split(text)
            found[index] = serves = tuple(int(replica) for replica in listed.split(",") if replica.isdecimal())
            on = devices.get(index, [])
            if len(serves) != (groups or len(serves)) or set(serves) != set(range(len(on))):
                what = f"{groups} groups" if groups else "its turns"
                raise InvalidInput(WrongServing(what, listed, len(on)), where=self._where(index))
            if not groups and self.objective != THROUGHPUT.name:
                raise InvalidInput(NoTurns(self.objective), where=self._where(index))
            if len(on) == 1 and not groups:
                del found[index]
        rounds = math.lcm(*(len(found.get(index) or on) for index, on in devices.items())) if found and not groups else 1
        if rounds > MOST_ROUND:
            raise InvalidInput(TurnsRarelyMeet(rounds, MOST_ROUND), where=self._where(min(found)))
        pairs = combinations(sorted(devices), 2) if found and not groups else ()
        if both := next((pair for pair in pairs if set(devices[pair[0]]) & set(devices[pair[1]])), None):
            raise InvalidInput(TurnsOfSharedDevices(*both), where=self._where(min(found)))
        return found

    def _devices(self, topology: Topology, problems: list[Diagnostic], *, unlike: bool = False) -> dict[int, list[str]]:
        known = [device.name for device in topology.devices]
        found: dict[int, list[str]] = {}
        for text in self.devices:
            index, name = self._split(text)
            if name not in known:
                problems.append(self._unknown_device(index, name, topology))
            else:
                found.setdefault(index, []).append(name)
        for index, names in found.items():
            others = [other for other, on in found.items() if other != index and set(on) & set(names)]
            if len(set(names)) < len(names) or any(found[other] != names for other in others):
                what = f"already runs stage {others[0]}" if others else "is listed twice"
                rule = "stages share all their devices or none: choose other devices"
                problems.append(DeviceTwice(names[0], what, rule).at(self._where(index)))
        for index, names in found.items() if not unlike else ():
            if len(types := sorted({topology.device(name).type for name in names})) > 1:
                problems.append(ReplicasOfTypes(tuple(types)).at(self._where(index)))
        return found


def _among(module: Module, plan: Plan, devices: int) -> list[Among]:
    """Of which plans a bound is that holds for this one, on ``devices`` at most: of its number of stages or of any, of as many
    replicas or more. Where its replicas have unlike turns: of plans with turns, and with cuts between units alone."""
    from passes.partition.decoding.from_module import in_units

    turns: tuple[bool, ...] = (False, True)
    if any(stage.serves for stage in plan.stages) and not plan.minimises.decodes:
        turns = (True,) if in_units(module) else ()
    most = max(stage.replicas for stage in plan.stages)
    at_most = (*range(most, devices + 1), 0)
    return [Among(of, *rest) for of in (len(plan.stages), 0) for rest in product(at_most, turns)]


def _type_of(topology: Topology, names: Sequence[str]) -> str:
    """The type of all these devices; empty where there is none, or several."""
    types = {topology.device(name).type for name in names}
    return types.pop() if len(types) == 1 else ""


def step_bound(module: Module, topology: Topology, net: Network, microbatches: int, alone: bool) -> tuple[float, str]:
    """A bound that no training step of the module's entry function on the topology beats, and how it was reached. ``alone``: of
    plans in which every stage has one device of its own; else of all, which may fill in less time."""
    import numpy as np

    from passes.costs.learning import learning_seconds, update_seconds
    from passes.stages.bounds import StepWork, fastest, least_step, node_weights, prices
    from passes.stages.from_ir import problem_of
    from passes.stages.placement_from_ir import updates
    from passes.stages.problem import Floats

    problem = problem_of(module, topology, net)
    types = [topology.type(kind.type) for kind in problem.kinds]
    moved = [update.moved for update in updates(module, [[i] for i in range(problem.size)])]
    once = np.array([[update_seconds(size, type_) / microbatches for size in moved] for type_ in types])
    both = np.array([[one.both for one in learning_seconds(module, type_)] for type_ in types])
    count, price = len(topology.devices), prices(replace(problem, seconds=both + once))
    rate = np.cumsum(fastest(problem, price))

    def work(replicas: int) -> Floats:
        """Seconds times prices of all nodes, where each stage has so many replicas."""
        weights = node_weights(replace(problem, seconds=both + replicas * once), price)
        return np.array([float(weights.sum()) * (1 - SLACK)])

    if alone:
        every = {replicas: work(replicas) for replicas in range(1, min(count, microbatches) + 1)}
        bound = least_step(StepWork(every, rate[None], np.zeros(1)), microbatches, 0.0, range(1, count + 1), 1)
        return bound, "load balance: both passes and updates spread evenly over as many devices as fill quickest"
    period = float(work(1)[0] / rate[-1])
    return microbatches * period, "load balance: both passes and updates spread evenly over all devices"


def plan_bound(module: Module, topology: Topology, net: Network, comm: str) -> tuple[float, str]:
    """A bound that no plan of the module's entry function on the topology beats, and how the bound was reached. Quick: no
    search. An op may be shared by replicas or by the members of a mesh."""
    from passes.stages.bounds import evenly_spread
    from passes.stages.from_ir import problem_of

    bound = evenly_spread(problem_of(module, topology, net, comm=comm))
    return bound, "load balance: all compute spread evenly over all devices"
