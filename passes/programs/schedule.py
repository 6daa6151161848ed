"""Schedule: the order of work per device, for a stream of samples or for a training step.

Reads a plan whose stages are on devices; writes one ``Schedule``: the rows that a person stated, or those of
``passes/timeline/orders.py`` and ``families``, which say what holds of them. Seconds of either are simulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from ir.core.diagnostics import Infeasible, InvalidInput
from ir.core.module import Module, Plan, Schedule
from ir.core.topology import Topology
from ir.ops.row_faults import faults
from ir.ops.rows import shown, unrolled
from passes.framework.base import Pass, PassContext
from passes.framework.expanded import on_expanded
from passes.framework.faults import NoSchedule, OrderOverMemory, ScheduleMisfit, SlowSchedule
from passes.graph.graph import stage_members
from passes.graph.sizes import assessed
from passes.graph.symbols import insert_symbols
from passes.timeline.families import ASYNCHRONOUS, DEFAULT, FAMILIES, step
from passes.timeline.memory import memory_over_time, stage_peaks, with_memory
from passes.timeline.orders import steady_period, stream
from passes.timeline.simulate import Event, makespan, run_rows
from passes.timeline.workload import Workload, largest_load, workload

SHOWN = 5
"""Faults of stated rows that are told."""
SLOWER = 1.001
"""How many times the seconds of the compiler's order a stated one takes before it is worth a warning."""


@dataclass(frozen=True)
class SchedulePass(Pass):
    """Order receives, compute and sends per device for streamed inference, or for a training step.

    ``family``: the order of a training step (``passes.timeline.families``); ``auto`` the fastest that fits, and empty
    ``1f1b``, or, of a plan without a flush, ``pipedream``.
    ``stated``: a schedule as IR text, whose rows and slots are kept instead, with seconds made anew; it came from ``source``.
    """

    name: ClassVar[str] = "schedule"
    family: str = ""
    stated: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        if self.family and self.family not in FAMILIES:
            raise ValueError(f"family is one of {', '.join(FAMILIES)}, not {self.family}")

    @on_expanded
    def run(self, module: Module, context: PassContext) -> Module:
        """Raises InvalidInput when the module has no plan on devices, and for stated rows that do not fit its stages,
        Infeasible where a device cannot hold what the rows of a training step need."""
        load, plan = workload(module), module.first(Plan)
        assert plan is not None, "a workload is a plan's"
        training = plan.in_steps
        if training:
            load = with_memory(module, load)
        family = self.family or (DEFAULT if plan.flush else ASYNCHRONOUS[0])
        schedule = step(load, plan.microbatches, family) if training else stream(load, largest_load(load))
        if self.stated:
            schedule = self._kept(load, schedule, context)
        context.count(self.name, period=schedule.period, latency=schedule.latency)
        module = insert_symbols(module.without(Schedule), (schedule,))
        if training:
            events = list(run_rows(load, unrolled(schedule, load.flow, shown(schedule))))
            self._check_memory(module, load, schedule, events)
            scheduled = as_scheduled(plan, schedule, module)
            module = module.replace(plan, _holding(scheduled, stage_peaks(module, events)))
        return module

    def _check_memory(self, module: Module, load: Workload, schedule: Schedule, events: Sequence[Event]) -> None:
        """Raises Infeasible where devices have not the memory that a step's rows need."""
        topology, plan = module.first(Topology), module.first(Plan)
        if topology is None or plan is None or not load.memory:
            return
        held, over, needs = memory_over_time(module, events), [], {}
        for device in topology.devices:
            limit, peak = topology.memory(device), held[device.name].peak if device.name in held else 0
            if limit is not None and peak > limit:
                over.append(OrderOverMemory(schedule.kind, peak, limit).at(device.name))
                needs[device.name] = peak, sum(stage.memory for stage in plan.stages if device.name in stage.devices)
        if over:
            error = Infeasible(over)
            error.proven, error.needs = False, needs  # of other plans and orders
            raise error

    def _kept(self, load: Workload, own: Schedule, context: PassContext) -> Schedule:
        """The stated schedule with its seconds; ``own`` where it is no other than the compiler's."""
        from ir import parse_module

        stated = parse_module(f"module @stated {{\n{self.stated}\n}}", self.source).first(Schedule)
        if stated is None:
            raise InvalidInput(NoSchedule(), where=self.source)
        if (stated.rows, stated.slots, stated.periodic) == (own.rows, own.slots, own.periodic):
            return own
        where = ": ".join(filter(None, (self.source, stated.name)))
        load = replace(load, slots=stated.slots)
        flow = load.flow
        problems = faults(stated, flow)
        if (stated.periodic, stated.microbatches) != (own.periodic, own.microbatches):
            wanted = f"a training step of {own.microbatches} microbatches"
            if own.periodic:
                wanted = f"{wanted} without a flush" if load.backward else "one period of a stream"
            problems = [f"the plan needs rows of {wanted}"]
        if problems:
            raise InvalidInput([ScheduleMisfit(problem).at(where) for problem in problems[:SHOWN]])
        ends = makespan(load, unrolled(stated, flow, stated.microbatches))
        period = max(own.period, steady_period(load, stated)) if own.periodic else ends
        if period > SLOWER * own.period:
            per = "step" if load.backward else "sample"
            context.sink.warn(SlowSchedule(period, per, own.period), where=where)
        return replace(stated, name=own.name, kind=own.kind, period=period, latency=ends)


def as_scheduled(plan: Plan, schedule: Schedule, module: Module) -> Plan:
    """The plan of a training step with the seconds of its rows, unless the plan has a flush and these are plain 1F1B of stages
    on devices of their own, which the search counts; of rows without a flush, of those from a step to the next. No order of
    work makes a step shorter than its microbatches are on the slowest device: the plan's bound becomes one of that. On devices
    of one type it is the work of all stages, evenly shared, where no plan has less: of stages without replicas, which would add
    up gradients, and ops that run once. The search counts that a gradient crosses each border that its value crosses; one that
    an op hands on as it is goes straight to where it is needed, so rows may take less than that bound says."""
    devices = [device for stage in plan.stages for device in stage.devices]
    alone, topology = len(set(devices)) == len(devices), module.first(Topology)
    if topology is None or (alone and schedule.kind == DEFAULT and plan.flush):
        return plan
    count = len(topology.devices)
    filled = plan.microbatches - 1 + count if plan.flush else plan.microbatches
    bound = plan.bound * plan.microbatches / filled if alone else 0.0
    once = len(devices) == len(plan.stages) and all(len(stages) == 1 for stages in stage_members(module.entry))
    if once and len({device.type for device in topology.devices}) == 1 and not plan.on_meshes:
        bound = max(bound, plan.microbatches * sum(stage.compute for stage in plan.stages) / count)
    certificate = dict(plan.certificate)
    if "kinds" in certificate:
        certificate["kinds"] += f" (of steps in the order {DEFAULT})"
    plan = replace(plan, flush=not schedule.periodic, certificate=tuple(sorted(certificate.items())))
    return assessed(plan, module.entry, schedule.period, min(bound, schedule.period))


def _holding(plan: Plan, peaks: Sequence[int]) -> Plan:
    """The plan whose stages hold so many bytes each while its rows run, of which the search has counted about as many."""
    return replace(
        plan,
        stages=tuple(
            replace(stage, workspace=peak - stage.weights - stage.buffers)
            for stage, peak in zip(plan.stages, peaks, strict=True)
        ),
    )
