"""The best plan of all kinds: stages on single devices or with replicas (``partition``), and stages of which some are on meshes
(``shard``).

Each kind has a pipeline. The kinds are searched one after the other, and each search has the best plan so far as its incumbent,
so a kind whose lower bound is not below the incumbent costs little. Replicas are searched first, because on equal devices they
are found quickly and hard to beat; but last where one mesh is searched. The bound of the plan is the least bound of all kinds,
so "optimal" holds for all plans that the options allow, but for those that ``mesh_sizes`` names. In inference plans of
``shard`` may have replicas of a stage beside stages on meshes; in training they have none.

One mesh of all or some devices is searched first in training, since it is hard to beat and quickly found, and where devices
differ in type, since one mesh may also leave some of them out.

Meshes are not searched where an option needs single devices (a cut, a pin, ``--split``, ``--pieces``, ``--comm``, latency) or
states how to plan (``--mesh``, ``--passes``, ``--plan``), on one device, or with as many stages as devices.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any, cast

from ir.core.diagnostics import DiagnosticSink, Infeasible
from ir.core.module import Module, Plan
from ir.core.objectives import THROUGHPUT
from ir.core.outcomes import TIGHT
from ir.core.topology import Topology
from ir.text.units import seconds_text
from ir.text.witness import DEVICES, MESH, MESHES, REPLICAS
from passes.framework.base import NoBetterPlan, Pass, PassContext
from passes.framework.manager import PassManager
from passes.framework.registry import PLANNERS
from passes.solvers.work import clock_left, is_over, within

if TYPE_CHECKING:
    from passes.partition.shard_pass import ShardPass

_KINDS = {DEVICES: "stages of single devices", REPLICAS: "stages with replicas", MESHES: "stages on meshes"}
MIXED = "stages with a mesh among them"
_FORMS = {**{kind: form for form, kind in _KINDS.items()}, MIXED: MESHES}
_LOG = logging.getLogger(__name__)
PROGRAM_PASSES = ("lower", "localize")
"""The passes that make programs of a scheduled plan; a plan alone does without."""
PIPELINE = "default-inference"
"""The named pipeline that ``dnnc compile`` runs by default."""
SHARDED_PIPELINE = "sharded-inference"
"""The named pipeline for plans on meshes."""
PROFILE_PIPELINE = "profiled"
"""The named pipeline for a profiled workload, which has seconds in place of operators."""
IN_STAGES = 8
"""Default number of microbatches of a training step in stages."""
NO_MESH = "none"
"""``--mesh none``: only plans of single devices and their replicas."""
BELOW = 1e-8
"""Relative: how far a bound of another kind may lie below a value that it proves: bounds of ``shard`` give way for rounding a
few times."""


def other_kinds(
    topology: Topology,
    steps: tuple[Pass, ...],
    *,
    stages: int = 0,
    time_limit: float | None = None,
    microbatches: int = 0,
    replicas: int = 0,
) -> tuple[tuple[Pass, ...], ...]:
    """The pipelines that search plans on meshes, made of ``steps``. ``stages``: their exact number, 0 for any;
    ``microbatches``: of a training step, 0 for inference; ``replicas``: of a stage at most, 0 for any number."""
    devices = topology.devices
    if len(devices) < 2 or stages >= len(devices):
        return ()
    changes: dict[str, Any] = {"stages": stages, "microbatches": microbatches, "replicas": replicas}
    if time_limit is not None:
        changes["time_limit"] = max(time_limit, 1e-3)
    return with_one_mesh(_resharded(steps, **changes), topology)


def with_one_mesh(pipeline: tuple[Pass, ...], topology: Topology) -> tuple[tuple[Pass, ...], ...]:
    """The pipeline; before it one that searches one mesh, if the pipeline searches any number of stages and devices differ in
    type or a training step is planned. The pipeline then skips one stage on all devices, unless it has a shape, which may need
    all devices."""
    shard = _shard_of(pipeline)
    if shard is None or shard.stages or shard.strategy or shard.shares:
        return (pipeline,)
    if len({device.type for device in topology.devices}) < 2 and not shard.training:
        return (pipeline,)
    microbatches = shard.step_microbatches if shard.training else 0  # as many as in stages, because the values are compared
    return _resharded(pipeline, stages=1, microbatches=microbatches), _resharded(pipeline, whole=bool(shard.mesh))


def _shard_of(pipeline: Sequence[Pass]) -> ShardPass | None:
    return next((cast("ShardPass", step) for step in pipeline if step.name == "shard"), None)


def _resharded(pipeline: tuple[Pass, ...], **changes: Any) -> tuple[Pass, ...]:
    return tuple(replace(step, **changes) if step.name == "shard" else step for step in pipeline)


def kind_of(pipeline: Sequence[Pass]) -> str:
    """The kind of plans that a pipeline searches, as a person reads it."""
    if (shard := _shard_of(pipeline)) is not None:
        return _KINDS[MESHES] if shard.replicas == 1 or shard.training else MIXED
    alone = any(getattr(step, "replicas", 0) == 1 for step in pipeline if step.name in PLANNERS)
    return _KINDS[DEVICES if alone else REPLICAS]


def mesh_sizes(pipelines: Sequence[Sequence[Pass]], topology: Topology) -> str:
    """The sets of devices on which stages on meshes are searched; empty if the pipelines search all sets."""
    from passes.meshes.mesh import IN_FEW_SHAPES, few

    shards = [shard for pipeline in pipelines if (shard := _shard_of(pipeline)) and not shard.mesh]
    if not any(shard.stages != 1 for shard in shards):
        if len(shards) and len(pipelines) > 1 and len(topology.devices) > 2:
            shapes = f", {IN_FEW_SHAPES}" if few(topology) else ""
            return f"of all devices, or all of some types on some hosts{shapes} (no others are searched)"
        free = any(not shard.shares for shard in shards)
        return f"of all devices, {IN_FEW_SHAPES} (no other shapes are searched)" if free and few(topology) else ""
    from passes.partition.chain.submeshes import FEW, block_places

    sizes = sorted({size for shard in shards for _, size in block_places(topology, shard.stages)})
    unequal = len({(device.type, topology.memory(device)) for device in topology.devices}) > 1
    order = "of devices in the order of the topology"
    if len(sizes) == len(topology.devices):
        return f"{order} (no other orders are searched)" if unequal else ""
    *most, last = map(str, sizes)
    told = [f"of {', '.join(most)} or {last} devices", *([order] if unequal else ()), *([FEW] if few(topology) else ())]
    return f"{', '.join(told)} (no {'other sizes' if len(told) == 1 else 'others'} are searched)"


@dataclass(slots=True)
class _Best:
    """The best plan so far. ``module`` has it, ``pipeline`` made it, with these ``warnings``; ``incumbent``: the plan itself,
    with the least bound of all kinds so far, ``own``: its bound of its own kind; ``others``: values and bounds of the other
    kinds."""

    incumbent: Plan
    module: Module | None = None
    pipeline: tuple[Pass, ...] = ()
    warnings: DiagnosticSink = field(default_factory=DiagnosticSink)
    others: _OtherKinds = field(default_factory=lambda: _OtherKinds())
    own: float = 0.0

    @property
    def certified(self) -> Plan:
        """The plan, with the values and bounds of the other kinds in its certificate."""
        kind = kind_of(self.pipeline)
        texts = [f"{other}: {self.others.text(other)}" for other in self.others.bounds if other != kind]
        if not texts:
            return self.incumbent
        certificate = {**dict(self.incumbent.certificate), "kinds": "; ".join([kind, *texts])}
        return replace(self.incumbent, certificate=tuple(sorted(certificate.items())))


@dataclass(slots=True)
class _OtherKinds:
    """By kind: the value of its best plan, infinite without one, and the least bound of its pipelines."""

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


class PortfolioSearch:
    """Searches several pipelines, each for another kind of plan, with a shared incumbent.

    ``manager``: further keywords of ``PassManager``; ``on_pass`` gets the name and the seconds of each pass. ``time_limit``:
    seconds by the clock for all searches together, of which each gets an equal part of what is left; None: each ends by its
    counted work (``passes.solvers.work``). ``bounds``: of each form of plans (``ir.text.witness``), once it was searched;
    ``memory_price``: in seconds per byte, where one mesh was."""

    def __init__(
        self,
        context: PassContext,
        manager: Mapping[str, Any],
        on_pass: Callable[[str, float], None],
        time_limit: float | None = None,
    ) -> None:
        self.context, self.manager, self.on_pass, self.time_limit = context, manager, on_pass, time_limit
        self.spent = 0.0
        self.bounds: dict[str, float] = {}
        self.memory_price = 0.0

    def run(self, pipelines: Sequence[tuple[Pass, ...]], module: Module) -> tuple[Module, tuple[Pass, ...], int]:
        """The module after the pipeline with the best plan but for the passes that make programs, that pipeline, and how many
        of its passes have run. Raises the first error if no plan fits; it is proven if no kind has a plan."""
        first = pipelines[0]
        if len(pipelines) == 1:
            module = self.planned(first, module, self.context, 0, self.time_limit)
            if plan := module.first(Plan):
                self.bounds = {self.form_of(first, plan): plan.bound}
            return self.scheduled(first, module)
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
        bounds = [*best.others.bounds.items(), (kind_of(best.pipeline), best.own)]
        for kind, bound in bounds:
            self.bounds[_FORMS[kind]] = min(bound, self.bounds.get(_FORMS[kind], math.inf))
        return self.scheduled(best.pipeline, best.module.replace(plan, best.certified))

    def scheduled(self, pipeline: tuple[Pass, ...], module: Module) -> tuple[Module, tuple[Pass, ...], int]:
        """A planned module after the further passes of its pipeline, up to those that make programs; as ``run``."""
        done = next((number for number, step in enumerate(pipeline) if step.name in PROGRAM_PASSES), len(pipeline))
        return self.passes(pipeline, module, self.context, _planning_count(pipeline), done), pipeline, done

    def best(self, pipelines: Sequence[tuple[Pass, ...]], module: Module, shared: int) -> tuple[_Best, dict[int, Infeasible]]:
        """The best plan of all pipelines, and the errors of those without a plan. The module is that after the ``shared`` first
        passes, which all pipelines have."""
        best: _Best | None = None
        faults: dict[int, Infeasible] = {}
        for number, pipeline in enumerate(_in_turn(pipelines)):
            if best is not None and best.module is not None and (self.interrupted or is_over()):
                if not self.interrupted:
                    self.context.count("kinds", cut=1)
                _with_loser(best, pipeline, 0.0)
                continue
            try:
                left = None if self.time_limit is None else clock_left() / (len(pipelines) - number)
                best = self.better(pipeline, module, shared, best, left)
            except Infeasible as error:
                _LOG.debug("%s: %s", kind_of(pipeline), error.diagnostics[0].message)
                faults[pipelines.index(pipeline)] = error
                best = _with_loser(best or _Best(_nothing()), pipeline, math.inf if error.proven else error.bound)
            except KeyboardInterrupt:
                if best is None or best.module is None:
                    raise
                _with_loser(best, pipeline, 0.0)
                self.context.count("kinds", interrupted=1)
        assert best is not None
        return best, faults

    def form_of(self, pipeline: Sequence[Pass], plan: Plan) -> str:
        """The form of plans (``ir.text.witness``) that the only pipeline searches; that of the plan, where it was given."""
        if any(stage.mesh for stage in plan.stages):
            shard, counted = _shard_of(pipeline), self.context.statistics.get("shard", {})
            if shard is None or shard.stages != 1 or counted.get("candidates") != 1:
                return MESHES
            self.memory_price = float(counted.get("price", 0.0))
            return MESH
        if not any(step.name in (*PLANNERS, "shard") for step in pipeline):
            return REPLICAS if any(stage.replicas > 1 for stage in plan.stages) else DEVICES
        return _FORMS[kind_of(pipeline)]

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended a search; the kinds after it are not searched."""
        return any(counted.get("interrupted") for counted in self.context.statistics.values())

    def better(
        self, pipeline: tuple[Pass, ...], module: Module, shared: int, best: _Best | None, seconds: float | None
    ) -> _Best:
        """``best``, or the plan of the pipeline if that is better. ``module`` is that after the ``shared`` first passes;
        ``seconds`` limits the search."""
        incumbent, sink = best.incumbent if best is not None else None, DiagnosticSink()
        began, self.spent = time.perf_counter(), 0.0
        try:
            context = replace(self.context, sink=sink, incumbent=incumbent)
            planned = self.planned(pipeline, module, context, shared, seconds)
        except NoBetterPlan as error:
            assert best is not None
            _LOG.debug("%s: no plan below %s", kind_of(pipeline), seconds_text(error.bound))
            self.count(pipeline[_planning_count(pipeline) - 1].name, time.perf_counter() - began - self.spent)
            return _with_loser(best, pipeline, error.bound)
        plan = planned.first(Plan)
        assert plan is not None
        if best is not None and plan.value >= best.incumbent.value:  # on the real links
            return _with_loser(best, pipeline, plan.bound)
        if best is None:
            return _Best(plan, planned, pipeline, sink, own=plan.bound)
        if best.module is not None:
            best.others.beaten(kind_of(best.pipeline), best.incumbent.bound, best.incumbent.value)
        return _Best(_with_bound(plan, best.incumbent.bound), planned, pipeline, sink, best.others, plan.bound)

    def planned(
        self, pipeline: tuple[Pass, ...], module: Module, context: PassContext, start: int, seconds: float | None
    ) -> Module:
        """The module after the passes from ``start`` on that make the plan, within ``seconds`` by the clock."""
        if seconds is not None:
            timed = {"time_limit": max(seconds, 1e-3)}
            pipeline = tuple(replace(step, **timed) if hasattr(step, "time_limit") else step for step in pipeline)
        with within(seconds) as limit:
            try:
                module = self.passes(pipeline, module, context, start, _planning_count(pipeline))
            finally:
                if limit.cut:
                    self.context.count("kinds", cut=1)
        if plan := module.first(Plan):
            value, bound = seconds_text(plan.value), seconds_text(plan.bound)
            _LOG.debug("%s: a plan of %s, lower bound %s, %s", kind_of(pipeline), value, bound, plan.status)
        return module

    def passes(self, pipeline: tuple[Pass, ...], module: Module, context: PassContext, start: int, stop: int) -> Module:
        """The module after the passes ``start`` to ``stop`` of a pipeline."""
        steps = PassManager(pipeline, start_after=start, stop_after=stop, on_pass=self.count, expanded=True, **self.manager)
        return steps.run(module, context)

    def count(self, name: str, seconds: float) -> None:
        """Adds the seconds of a pass."""
        self.spent += seconds
        self.on_pass(name, seconds)


def _in_turn(pipelines: Sequence[tuple[Pass, ...]]) -> list[tuple[Pass, ...]]:
    """The pipelines in the order of their search: those on meshes first if one of them searches one mesh."""
    one_mesh = any((shard := _shard_of(pipeline)) and shard.stages == 1 for pipeline in pipelines)
    return sorted(pipelines, key=lambda pipeline: _shard_of(pipeline) is None) if one_mesh else list(pipelines)


def with_restrictions(plan: Plan, flags: Sequence[str], topology: Topology) -> Plan:
    """The plan, whose certificate states what the restricting options ``flags`` cost, as far as that is known without a search:
    the time with the whole model on every device, in turn, if it fits and all devices are of one type. For one sample alone
    the certificate states that meshes are not searched."""
    count = len(topology.devices)
    if plan.minimises.alone and count > 1 and "plan" not in dict(plan.certificate):  # a replayed plan
        certificate = {
            **dict(plan.certificate),
            "kinds": "stages of single devices; meshes are not searched for one sample alone",
        }
        return replace(plan, certificate=tuple(sorted(certificate.items())))
    alike = len({device.type for device in topology.devices}) == 1
    handover = 0.0 if plan.minimises.trains else topology.type(topology.devices[0].type).handover
    everywhere = (plan.single + handover) / count
    if not plan.minimises.streams or not flags or not alike or everywhere >= plan.value * (1 - TIGHT):
        return plan
    text = f"by {', '.join(flags)}; without, {seconds_text(everywhere)} or less (the whole model on every device, in turn)"
    return replace(plan, certificate=tuple(sorted({**dict(plan.certificate), "restricted": text}.items())))


def with_callers(plan: Plan, topology: Topology) -> Plan:
    """The plan, whose certificate states what as many callers of one unsplit session get as the plan has devices: without dnnc
    they keep as many cores busy. Where the model fits one device, and all devices are one-core CPUs of one type and host."""
    used = {device for stage in plan.stages for device in stage.devices}
    devices = [device for device in topology.devices if device.name in used]
    places = {(device.type, device.host) for device in devices}
    if plan.minimises.trains or not plan.minimises.streams or len(devices) < 2 or len(places) > 1 or math.isinf(plan.single):
        return plan
    type_ = topology.type(devices[0].type)
    if type_.kind != "cpu" or type_.provider or type_.cores > 1:
        return plan
    text = f"{len(devices)} callers of one unsplit session: {seconds_text(plan.single / len(devices))}"
    return replace(plan, certificate=tuple(sorted({**dict(plan.certificate), "callers": text}.items())))


def _planning_count(pipeline: Sequence[Pass]) -> int:
    """The number of passes at the start of a pipeline that make its plan."""
    after = ("differentiate", "schedule", *PROGRAM_PASSES)
    return next((number for number, step in enumerate(pipeline) if step.name in after), len(pipeline))


def _nothing() -> Plan:
    """A plan of infinite value, which any other beats."""
    return Plan("@plan", THROUGHPUT.name, "sum", math.inf, math.inf, math.inf, "within-gap", math.inf, ())


def _with_loser(best: _Best, pipeline: tuple[Pass, ...], bound: float) -> _Best:
    """``best``, with the lower ``bound`` of a pipeline that found no better plan."""
    best.incumbent = _with_bound(best.incumbent, bound)
    best.others.beaten(kind_of(pipeline), bound)
    return best


def _with_bound(plan: Plan, bound: float) -> Plan:
    """The plan with the least of its bound and ``bound``; it stays optimal only if its value equals that."""
    if bound >= min(plan.bound, plan.value * (1 - BELOW)):
        return plan
    return replace(plan, bound=bound, status="within-gap")


__all__ = [
    "IN_STAGES",
    "NO_MESH",
    "PIPELINE",
    "PROFILE_PIPELINE",
    "PROGRAM_PASSES",
    "SHARDED_PIPELINE",
    "PortfolioSearch",
    "mesh_sizes",
    "other_kinds",
    "with_callers",
    "with_one_mesh",
    "with_restrictions",
]
