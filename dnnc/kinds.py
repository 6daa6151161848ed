"""The best plan of all kinds: stages of one device each or of replicas (``partition``), and stages on meshes (``shard``).

Each kind has a pipeline; the kinds are searched one after the other, and every later one looks only for plans that are better
than the best so far, so a kind whose lower bound is not below that costs little. The plan's bound is the least of all kinds:
"optimal" is said of all that was allowed. No plan mixes a replicated stage with one on a mesh.

Meshes are left out where an option is of single devices (a cut, a pin, ``--split``, ``--pieces``, ``--comm``, latency) or says
how to plan (``--mesh``, ``--passes``, ``--plan``), and where none can be: on one device, or with as many stages as devices.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from ir.diagnostics import DiagnosticSink, Infeasible
from ir.module import Module, Plan
from ir.objectives import THROUGHPUT
from ir.topology import Topology
from passes.framework.base import KINDS, NoBetterPlan, Pass, PassContext
from passes.framework.manager import PassManager

PROGRAM_PASSES = ("lower", "localize")
"""What makes programs of a scheduled plan: a plan alone does not need them."""
PIPELINE = "default-inference"
"""The named pipeline that ``dnnc compile`` runs unless told otherwise."""
SHARDED_PIPELINE = "sharded-inference"
"""The one of plans on meshes."""
PROFILE_PIPELINE = "profiled"
"""The one of a profiled workload, which has seconds in place of operators."""
NO_MESH = "none"
"""``--mesh none``: plans of single devices and their replicas alone."""
TIGHT = 1e-9
"""Relative distance at which a value counts as equal to its bound."""


def other_kinds(
    topology: Topology, *, stages: int = 0, time_limit: float | None = None, plan_only: bool = False
) -> tuple[tuple[Pass, ...], ...]:
    """The pipelines that are searched for a better plan than that of ``PIPELINE``; ``stages``: exactly so many, 0 for any."""
    from passes.framework.pipeline import parse_pipeline

    devices = topology.devices
    free = any(topology.type(device.type).free_transfers for device in devices)
    if free or len(devices) < 2 or stages >= len(devices):
        return ()
    limit = {} if time_limit is None else {"time_limit": max(time_limit, 1e-3)}
    unequal = len({device.type for device in devices}) > 1 and stages < 2
    counts = [1, 0] if unequal and not stages else [stages]  # shares by speed are of one mesh for all
    steps = parse_pipeline(SHARDED_PIPELINE)
    if plan_only:
        steps = tuple(step for step in steps if step.name not in PROGRAM_PASSES)
    return tuple(
        tuple(replace(step, stages=count, **limit) if step.name == "shard" else step for step in steps)  # type: ignore[call-arg]
        for count in counts
    )


@dataclass(slots=True)
class _Best:
    """The best plan so far: the module with it, the pipeline that made it and what that warned of; ``incumbent``: the plan,
    with the least bound of all kinds so far."""

    incumbent: Plan
    module: Module | None = None
    pipeline: tuple[Pass, ...] = ()
    warnings: DiagnosticSink = field(default_factory=DiagnosticSink)


class KindSearch:
    """Runs pipelines that each make a kind of plan, ``manager`` being further keywords of ``PassManager``; ``on_pass`` is told
    the name and the seconds of every pass."""

    def __init__(self, context: PassContext, manager: Mapping[str, Any], on_pass: Callable[[str, float], None]) -> None:
        self.context, self.manager, self.on_pass = context, manager, on_pass
        self.spent = 0.0

    def run(self, pipelines: Sequence[tuple[Pass, ...]], module: Module) -> tuple[Module, tuple[Pass, ...]]:
        """The module after the pipeline whose plan is the best, and that pipeline. Raises the first error if no plan fits."""
        first, *others = pipelines
        if not others:
            return self.passes(first, module, self.context, 0, len(first)), first
        steps = zip(*pipelines, strict=False)
        shared = sum(1 for _ in takewhile(lambda alike: all(step == alike[0] for step in alike), steps))
        module = self.passes(first, module, self.context, 0, shared)
        best: _Best | None = None
        faults: list[Infeasible] = []
        for pipeline in pipelines:
            try:
                best = self.better(pipeline, module, shared, best)
            except Infeasible as error:
                faults.append(error)
                best = best or _Best(_nothing(error))
            except KeyboardInterrupt:
                if best is None or best.module is None:
                    raise
                best.incumbent = _with_bound(best.incumbent, 0.0)
                self.context.count("kinds", interrupted=1)
                break
        assert best is not None
        if best.module is None:
            raise faults[0]
        self.context.sink.diagnostics.extend(best.warnings.diagnostics)
        plan = best.module.first(Plan)
        assert plan is not None
        planned = best.module.replace(plan, best.incumbent)
        return self.passes(best.pipeline, planned, self.context, _planned(best.pipeline), len(best.pipeline)), best.pipeline

    def better(self, pipeline: tuple[Pass, ...], module: Module, shared: int, best: _Best | None) -> _Best:
        """``best``, or what the pipeline makes of a module that its ``shared`` first passes made, if that is better."""
        incumbent, sink = best.incumbent if best is not None else None, DiagnosticSink()
        began, self.spent = time.perf_counter(), 0.0
        try:
            context = replace(self.context, sink=sink, incumbent=incumbent)
            made = self.passes(pipeline, module, context, shared, _planned(pipeline))
        except NoBetterPlan as error:
            assert best is not None
            self.told(pipeline[_planned(pipeline) - 1].name, time.perf_counter() - began - self.spent)
            best.incumbent = _with_bound(best.incumbent, error.bound)
            return best
        plan = made.first(Plan)
        assert plan is not None
        if best is not None and plan.value >= best.incumbent.value:  # on the real links
            best.incumbent = _with_bound(best.incumbent, plan.bound)
            return best
        return _Best(plan, made, pipeline, sink)

    def passes(self, pipeline: tuple[Pass, ...], module: Module, context: PassContext, start: int, stop: int) -> Module:
        """The module after the passes ``start`` to ``stop`` of a pipeline."""
        steps = PassManager(pipeline, start_after=start, stop_after=stop, on_pass=self.told, expanded=True, **self.manager)
        return steps.run(module, context)

    def told(self, name: str, seconds: float) -> None:
        self.spent += seconds
        self.on_pass(name, seconds)


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
    text = f"{', '.join(flags)}; at most {everywhere * 1e3:.6g} ms without: each device in turn"

    return replace(plan, certificate=tuple(sorted({**dict(plan.certificate), "restricted": text}.items())))


def _planned(pipeline: Sequence[Pass]) -> int:
    """How many passes of a pipeline make its plan."""
    after = ("schedule", *PROGRAM_PASSES)
    return next((number for number, step in enumerate(pipeline) if step.name in after), len(pipeline))


def _nothing(error: Infeasible) -> Plan:
    """In the place of a plan of a kind that has none."""
    bound = math.inf if error.proven else 0.0
    return Plan("@plan", THROUGHPUT.name, "sum", math.inf, math.inf, bound, "feasible", math.inf, ())


def _with_bound(plan: Plan, bound: float) -> Plan:
    """The plan of one kind, given what is proven of the others."""
    told = dict(plan.certificate)
    if "kinds" not in told:
        none = "none fits" if bound == math.inf else f"none below {bound * 1e3:.6g} ms" if bound else "not searched to the end"
        told["kinds"] = f"{KINDS[0]}; {KINDS[1]}: {none}"
    plan = replace(plan, certificate=tuple(sorted(told.items())))
    if bound >= min(plan.bound, plan.value * (1 - TIGHT)):
        return plan
    return replace(plan, bound=bound, status="feasible" if plan.status == "optimal" else plan.status)


__all__ = [
    "NO_MESH",
    "PIPELINE",
    "PROFILE_PIPELINE",
    "PROGRAM_PASSES",
    "SHARDED_PIPELINE",
    "KindSearch",
    "other_kinds",
    "with_restrictions",
]
