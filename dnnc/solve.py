"""From a workload file to a split with its proof: what ``dnnc solve`` does.

A workload becomes IR (``frontends.workloads``); a *method*, chosen by objective and split, turns the module into a plan; the
answer is told in the file's own unit. ``METHODS`` lists the methods there are: to add one is to add a line. Nothing here
prints.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from ir.diagnostics import DiagnosticSink, Infeasible, UsageError
from ir.facets import StageSet
from ir.module import Module, Plan, PlanStage
from ir.topology import Topology

__all__ = ["METHODS", "DeviceLoad", "SolveOptions", "SolveResult", "solve_file"]

Progress: TypeAlias = Callable[[str, float | None], None]
DEFAULT_OBJECTIVE = "throughput"


@dataclass(frozen=True, slots=True)
class SolveOptions:
    """What to solve and how. ``accelerators``, ``cpus``, ``memory`` (bytes each), ``bandwidth`` (bytes per second) stand
    over the file's. ``forward``: leave backward nodes out. ``time_limit``: seconds of search, None for the pass's own."""

    file: str
    format: str = ""
    objective: str = DEFAULT_OBJECTIVE
    split: str = "contiguous"
    comm: str = "sum"
    accelerators: int | None = None
    cpus: int | None = None
    memory: int | None = None
    bandwidth: float | None = None
    forward: bool = False
    time_limit: float | None = None


@dataclass(frozen=True, slots=True)
class DeviceLoad:
    """A device and what it does: times in the file's unit, bytes of memory (``limit``: None when unlimited), ids of its nodes,
    sorted. A device without nodes is not used."""

    kind: str
    name: str
    load: float
    compute: float
    transfer: float
    memory: int
    limit: int | None
    nodes: tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class SolveResult:
    """``objective`` and ``bound`` in ``unit``; ``gap`` is objective / bound - 1; ``devices`` in pipeline order, those without
    nodes last, none when there is no plan. ``seconds`` by phase. ``reason``: how the bound was reached."""

    workload: str
    format: str
    unit: str
    kind: str
    split: str
    comm: str
    nodes: int
    objective: float = math.inf
    bound: float = 0.0
    gap: float = math.inf
    status: str = "unknown"
    reason: str = ""
    ideals: int = 0
    transitions: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    devices: tuple[DeviceLoad, ...] = ()
    why: Infeasible | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields of ``dnnc.solve/1``."""
        return {
            "workload": self.workload,
            "format": self.format,
            "unit": self.unit,
            "kind": self.kind,
            "split": self.split,
            "comm": self.comm,
            "objective": self.objective,
            "bound": self.bound,
            "gap": self.gap,
            "status": self.status,
            "reason": self.reason,
            "ideals": self.ideals,
            "transitions": self.transitions,
            "nodes": self.nodes,
            "seconds": self.seconds,
            "devices": [
                {
                    "kind": device.kind,
                    "name": device.name,
                    "load": device.load,
                    "compute": device.compute,
                    "transfer": device.transfer,
                    "memory": device.memory,
                    "limit": device.limit,
                    "nodes": list(device.nodes),
                }
                for device in self.devices
            ],
        }


@dataclass(frozen=True, slots=True)
class Solved:
    """What a method gives: the module with stages and a ``Plan``, and what the search counted."""

    module: Module
    ideals: int = 0
    transitions: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


Method: TypeAlias = Callable[[Module, SolveOptions, Progress], Solved]


def solve_file(
    options: SolveOptions, *, sink: DiagnosticSink, progress: Progress = lambda label, fraction: None
) -> SolveResult:
    """Reads and solves. A workload that no plan fits is an answer: ``status`` is ``infeasible`` (``unknown`` when the search
    ended before that was proven) and ``why`` the error that says what is missing. Raises InvalidInput, UsageError."""
    from dnnc.frontends.workloads import UNIT, Machines, in_unit, read_workload

    started = time.perf_counter()
    method = METHODS.get((options.objective, options.split))
    if method is None:
        known = ", ".join(f"--objective {objective} --split {split}" for objective, split in METHODS)
        raise UsageError(f"no method for --objective {options.objective} --split {options.split}", hint=f"there is {known}")
    progress("read the workload", None)
    machines = Machines(options.accelerators, options.cpus, options.memory, options.bandwidth)
    workload = read_workload(options.file, sink=sink, format=options.format, machines=machines, backward=False)
    _check_machines(workload.module, options)
    if workload.has_backward_nodes and not options.forward:
        raise UsageError(
            f"{options.file} has backward nodes, and {options.objective} is an objective of inference",
            hint="--forward leaves them out",
        )
    read = time.perf_counter()
    result = SolveResult(
        workload=options.file,
        format=workload.format,
        unit=UNIT,
        kind=options.objective,
        split=options.split,
        comm=options.comm,
        nodes=len(workload.module.entry.ops),
    )
    try:
        solved = method(workload.module, options, progress)
    except Infeasible as error:
        return replace(
            result,
            bound=math.inf if error.proven else 0.0,
            status="infeasible" if error.proven else "unknown",
            reason=error.diagnostics[0].message,
            seconds={"read": read - started, "total": time.perf_counter() - started},
            why=error,
        )
    plan = solved.module.first(Plan)
    assert plan is not None, "a method makes a plan"
    return replace(
        result,
        objective=in_unit(plan.value),
        bound=in_unit(plan.bound),
        gap=plan.gap,
        status=plan.status,
        reason=dict(plan.certificate).get("bound", ""),
        ideals=solved.ideals,
        transitions=solved.transitions,
        seconds={"read": read - started, **solved.seconds, "total": time.perf_counter() - started},
        devices=_devices(solved.module, plan),
    )


def _check_machines(module: Module, options: SolveOptions) -> None:
    topology = module.first(Topology)
    if topology is None:
        raise UsageError(
            "the file does not say how many accelerators there are", where=options.file, hint="add --accelerators N"
        )
    if not topology.devices:
        raise UsageError("there is no device to run on", where=options.file, hint="give --accelerators or --cpus above 0")


def _devices(module: Module, plan: Plan) -> tuple[DeviceLoad, ...]:
    """The devices of the topology: those of the stages first, each stage on the first free device of its type."""
    topology = module.first(Topology)
    assert topology is not None
    free: dict[str, list[str]] = {}
    for device in topology.devices:
        free.setdefault(device.type, []).append(device.name)
    nodes: list[list[int | str]] = [[] for _ in plan.stages]
    for op in module.entry.ops:
        for index in op.facet(StageSet, StageSet(())).stages:
            nodes[index].append(op.get("id"))
    used = []
    for stage, ids in zip(plan.stages, nodes, strict=True):
        if ids:
            name = free[stage.device_type].pop(0)
            used.append(_device(stage, plan.comm, name, topology.type(stage.device_type).memory, ids))
    idle = {name for names in free.values() for name in names}
    rest = (device for device in topology.devices if device.name in idle)
    return (*used, *(DeviceLoad(d.type, d.name, 0.0, 0.0, 0.0, 0, topology.memory(d), ()) for d in rest))


def _device(stage: PlanStage, comm: str, name: str, limit: int | None, ids: list[int | str]) -> DeviceLoad:
    from dnnc.frontends.workloads import in_unit
    from dnnc.report import stage_seconds

    return DeviceLoad(
        kind=stage.device_type,
        name=name,
        load=in_unit(stage_seconds(stage, comm)),
        compute=in_unit(stage.compute),
        transfer=in_unit(stage.receive + stage.send),
        memory=stage.memory,
        limit=limit,
        nodes=tuple(sorted(ids, key=lambda id_: (isinstance(id_, str), id_))),
    )


def _contiguous_throughput(module: Module, options: SolveOptions, progress: Progress) -> Solved:
    """The pass ``partition``: exact dynamic programming over ideals."""
    from dnnc.driver import pass_context
    from passes.manager import PassManager
    from passes.partition import PartitionPass

    context = pass_context(DiagnosticSink(), progress)
    solver = PartitionPass(objective=options.objective, comm=options.comm)
    if options.time_limit is not None:
        solver = replace(solver, time_limit=options.time_limit)
    with_plan = PassManager((solver,), verify=False).run(module, context)
    counted = context.statistics["partition"]
    phases = {name: value for name, value in counted.items() if isinstance(value, float)}
    total, build = phases.pop("seconds"), phases.pop("build")
    seconds = {"build": build, **phases, "search": total - build}
    return Solved(with_plan, int(counted["ideals"]), int(counted["transitions"]), seconds)


METHODS: dict[tuple[str, str], Method] = {
    ("throughput", "contiguous"): _contiguous_throughput,
}
"""How to solve, by objective and split."""
