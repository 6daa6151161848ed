"""The best plan of all kinds: stages of one device each or of replicas (``partition``), and stages on meshes (``shard``).

Each kind has a pipeline; the kinds are searched one after the other, and every later one looks only for plans that are better
than the best so far, so a kind whose lower bound is not below that costs little. Replicas come first, for on equal devices they
are hard to beat and quickly found, and last where one mesh is searched. The plan's bound is the least of all kinds:
"optimal" is said of all that was allowed. No plan mixes a replicated stage with one on a mesh.

Stages on meshes have equal parts, and their sums of gradients are counted behind the backward pass. So one mesh of all or some
of the devices is searched first where they differ in type, with parts that may follow their speeds, and in training, with sums
beside the backward pass.

Meshes are left out where an option is of single devices (a cut, a pin, ``--split``, ``--pieces``, ``--comm``, latency) or says
how to plan (``--mesh``, ``--passes``, ``--plan``), and where none can be: on one device, or with as many stages as devices.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any, cast

from ir.core.diagnostics import DiagnosticSink, Infeasible
from ir.core.module import Module, Plan
from ir.core.objectives import THROUGHPUT
from ir.core.topology import Topology
from ir.text.units import seconds_text
from passes.framework.base import NoBetterPlan, Pass, PassContext
from passes.framework.manager import PassManager
from passes.model.work import clock_left, is_over, within

if TYPE_CHECKING:
    from passes.shard import ShardPass

PROGRAM_PASSES = ("lower", "localize")
"""What makes programs of a scheduled plan: a plan alone does not need them."""
PIPELINE = "default-inference"
"""The named pipeline that ``dnnc compile`` runs unless told otherwise."""
SHARDED_PIPELINE = "sharded-inference"
"""The one of plans on meshes."""
PROFILE_PIPELINE = "profiled"
"""The one of a profiled workload, which has seconds in place of operators."""
IN_STAGES = 8
"""Microbatches of a training step in stages unless it is told."""
NO_MESH = "none"
"""``--mesh none``: plans of single devices and their replicas alone."""
TIGHT = 1e-9
"""Relative distance at which a value counts as equal to its bound."""


def other_kinds(
    topology: Topology,
    steps: tuple[Pass, ...],
    *,
    stages: int = 0,
    time_limit: float | None = None,
    microbatches: int = 0,
) -> tuple[tuple[Pass, ...], ...]:
    """The pipelines that are searched for a better plan than one without meshes, made of ``steps``; ``stages``: exactly so
    many, 0 for any; ``microbatches``: those of a training step, 0 at inference."""
    devices = topology.devices
    if len(devices) < 2 or stages >= len(devices):
        return ()
    changes: dict[str, Any] = {"stages": stages, "microbatches": microbatches}
    if time_limit is not None:
        changes["time_limit"] = max(time_limit, 1e-3)
    return with_one_mesh(_resharded(steps, **changes), topology)


def with_one_mesh(pipeline: tuple[Pass, ...], topology: Topology) -> tuple[tuple[Pass, ...], ...]:
    """The pipeline, and before it, where it searches any number of stages, the one that searches one mesh: of devices of
    several types, in parts by their speeds, and in training, where the sums of gradients on one mesh travel beside the
    backward pass. The pipeline in stages then leaves out one stage on all devices, unless it has a shape: that may need all."""
    shard = _shard_of(pipeline)
    if shard is None or shard.stages or shard.strategy or shard.shares:
        return (pipeline,)
    if len({device.type for device in topology.devices}) < 2 and not shard.training:
        return (pipeline,)
    microbatches = shard.step_microbatches if shard.training else 0  # those of a step in stages: the values are compared
    return _resharded(pipeline, stages=1, microbatches=microbatches), _resharded(pipeline, whole=bool(shard.mesh))


def _shard_of(pipeline: Sequence[Pass]) -> ShardPass | None:
    return next((cast("ShardPass", step) for step in pipeline if step.name == "shard"), None)


def _resharded(pipeline: tuple[Pass, ...], **changes: Any) -> tuple[Pass, ...]:
    return tuple(replace(step, **changes) if step.name == "shard" else step for step in pipeline)


def kind_of(pipeline: Sequence[Pass]) -> str:
    """Which plans a pipeline searches."""
    if _shard_of(pipeline) is not None:
        return "stages on meshes"
    alone = any(getattr(step, "replicas", 0) == 1 for step in pipeline if step.name == "partition")
    return "stages of single devices" if alone else "stages with replicas"


def mesh_sizes(pipelines: Sequence[Sequence[Pass]], topology: Topology) -> str:
    """On which devices a stage on a mesh may lie, where the pipelines search some sets and not all; else empty."""
    from passes.model.spmd.mesh import IN_FEW_SHAPES, few

    shards = [shard for pipeline in pipelines if (shard := _shard_of(pipeline)) and not shard.mesh]
    if not any(shard.stages != 1 for shard in shards):
        if len(shards) and len(pipelines) > 1 and len(topology.devices) > 2:
            shapes = f", {IN_FEW_SHAPES}" if few(topology) else ""
            return f"of all devices, or all of some types on some hosts{shapes} (no others are searched)"
        free = any(not shard.shares for shard in shards)
        return f"of all devices, {IN_FEW_SHAPES} (no other shapes are searched)" if free and few(topology) else ""
    from passes.shard.stages.submeshes import FEW, block_places

    sizes = sorted({size for shard in shards for _, size in block_places(topology, shard.stages)})
    if len(sizes) == len(topology.devices):
        return ""
    *most, last = map(str, sizes)
    if few(topology):
        return f"of {', '.join(most)} or {last} devices, {FEW} (no others are searched)"
    return f"of {', '.join(most)} or {last} devices (no other sizes are searched)"


@dataclass(slots=True)
class _Best:
    """The best plan so far: the module with it, the pipeline that made it and what that warned of; ``incumbent``: the plan,
    with the least bound of all kinds so far; ``others``: what is known of the other kinds."""

    incumbent: Plan
    module: Module | None = None
    pipeline: tuple[Pass, ...] = ()
    warnings: DiagnosticSink = field(default_factory=DiagnosticSink)
    others: _Known = field(default_factory=lambda: _Known())

    @property
    def told(self) -> Plan:
        """The plan, which says what is known of the kinds that are not its own."""
        kind = kind_of(self.pipeline)
        texts = [f"{other}: {self.others.text(other)}" for other in self.others.bounds if other != kind]
        if not texts:
            return self.incumbent
        certificate = {**dict(self.incumbent.certificate), "kinds": "; ".join([kind, *texts])}
        return replace(self.incumbent, certificate=tuple(sorted(certificate.items())))


@dataclass(slots=True)
class _Known:
    """By kind: the value of its plan that another one beat, if any, and the least bound of its pipelines."""

    values: dict[str, float] = field(default_factory=dict)
    bounds: dict[str, float] = field(default_factory=dict)

    def beaten(self, kind: str, bound: float, value: float = math.inf) -> None:
        self.values[kind] = min(value, self.values.get(kind, math.inf))
        self.bounds[kind] = min(bound, self.bounds.get(kind, math.inf))

    def text(self, kind: str) -> str:
        value, bound = self.values[kind], self.bounds[kind]
        if value < math.inf:
            return seconds_text(value)
        return "none fits" if bound == math.inf else f"none below {seconds_text(bound)}" if bound else "not searched to the end"


class KindSearch:
    """Runs pipelines that each make a kind of plan, ``manager`` being further keywords of ``PassManager``; ``on_pass`` is told
    the name and the seconds of every pass. ``time_limit``: seconds of a clock that all searches take together at most, each of
    those left an equal part of what is left; None: they end by their counted work alone (``passes.model.work``)."""

    def __init__(
        self,
        context: PassContext,
        manager: Mapping[str, Any],
        on_pass: Callable[[str, float], None],
        time_limit: float | None = None,
    ) -> None:
        self.context, self.manager, self.on_pass, self.time_limit = context, manager, on_pass, time_limit
        self.spent = 0.0

    def run(self, pipelines: Sequence[tuple[Pass, ...]], module: Module) -> tuple[Module, tuple[Pass, ...]]:
        """The module after the pipeline whose plan is the best, and that pipeline. Raises the first error if no plan fits,
        proven where it is of all kinds."""
        first = pipelines[0]
        if len(pipelines) == 1:
            module = self.planned(first, module, self.context, 0, self.time_limit)
            return self.passes(first, module, self.context, _planned(first), len(first)), first
        steps = zip(*pipelines, strict=False)
        shared = sum(1 for _ in takewhile(lambda alike: all(step == alike[0] for step in alike), steps))
        module = self.passes(first, module, self.context, 0, shared)
        with within(self.time_limit):
            best, faults = self.best(pipelines, module, shared)
        if best.module is None:
            error, bound = faults[min(faults)], best.incumbent.bound
            error.proven, error.bound = bound == math.inf, bound
            raise error
        self.context.sink.diagnostics.extend(best.warnings.diagnostics)
        plan = best.module.first(Plan)
        assert plan is not None
        planned = best.module.replace(plan, best.told)
        return self.passes(best.pipeline, planned, self.context, _planned(best.pipeline), len(best.pipeline)), best.pipeline

    def best(self, pipelines: Sequence[tuple[Pass, ...]], module: Module, shared: int) -> tuple[_Best, dict[int, Infeasible]]:
        """The best plan of all pipelines, whose ``shared`` first passes made the module; the errors of those without one."""
        best: _Best | None = None
        faults: dict[int, Infeasible] = {}
        for number, pipeline in enumerate(_in_turn(pipelines)):
            if best is not None and best.module is not None and (self.interrupted or is_over()):
                if not self.interrupted:
                    self.context.count("kinds", cut=1)
                _kept(best, pipeline, 0.0)
                continue
            try:
                left = None if self.time_limit is None else clock_left() / (len(pipelines) - number)
                best = self.better(pipeline, module, shared, best, left)
            except Infeasible as error:
                faults[pipelines.index(pipeline)] = error
                best = _kept(best or _Best(_nothing()), pipeline, math.inf if error.proven else error.bound)
            except KeyboardInterrupt:
                if best is None or best.module is None:
                    raise
                _kept(best, pipeline, 0.0)
                self.context.count("kinds", interrupted=1)
        assert best is not None
        return best, faults

    @property
    def interrupted(self) -> bool:
        """Whether a search was interrupted from the keyboard: the kinds after it are not searched."""
        return any(counted.get("interrupted") for counted in self.context.statistics.values())

    def better(
        self, pipeline: tuple[Pass, ...], module: Module, shared: int, best: _Best | None, seconds: float | None
    ) -> _Best:
        """``best``, or what the pipeline makes, in so many seconds, of a module that its ``shared`` first passes made, if that
        is better."""
        incumbent, sink = best.incumbent if best is not None else None, DiagnosticSink()
        began, self.spent = time.perf_counter(), 0.0
        try:
            context = replace(self.context, sink=sink, incumbent=incumbent)
            made = self.planned(pipeline, module, context, shared, seconds)
        except NoBetterPlan as error:
            assert best is not None
            self.told(pipeline[_planned(pipeline) - 1].name, time.perf_counter() - began - self.spent)
            return _kept(best, pipeline, error.bound)
        plan = made.first(Plan)
        assert plan is not None
        if best is not None and plan.value >= best.incumbent.value:  # on the real links
            return _kept(best, pipeline, plan.bound)
        if best is None:
            return _Best(plan, made, pipeline, sink)
        if best.module is not None:
            best.others.beaten(kind_of(best.pipeline), best.incumbent.bound, best.incumbent.value)
        return _Best(_with_bound(plan, best.incumbent.bound), made, pipeline, sink, best.others)

    def planned(
        self, pipeline: tuple[Pass, ...], module: Module, context: PassContext, start: int, seconds: float | None
    ) -> Module:
        """The module after the passes from ``start`` on that make the plan, in so many seconds of a clock."""
        if seconds is not None:
            timed = {"time_limit": max(seconds, 1e-3)}
            pipeline = tuple(replace(step, **timed) if hasattr(step, "time_limit") else step for step in pipeline)
        with within(seconds) as limit:
            try:
                return self.passes(pipeline, module, context, start, _planned(pipeline))
            finally:
                if limit.cut:
                    self.context.count("kinds", cut=1)

    def passes(self, pipeline: tuple[Pass, ...], module: Module, context: PassContext, start: int, stop: int) -> Module:
        """The module after the passes ``start`` to ``stop`` of a pipeline."""
        steps = PassManager(pipeline, start_after=start, stop_after=stop, on_pass=self.told, expanded=True, **self.manager)
        return steps.run(module, context)

    def told(self, name: str, seconds: float) -> None:
        self.spent += seconds
        self.on_pass(name, seconds)


def _in_turn(pipelines: Sequence[tuple[Pass, ...]]) -> list[tuple[Pass, ...]]:
    """The pipelines in the order in which they are searched: those on meshes first where one of them is of one mesh."""
    one_mesh = any((shard := _shard_of(pipeline)) and shard.stages == 1 for pipeline in pipelines)
    return sorted(pipelines, key=lambda pipeline: _shard_of(pipeline) is None) if one_mesh else list(pipelines)


def with_restrictions(plan: Plan, flags: Sequence[str], topology: Topology) -> Plan:
    """The plan, whose certificate says what the options ``flags``, which restrict it, cost, as far as that is known without a
    search: the whole model on every device, in turn, if it fits and all are of one type; of one sample alone, that there are no
    meshes."""
    count = len(topology.devices)
    if plan.minimises.alone and count > 1 and "plan" not in dict(plan.certificate):  # which says that it was given
        told = {**dict(plan.certificate), "kinds": "stages of single devices; meshes are not searched for one sample alone"}
        return replace(plan, certificate=tuple(sorted(told.items())))
    alike = len({device.type for device in topology.devices}) == 1
    everywhere = plan.single / count
    if not plan.minimises.streams or not flags or not alike or everywhere >= plan.value * (1 - TIGHT):
        return plan
    text = f"by {', '.join(flags)}; without, {seconds_text(everywhere)} or less (the whole model on every device, in turn)"
    return replace(plan, certificate=tuple(sorted({**dict(plan.certificate), "restricted": text}.items())))


def _planned(pipeline: Sequence[Pass]) -> int:
    """How many passes of a pipeline make its plan."""
    after = ("differentiate", "schedule", *PROGRAM_PASSES)
    return next((number for number, step in enumerate(pipeline) if step.name in after), len(pipeline))


def _nothing() -> Plan:
    """In the place of a plan where there is none yet."""
    return Plan("@plan", THROUGHPUT.name, "sum", math.inf, math.inf, math.inf, "feasible", math.inf, ())


def _kept(best: _Best, pipeline: tuple[Pass, ...], bound: float) -> _Best:
    """``best``, after a pipeline whose plans are no better and not below ``bound``."""
    best.incumbent = _with_bound(best.incumbent, bound)
    best.others.beaten(kind_of(pipeline), bound)
    return best


def _with_bound(plan: Plan, bound: float) -> Plan:
    """The plan of one pipeline, given what is proven of the others."""
    if bound >= min(plan.bound, plan.value * (1 - TIGHT)):
        return plan
    return replace(plan, bound=bound, status="feasible" if plan.status == "optimal" else plan.status)


__all__ = [
    "IN_STAGES",
    "NO_MESH",
    "PIPELINE",
    "PROFILE_PIPELINE",
    "PROGRAM_PASSES",
    "SHARDED_PIPELINE",
    "KindSearch",
    "mesh_sizes",
    "other_kinds",
    "with_one_mesh",
    "with_restrictions",
]
