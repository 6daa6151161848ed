"""The search for plans on meshes over the devices of the topology: a strategy for each op, a layout for each value.

Reads the entry function, costs, resources and the topology. Writes meshes, the stage and strategies of each op, layouts,
reshards, and a ``plan`` with its value and a bound of all plans, in seconds of a run (of a training step with ``training``).
``passes.plan.written`` says how all this stands in the module, ``layouts.problem.build`` what is counted.

With the option ``stages`` other than 1 the function is cut into stages, each on devices of its own (``chain.stages``).

Without ``mesh``, every shape of one or two axes over all devices is searched and the cheapest kept; without ``shares``, on
devices of different types, equal shares and a few in proportion to their speeds (``layouts.mesh.speeds``) as well, and sets of
some of the devices (``layouts.mesh.candidates``). A mesh of a stated shape that needs fewer devices than there are is searched
on the sets of these that do best by an estimate. ``bound`` is then the least of all that was searched and of all these sets. A
training step on one mesh is searched twice or more, since sums of gradients may travel beside its last backward pass
(``OVERLAPS`` of ``layouts.problem.build``): each problem gives a plan, whose seconds ``price`` counts, and a bound.

Invariant: what a problem says a plan costs has been counted a second time, by ``price``."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ir.core.diagnostics import Infeasible, UsageError
from ir.core.module import Module, Plan
from ir.core.objectives import objective_of
from ir.core.outcomes import AGREE, TIGHT
from ir.core.topology import Device, Topology
from passes.costs.learning import avoids_sums, samples_of
from passes.costs.memory.footprint import overfull
from passes.costs.network import Network, network
from passes.costs.op_time import op_seconds
from passes.framework.base import NoBetterPlan, PassContext, needed
from passes.graph.faults import NotAChoice, NotInRange, NotSplit
from passes.graph.folding import folding
from passes.graph.serving import groups_of, tokens_of
from passes.graph.sizes import assessed
from passes.meshes.costs.bill import UNSUMMED, Bill
from passes.meshes.mesh import DeviceMesh, read_shape, shapes_on
from passes.meshes.notation import EQUAL, Along, lowest, read_shares, shares_text
from passes.meshes.undecided import undecided
from passes.partition.chain.bounding import Bounding
from passes.partition.chain.stages import StageSearch, StagesPlan, stages_by_name
from passes.partition.chain.submeshes import SharesOf, Submeshes, submeshes
from passes.partition.chain.units import MOST_CUTS
from passes.partition.layouts.faults import (
    CannotRun,
    MicrobatchesMisfit,
    NoPlanFits,
    NoPlanOfStages,
    SharesOfOneMesh,
    TooFewDevices,
)
from passes.partition.layouts.mesh.candidates import Candidate, Candidates, candidates, some_devices
from passes.partition.layouts.mesh.named import DATA, STRATEGIES, UnfitError
from passes.partition.layouts.mesh.one_mesh import MeshSearch, OnOneMesh, unfit
from passes.partition.layouts.mesh.speeds import Speeds, dealt_evenly
from passes.partition.layouts.problem.build import ShardInput, overlaps_on
from passes.partition.layouts.solver.search import ENOUGH_PROVEN, ShardPlan
from passes.partition.options import MeshOptions, worth_finding
from passes.plan.proof import proven_again
from passes.plan.written import written
from passes.solvers.anytime import Limits
from passes.solvers.work import sufficient_gap
from passes.stages.placement_from_ir import on_one_device

SECONDS, OF_TRIPS = 60.0, 10.0
"""Of counted work, of a search that is given no limit, and of one where the time through all stages counts."""
MOST_UNLIKE = 8
"""Devices up to which all meshes of several types are searched for stages of a decoder."""
FEW_CUTS = 100
"""Cuts of a decoder, at most: tables of runs have their square as entries. llama-7b for one user on eight h100 took 13 s with
130 cuts, for 5.07 ms within 6.9 %, and 3.3 s with 65, for 5.10 ms within 0.9 %."""
FIRST = 1e-3
"""Of counted work, of a search that is asked for the first plan."""
INTERRUPTED = "interrupted: the best plan so far"
REASONS = {
    "": "the search was exact",
    "width": "elimination in parts, what is paid once shared among its readers",
    "memory": "a price for memory (Lagrangian)",
    "strategy": "the search, for plans of any kind",
    "overlap": "the search, for sums of gradients of which the backward pass hides all, or that hide all of it",
    "workspace": "the search, for plans whose weights fit, whatever their activations",
}
"""How a bound was reached, by ``ShardPlan.reason``."""


@dataclass(frozen=True)
class MeshesSearch(MeshOptions):
    """The search for stages on meshes, beside which may be single devices and replicas; or for one mesh as a whole.

    Options as of ``partition``. ``stages``: how many, each on a mesh over devices of one host or whole hosts; 0: as many as are
    best; 1: one mesh. ``microbatches``: runs of the function that make a training step, whose gradients are added up and
    synchronised once. ``replicas``: in inference in stages, beside stages on meshes of any shape. ``whole``: plans in stages
    may be one stage on a mesh of all devices."""

    name: ClassVar[str] = "partition"
    whole: bool = True

    def most_replicas(self, topology: Topology) -> int:
        """Replicas of a stage beside stages on meshes, at most. Where the time of a sample through all stages counts, which
        replicas do not shorten, plans with meshes have none."""
        one = self.training or self.strategy or objective_of(self.objective).trips
        return 1 if one else self.replicas or len(topology.devices)

    def of_one_kind(self, topology: Topology) -> bool:
        """Whether meshes of stages are of one type of device alone. Of many unlike devices there are hundreds of meshes of
        several types; in a step of few tokens the slow members and links of these take longer than what they save."""
        unlike = len({device.type for device in topology.devices}) > 1 and len(topology.devices) > MOST_UNLIKE
        return unlike and objective_of(self.objective).trips and not self.shape

    def tries_fewer(self, topology: Topology) -> bool:
        """Whether one mesh may have a part of devices that are all of one type."""
        one_type = len({device.type for device in topology.devices}) == 1
        return one_type and objective_of(self.objective).trips and not (self.shape or self.strategy or self.shares)

    def limits(self, context: PassContext, tokens: int = 1) -> Limits:
        """When a search ends. ``tokens``: what its seconds are divided by for the objective."""
        longest = OF_TRIPS if objective_of(self.objective).trips else SECONDS
        seconds = longest if self.time_limit is None else self.time_limit or FIRST
        gap = ENOUGH_PROVEN if self.gap is None else self.gap
        return Limits(seconds=seconds, beaten=worth_finding(context) * tokens, gap=gap)

    def run(self, module: Module, context: PassContext) -> Module:
        """The expanded module with a plan. Raises InvalidInput for a mesh that the topology does not have, Infeasible where no
        plan that fits is found, NoBetterPlan where none is better than the incumbent."""
        topology = needed(module, Topology)
        module = undecided(module)
        tokens = tokens_of(module, self.objective)
        limits = self.limits(context, tokens)
        if not limits.seconds > 0:
            raise UsageError(NotInRange("time-limit", limits.seconds, "seconds above 0"), where=self.name)
        if not 0 <= limits.gap < math.inf:
            raise UsageError(NotInRange("gap", limits.gap, "a relative distance of 0 or more"), where=self.name)
        if self.device_memory < -1:
            raise UsageError(NotInRange("memory", self.device_memory, "bytes, 0 or -1"), where=self.name)
        if self.strategy not in ("", *STRATEGIES):
            raise UsageError(NotAChoice("strategy", self.strategy, f"one of {', '.join(STRATEGIES)}"), where=self.name)
        if self.microbatches < 0 or (self.microbatches and not self.training):
            expected = "expected those of a training step" if not self.training else "expected 1 or more, or 0 for the default"
            raise UsageError(MicrobatchesMisfit(self.microbatches, expected), where=self.name)
        must_run(module, topology)
        if self.stages != 1:
            return self.in_stages(module, topology, context)
        among = self.meshes(module, topology, context.analyses.get(network, topology))
        search = MeshSearch(module, topology, among, self, limits, context)
        with per_token(tokens):
            result = search.run()
        fitter, plan = result.fitter, result.plan
        if plan.value == math.inf:  # some of the mesh's devices can run an op, others cannot
            must_run(module, topology, every=True)
        given, stage = fitter.given, fitter.staged(plan.choices)
        bill = stage.bill
        modelled, counted = given.problem.cost(plan.choices), bill.relaxed(given.overlap, self.step_microbatches)
        if not math.isclose(modelled, counted, rel_tol=AGREE, abs_tol=1e-15):
            raise AssertionError(f"the search counts {modelled} s of a plan, its second count {counted} s")
        if given.unsharded:
            context.sink.warn(NotSplit(tuple(given.unsharded)), where=self.name)
        _count(context, given, plan, bill)
        context.count(self.name, candidates=len(among.searched) if among.bound == math.inf else 0, price=plan.price)
        microbatches = self.step_microbatches
        value, bound = microbatches * result.value / tokens, microbatches * result.bound / tokens
        certificate = _certificate(result, among, self)
        record = self.record(module, topology, value, bound, certificate, context)
        return written(module, [stage], record, memory=self.device_memory)

    def record(
        self,
        module: Module,
        topology: Topology,
        value: float,
        bound: float,
        certificate: Mapping[str, str],
        context: PassContext,
    ) -> Plan:
        """The plan symbol, without its stages. ``value``, ``bound``: in seconds as the objective counts them. Of an incumbent,
        a plan of another kind, the bound counts as well."""
        if context.incumbent is not None:
            bound = min(bound, context.incumbent.bound)
        microbatches, tokens = self.step_microbatches, tokens_of(module, self.objective)
        steps = microbatches if self.training else 0
        return Plan(
            name="@plan",
            objective=self.objective,
            comm="sum",
            value=value,
            port_value=value,
            bound=bound,
            status="within-gap",
            single=on_one_device(module, topology, steps, self.device_memory) / tokens,
            stages=(),
            certificate=tuple(sorted(certificate.items())),
            microbatches=microbatches,
            tokens=tokens,
        )

    def meshes(self, module: Module, topology: Topology, net: Network) -> Candidates:
        """The meshes to search: of a stated shape of fewer devices than there are those on the best sets; stated shares are of
        the devices in the order of the topology."""
        count = len(topology.devices)
        sizes = (read_shape(self.shape, count),) if self.shape else shapes_on(topology, topology.devices)

        def over(shape: tuple[int, ...], along: Along = ()) -> Candidate:
            return Candidate(topology.devices[: math.prod(shape)], shape, along)

        options: dict[str, Any] = {
            "training": self.training,
            "microbatches": self.step_microbatches,
        }

        if self.shares not in ("", EQUAL):
            read = read_shares(self.shares, sizes[0] if self.shape else ())
            return Candidates((over(read_shape("x".join(str(len(axis)) for axis in read), count), lowest(read)),))
        samples = samples_of(module.entry)
        if self.shape and math.prod(sizes[0]) < count:
            evenly = dealt_evenly(samples, sizes[0]) if self.training and self.strategy == DATA else None
            return some_devices(module, topology, net, sizes[0], **options, shares=() if self.shares else evenly)
        one_type = len({device.type for device in topology.devices}) == 1
        one_host = len({device.host for device in topology.devices}) == 1 or not self.training
        divides = not self.training or samples % count == 0
        if self.shares or (one_type and divides and (one_host or self.shape)):
            return self.fewer(module, topology) if self.tries_fewer(topology) else Candidates(tuple(map(over, sizes)))
        if self.shape:
            speeds = Speeds(module, topology, training=self.training)
            found = Candidates(tuple(over(sizes[0], along) for along in speeds.candidates(sizes[0])))
        else:
            found = candidates(module, topology, net, **options, every=bool(self.strategy))
        if not self.training or self.strategy != DATA:
            return found
        dealt = [(shape, shares) for shape in sizes if (shares := dealt_evenly(samples, shape))]
        known = {(one.sizes, one.shares) for one in found.searched}
        missing = [over(*one) for one in dealt if one not in known]
        return replace(found, searched=(*missing, *found.searched))

    def fewer(self, module: Module, topology: Topology) -> Candidates:
        """Meshes of all devices, of the first half of them, and so on. The largest come first: each device needs least memory
        there, and a smaller mesh whose compute alone takes longer than a plan on a large one need not be searched."""
        found, speeds = list[Candidate](), Speeds(module, topology)
        for devices in (topology.devices[:count] for count in halves(len(topology.devices))):
            least = speeds.least(devices) * (1 - TIGHT)
            found += [Candidate(devices, shape, least=least) for shape in shapes_on(topology, devices)]
        return Candidates(tuple(found))

    def in_stages(self, module: Module, topology: Topology, context: PassContext) -> Module:
        """The function in stages."""
        count = len(topology.devices)
        if self.stages < 0:
            raise UsageError(NotInRange("stages", self.stages, "0 or more"), where=self.name)
        if self.shares not in ("", EQUAL):
            stages = str(self.stages) if self.stages else "0 (as many as are best)"
            raise UsageError(SharesOfOneMesh(stages), where=self.name)
        sizes = read_shape(self.shape, count) if self.shape else ()
        if math.prod(sizes) * self.stages > count:
            fault = TooFewDevices(self.stages, self.shape, math.prod(sizes) * self.stages, count)
            raise Infeasible(fault, where=self.name)
        tokens = tokens_of(module, self.objective)
        plan, bound, reason = self.search_stages(module, topology, context)
        bound /= tokens
        if plan is not None:
            record = self.record(module, topology, plan.value / tokens, bound, _certificate_in_stages(plan, self), context)
            result = written(module, plan.stages, record, memory=self.device_memory)
            excess, _, reason = overfull(result, topology, self.device_memory)
            if excess <= 0:
                return result
        if not self.stages and self.whole and not self.strategy and worth_finding(context) == math.inf:
            return self.on_one_mesh(module, context, bound)
        if context.incumbent is not None:
            raise NoBetterPlan(bound, self.name)
        stages = str(self.stages) if self.stages else "any number of"
        error = Infeasible(NoPlanFits(reason) if reason else NoPlanOfStages(stages), where=topology.name)
        error.proven, error.bound = bound == math.inf, bound
        raise error

    def on_one_mesh(self, module: Module, context: PassContext, bound: float) -> Module:
        """The function on one mesh, whose search looks longer for a plan that fits; ``bound``: of plans in stages. Raises
        Infeasible."""
        try:
            result = replace(self, stages=1, microbatches=self.step_microbatches if self.training else 0).run(module, context)
        except Infeasible as error:
            error.proven, error.bound = error.proven and bound == math.inf, min(bound, error.bound)
            raise
        plan = result.first(Plan)
        assert plan is not None
        least = min(bound, plan.bound)
        return proven_again(result.replace(plan, assessed(plan, result.entry, plan.value, min(least, plan.value), AGREE)))

    def shares_of(self, module: Module, topology: Topology) -> SharesOf:
        """The shares to search of a mesh of a stage: equal ones, and where its devices differ in type a few by their speeds."""
        if self.shares == EQUAL or self.strategy or len({device.type for device in topology.devices}) == 1:
            return lambda shape, devices: ((),)
        speeds = Speeds(module, topology, training=self.training)

        def shares(shape: tuple[int, ...], devices: Sequence[Device]) -> tuple[Along, ...]:
            unequal = len({device.type for device in devices}) > 1
            return speeds.candidates(shape, devices=devices) if unequal else ((),)

        return shares

    def search_stages(self, module: Module, topology: Topology, context: PassContext) -> tuple[StagesPlan | None, float, str]:
        """The best plan in stages, None where nothing fits or is better than the incumbent; and a bound of all of them."""
        net = context.analyses.get(network, topology)
        sizes = read_shape(self.shape, len(topology.devices)) if self.shape else ()
        meshes = submeshes(
            topology,
            net,
            sizes,
            whole=self.whole,
            stages=self.stages,
            replicas=self.most_replicas(topology),
            groups=groups_of(module),
            one_kind=self.of_one_kind(topology),
            training=self.training,
            shares=self.shares_of(module, topology),
        )

        overlaps: tuple[float | None, ...] = (None,)
        if self.training and not self.strategy:
            overlaps = (UNSUMMED,) if avoids_sums(module) else overlaps_on(topology.types)

        def bounded(among: Submeshes, strategy: str = "") -> Bounding:
            """What a stage hides of its sums of gradients is bounded in two ways, neither of which is the nearer for all."""
            bounding: Bounding | None = None
            for overlap in overlaps:
                bounding = Bounding(
                    module,
                    topology,
                    net,
                    context.analyses.get(folding, module.entry, module),
                    among,
                    memory=self.device_memory,
                    training=self.training,
                    microbatches=self.step_microbatches,
                    family=self.family,
                    strategy=strategy,
                    overlap=overlap,
                    cuts=FEW_CUTS if objective_of(self.objective).trips else MOST_CUTS,
                    other=bounding,
                    progress=context.progress,
                )
            assert bounding is not None
            return bounding

        limits = self.limits(context, tokens_of(module, self.objective))
        if context.incumbent is not None and limits.gap >= ENOUGH_PROVEN:  # else less was asked for
            limits = replace(limits, gap=max(limits.gap, sufficient_gap(len(module.entry.ops), len(topology.devices))))
        began, missing = time.perf_counter(), ""
        try:
            if self.strategy:
                plan, bound = stages_by_name(bounded, meshes, self.strategy, self.stages, limits), 0.0
            else:
                goal = objective_of(self.objective)
                in_flight = 1 if goal.alone else groups_of(module) if goal.decodes else 0
                search = StageSearch(bounded(meshes), limits, in_flight)
                plan, bound = search.run(self.stages), search.bound
                missing = search.nearest(self.stages) if plan is None and context.incumbent is None else ""
        except UnfitError as error:
            raise unfit(error, self.strategy, module) from None
        context.count(self.name, seconds=time.perf_counter() - began)
        if plan is None:
            return None, bound, missing
        if plan.unsharded:
            context.sink.warn(NotSplit(tuple(plan.unsharded)), where=self.name)
        context.count(
            self.name,
            stages=len(plan.stages),
            units=plan.units,
            meshes=plan.forms,
            runs=plan.keys,
            solved=plan.solved,
            rounds=plan.rounds,
            interrupted=int(plan.interrupted),
        )
        return plan, min(max(bound, plan.bound), plan.value), ""


def halves(count: int) -> tuple[int, ...]:
    """``count``, the half of it, and so on, down to 2: how many devices one mesh may have where the time of one sample or of a
    step of few tokens counts. What members exchange may take longer than what a larger mesh saves."""
    return (count, *halves(count // 2)) if count > 3 else (count,)


@contextmanager
def per_token(tokens: int) -> Iterator[None]:
    """Divides the bound that an error of a search tells by ``tokens``."""
    try:
        yield
    except (Infeasible, NoBetterPlan) as error:
        error.bound /= tokens
        raise


def must_run(module: Module, topology: Topology, *, every: bool = False) -> None:
    """Raises Infeasible for an op that no type of device can run; ``every``: for one that some type cannot run."""
    used = {device.type for device in topology.devices}
    types = [type_ for type_ in topology.types if type_.name in used]
    for op in module.entry.ops:
        unfit = [type_.name for type_ in types if op_seconds(op, type_) == math.inf]
        if unfit and (every or len(unfit) == len(types)):
            name = op.results[0].name if op.results else op.name
            who = "no device can" if len(unfit) == len(types) else "the devices of a mesh run every op, and some cannot"
            raise Infeasible(CannotRun(who, name, tuple(unfit)), where=topology.name)


def _count(context: PassContext, given: ShardInput, plan: ShardPlan, bill: Bill) -> None:
    context.count(
        MeshesSearch.name,
        mesh=str(given.mesh),
        compute=bill.compute,
        communication=bill.communication,
        collectives=len(bill.collectives),
        weights=math.ceil(bill.memory),
        replicated=len(given.unsharded),
        reason=plan.reason,
        interrupted=int(plan.interrupted),
    )


def _certificate_in_stages(plan: StagesPlan, asked: MeshesSearch) -> dict[str, str]:
    """What is proven of a plan in stages."""
    where = f"on meshes {asked.shape}" if asked.shape else f"on blocks of {plan.forms} forms of mesh"
    certificate = {
        "bound": "dynamic programme over runs of units whose borders lie as suits each best",
        "units": f"{plan.units}, {where}",
    }
    if asked.stages:
        certificate["stages"] = str(asked.stages)
    if asked.strategy:
        certificate["strategy"] = asked.strategy
    if asked.training:
        certificate["step"] = f"({asked.step_microbatches} microbatches + {len(plan.stages)} stages - 1) * slowest stage"
    if plan.interrupted:
        certificate["search"] = INTERRUPTED
    return certificate


def _certificate(found: OnOneMesh, among: Candidates, asked: MeshesSearch) -> dict[str, str]:
    """What is proven of a plan on one mesh."""
    plan, mesh, tried = found.plan, found.fitter.given.mesh, among.searched[: found.searched]
    certificate = {"bound": REASONS[plan.reason], "mesh": str(mesh)}
    if plan.interrupted:
        left, every = len(among.searched) - found.searched, len(among.searched)
        certificate["search"] = INTERRUPTED + (f", {left} of {every} meshes not searched and not bounded" if left else "")
    if asked.strategy:
        certificate["strategy"] = asked.strategy
    goal = objective_of(asked.objective)
    certificate |= _idle(found.sets, mesh, tried, "step" if goal.decodes else "sample" if goal.alone else "microbatch")
    parts = len({one.devices for one in tried})
    shapes_tried = len({one.sizes for one in tried if len(one.devices) == max(len(other.devices) for other in tried)})
    if shapes_tried > 1:
        certificate["mesh"] += f", the cheapest of {shapes_tried} shapes"
    if parts > 1:
        how = "searched" if asked.shape else "searched in one row"
        certificate["mesh"] += f"; {how}: {parts - 1} other set{'s' if parts > 2 else ''} of devices"
    same_shape = [one.shares for one in tried if one.sizes == mesh.sizes]
    if any(same_shape):
        certificate["shares"] = shares_text(mesh.shares)
        if len(same_shape) > 1 and asked.strategy != DATA:  # which has equal shares unless others are given
            certificate["shares"] += f", the best of {', '.join(dict.fromkeys(map(shares_text, same_shape)))}"
    return certificate


def _idle(sets: Mapping[tuple[Device, ...], float], mesh: DeviceMesh, tried: Sequence[Candidate], run: str) -> dict[str, str]:
    """Why devices stay idle: what no plan on one mesh of all is below, and the best of the other sets; in seconds of a
    ``run``."""
    every = max((one.devices for one in tried), key=len)
    if len(mesh.devices) == len(every) or every not in sets:
        return {}
    others = {devices: bound for devices, bound in sets.items() if tuple(device.name for device in devices) != mesh.devices}
    second = min(others, key=lambda devices: others[devices])
    if sets[every] == math.inf:
        return {"idle": "on a mesh every device runs every op, and some of these cannot"}
    text = f"on one mesh of all devices no plan is below {1000 * sets[every]:.4g} ms a {run}"
    if second != every:
        text += f", on the next best of {len(sets)} sets, {len(second)} devices, below {1000 * sets[second]:.4g} ms"
    return {"idle": text}
