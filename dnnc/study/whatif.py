"""``dnnc whatif``: plans of a model on subsets of a topology's devices, and with copies of devices added.

Each row is a search as of ``dnnc compile --plan-only``, on a topology without some devices or with new ones. A plan that leaves
devices idle counts for every row that has the devices it uses, so no row is worse than one with fewer devices.

*The shared bound.* A plan on some devices is also a plan on all of them, if no stage is on a mesh, or if meshes of every size
are searched and all devices are equal (a mesh uses neighbours). Then the lower bound of all devices holds for every subset, and
a row needs no search of its own if a row with fewer devices reaches the bound.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from dnnc.compile.context import pass_context, with_topology
from dnnc.compile.driver import plan_model, sets_of_devices
from dnnc.compile.flags import CompileOptions
from dnnc.compile.load import is_profiled
from dnnc.compile.options import PROGRAM_PASSES, build_pipeline, of_profile, warn_of_cut
from dnnc.machines import is_local, machines_of
from dnnc.report.plan import groups_of_bound
from dnnc.study.faults import CoresShared, TooManyDevices
from dnnc.study.subsets import connected, parts, with_more
from dnnc.study.subsets import restricted as without_others
from ir.core.diagnostics import DiagnosticSink, DnncError, Infeasible, UsageError
from ir.core.module import Module, Plan
from ir.core.objectives import THROUGHPUT, objective_of
from ir.core.outcomes import TIGHT
from ir.core.topology import Topology
from passes.costs.network import device_classes
from passes.costs.parts import Part
from passes.framework.manager import PassManager
from passes.framework.registry import NO_MESH

MOST_DEVICES = 256
"""Most devices of a topology whose subsets are listed."""
ROWS = 16
"""Subsets that are listed without --rows."""
HELPS = 1.01
"""More devices help if they are at least this many times as fast."""
Progress = Callable[[str, float | None], None]


@dataclass(frozen=True, slots=True)
class PlanOnPart:
    """The plan on some devices. ``devices``: of the topology of this row; ``added``: those that are new; ``kind``: of the plan,
    in words; ``used``: the devices that it uses. ``value``, ``bound``: seconds, inf if nothing fits; a bound of 0: none of all
    plans is known. ``why``: the reason for no plan, or for no search of its own. ``added_type``: number and type of the added
    devices."""

    devices: Part
    kind: str = ""
    value: float = math.inf
    bound: float = 0.0
    used: Part = ()
    added: Part = ()
    added_type: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """``whole``: the row of all devices; ``rows``: of subsets, fewest devices first, and of all; ``more``: with devices added.
    ``left_out``: whether there are more subsets than rows. ``objective``: its name. ``unlinked``: what cannot be added, because
    no links would lead to it."""

    topology: Topology
    objective: str
    whole: PlanOnPart
    rows: tuple[PlanOnPart, ...]
    more: tuple[PlanOnPart, ...]
    left_out: bool
    unlinked: tuple[str, ...] = ()

    def factor(self, row: PlanOnPart) -> float:
        """Speed of a row relative to that of all devices."""
        if row.value == self.whole.value:
            return 1.0
        return self.whole.value / row.value if row.value > 0 else math.inf

    @property
    def answer(self) -> str:
        """One sentence: whether more devices would help, and which present devices do not."""
        sentences = [f"{what} cannot be added: no links would lead to it" for what in self.unlinked]
        sentences += [self._of_more(row) for row in self.more]
        smallest = next((row for row in self.rows if self.factor(row) * HELPS >= 1), None)
        if smallest is not None and smallest is not self.whole and self.whole.value < math.inf:
            names = ", ".join(smallest.devices[:4]) + (" ..." if len(smallest.devices) > 4 else "")
            verb = "is" if len(smallest.devices) == 1 else "are"
            as_fast = "faster than" if self.factor(smallest) >= HELPS else "as fast as"
            sentences.append(f"{names} alone {verb} {as_fast} all {len(self.whole.devices)}")
        text = "; ".join(sentences) or "no device is added, and none of those that are there can be left out without loss"
        return f"{text[0].upper()}{text[1:]}."

    def _of_more(self, row: PlanOnPart) -> str:
        factor = self.factor(row)
        what = row.added_type
        it = "it" if what.startswith("1 ") else "them"
        if row.value == math.inf:
            proven = row.bound == math.inf
            return f"{what} would not help: still no plan fits" if proven else f"{what}: undecided, no plan was found with {it}"
        if self.whole.value == math.inf:
            return f"{what} would help: the model fits then"
        if factor >= HELPS:
            return f"{what} would help: {factor:.2f} times as fast as now"
        best = self.whole.value / row.bound if row.bound > 0 else math.inf
        if best < HELPS:
            return f"{what} would not help: no plan with {it} is faster, which is proven"
        at_most = f", and {best:.2f} times as fast is the most that is possible" if best < math.inf else ""
        return f"{what} would not help as far as was found{at_most}"


@dataclass(slots=True)
class _Search:
    """Plans one model on many topologies. ``plans``: rows with a plan; ``cut``: whether the time limit ended a search before
    its plan was proven optimal."""

    options: CompileOptions
    module: Module
    profiled: bool
    progress: Progress
    plans: list[PlanOnPart] = field(default_factory=list)
    bound: float = 0.0
    cut: bool = False

    @property
    def may_idle(self) -> bool:
        """Whether a plan may leave devices idle; ``--mesh`` with a shape uses all."""
        return self.options.mesh in ("", NO_MESH)

    def row(self, topology: Topology, *, shared: bool = True, sink: DiagnosticSink | None = None) -> PlanOnPart:
        """The plan on a topology. ``shared``: its devices are a subset of those whose bound is known. ``sink``: for warnings of
        the search."""
        devices = tuple(device.name for device in topology.devices)
        fewer = self._best_within(devices)
        if shared and fewer is not None and fewer.value * (1 - TIGHT) <= self.bound:
            return replace(fewer, devices=devices, bound=self.bound, why="no search: fewer devices reach the bound of all")
        self.progress(f"plan for {len(devices)} device{'s' if len(devices) != 1 else ''}", None)
        try:
            plan = self._planned(topology, sink or DiagnosticSink())
        except Infeasible as error:
            row = PlanOnPart(devices, bound=math.inf if error.proven else error.bound, why=error.diagnostics[0].message)
        else:
            used = {name for stage in plan.stages for name in stage.devices}
            of_all = 0.0 if groups_of_bound(plan) else plan.bound
            bound = max(of_all, self.bound) if shared else of_all
            row = PlanOnPart(devices, kind_text(plan), plan.value, bound, tuple(name for name in devices if name in used))
        if fewer is not None and fewer.value < row.value:
            bound = min(row.bound, fewer.value)
            row = replace(fewer, devices=devices, bound=bound)
        self.plans.append(row)
        return row

    def _best_within(self, devices: Part) -> PlanOnPart | None:
        """The best row whose plan uses only these devices."""
        if not self.may_idle:
            return None
        own = set(devices)
        return min((r for r in self.plans if own.issuperset(r.used) and r.used), key=lambda r: r.value, default=None)

    def bounds_parts(self, topology: Topology) -> bool:
        """Whether every plan on a subset of the devices is among the plans that are searched on all of them."""
        if self.options.context is not None:  # batch and groups are chosen anew for each set
            return False
        pipeline = build_pipeline(self.options, profiled=self.profiled)
        meshes = any(getattr(step, "mesh", NO_MESH) != NO_MESH for step in pipeline)
        alike = len(device_classes(topology)) == 1 and not sets_of_devices(pipeline, topology)
        return self.may_idle and (alike or not meshes)

    def _planned(self, topology: Topology, sink: DiagnosticSink) -> Plan:
        if self.options.context is not None:
            return plan_model(self.options, machines=topology, sink=sink).plan
        limit = math.inf if self.options.time_limit is None else self.options.time_limit
        context, pipeline = pass_context(sink, clock=limit), build_pipeline(self.options, profiled=self.profiled)
        module = with_topology(self.module, topology, () if self.profiled else pipeline)
        if self.profiled:
            from dnnc.data.workloads.fitted import fitted

            trains = objective_of(self.options.objective or THROUGHPUT.name).trains
            module, _ = fitted(module, topology, training=trains, sink=DiagnosticSink(), where=self.options.model)
        steps = [step for step in pipeline if step.name not in PROGRAM_PASSES]
        module = PassManager(steps, expanded=True).run(module, context)
        plan = module.first(Plan)
        assert plan is not None
        self.cut |= plan.status != "optimal" and any(counted.get("cut") for counted in context.statistics.values())
        if any(counted.get("interrupted") for counted in context.statistics.values()):
            raise KeyboardInterrupt  # an interrupted search is not comparable with complete ones
        return plan


def what_if(
    options: CompileOptions,
    added: Sequence[tuple[str, int]],
    *,
    rows: int = ROWS,
    sink: DiagnosticSink,
    progress: Progress = lambda label, fraction: None,
) -> WhatIf:
    """Plans on all devices, on at most ``rows`` subsets, and with each of ``added`` (type and number); without ``added``, one
    more device of each type. Raises DnncError as a compile does, except for subsets that no plan fits."""
    _require_own_cores(options.topology)
    topology = machines_of(options.topology, sink, progress)
    if len(topology.devices) > MOST_DEVICES:
        raise UsageError(TooManyDevices(len(topology.devices), MOST_DEVICES), where=options.topology)
    wanted = added or [(name, 1) for name in dict.fromkeys(device.type for device in topology.devices)]
    copied = [(f"{count} more {type_}", *with_more(topology, type_, count)) for type_, count in wanted]
    larger = [one for one in copied if connected(one[1])]
    search = _loaded(replace(options, plan_only=True), topology, sink, progress)
    whole = search.row(topology, shared=False, sink=sink)
    if search.bounds_parts(topology) and not whole.why:
        search.bound = whole.bound
    listed, left_out = _listed(topology, rows)
    planned_rows = tuple(whole if part == whole.devices else _row(search, topology, part) for part in listed)
    best = min((*planned_rows, whole), key=lambda row: row.value)
    if search.may_idle and best.value < whole.value:
        whole_now = replace(best, devices=whole.devices, bound=min(whole.bound, best.value))
        planned_rows = tuple(whole_now if row is whole else row for row in planned_rows)
        whole = whole_now
    more = []
    for text, machines, names in larger:
        row = search.row(machines, shared=False)
        more.append(replace(row, added=names, added_type=text))
    if search.cut:
        warn_of_cut(sink, options.time_limit)
    objective = options.objective or search.options.objective or THROUGHPUT.name
    unlinked = tuple(one[0] for one in copied if one not in larger)
    return WhatIf(topology, objective, whole, planned_rows, tuple(more), left_out, unlinked)


def _require_own_cores(spec: str) -> None:
    """Raises UsageError if workers of a preset share cores, since fewer workers would each be faster."""
    from dnnc.machines.presets import find_preset

    if not spec.startswith("preset:") or is_local(spec):
        return
    preset = find_preset(spec.removeprefix("preset:"))
    if preset.slowdown > 1:
        raise UsageError(CoresShared(preset.workers, preset.cores), where=spec)


def _row(search: _Search, topology: Topology, part: Part) -> PlanOnPart:
    """The row of a subset. Too few devices for the options give a row without a plan."""
    try:
        return search.row(without_others(topology, part))
    except DnncError as error:
        return PlanOnPart(part, why=error.diagnostics[0].message)


def _listed(topology: Topology, rows: int) -> tuple[list[Part], bool]:
    """The subsets of the table, fewest devices first, all devices last; and whether some are left out."""
    every = tuple(device.name for device in topology.devices)
    listed = list(islice((part for part in parts(topology) if part != every), rows))
    return [*listed[: max(0, rows - 1)], every], len(listed) >= rows


def _loaded(options: CompileOptions, topology: Topology, sink: DiagnosticSink, progress: Progress) -> _Search:
    """The search on a model that is read once. Raises what a compile raises."""
    from dnnc.compile.load import load_model
    from dnnc.onnx.model import require_bound
    from passes.graph.folding import expand

    progress("load the model", None)
    imported = load_model(options.model, options.largest, sink, allow_missing_weights=True, limits=options.limits)
    module = expand(imported.module)
    if profiled := is_profiled(options.model, module):
        options = of_profile(options, with_topology(module, topology))
    build_pipeline(options, profiled=profiled)
    require_bound(module, options.model)
    return _Search(options, module, profiled, progress)


def kind_text(plan: Plan) -> str:
    """The kind of a plan in a few words."""
    count, replicas = len(plan.stages), max((stage.replicas for stage in plan.stages), default=1)
    used = {name for stage in plan.stages for name in stage.devices}
    if len(used) == 1:
        return "one device"
    if plan.on_meshes:
        return f"one mesh of {len(used)}" if count == 1 else f"{count} stages on meshes"
    if count == 1:
        return f"{replicas} replicas of the model"
    on = f" on {len(used)} devices" if len(used) < count else ""
    return f"{count} stages{on}" + (", some with replicas" if replicas > 1 else "")


def labels(result: WhatIf) -> Iterator[str]:
    """The devices of each row as text, all of them where the first and the last do not tell rows apart; added ones come
    last."""
    short = Counter(names_text(row.devices) for row in result.rows)
    for row in (*result.rows, *result.more):
        if row.added:
            yield f"all and {row.added_type}"
        elif row.devices == result.whole.devices:
            yield "all"
        else:
            text = names_text(row.devices)
            yield text if short[text] == 1 else ", ".join(row.devices)


def names_text(names: Sequence[str]) -> str:
    """The names if they are few, else the first and the last."""
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} .. {names[-1]} ({len(names)})"
