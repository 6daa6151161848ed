"""From a workload file to a split with its proof: what ``dnnc solve`` does.

A workload becomes IR (``frontends.workloads``); a *method* (``dnnc.workloads.methods``), chosen by objective and split, turns
the module into stages and a bound; the answer is told in the file's own unit. Nothing here prints.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from typing import Any

from dnnc.workloads.methods import (
    EXACT,
    METHODS,
    Boundaries,
    MethodResult,
    Progress,
    Solved,
    SolveOptions,
    baseline,
    compare_all,
)
from dnnc.workloads.profiled import read_problem
from ir.core.diagnostics import DiagnosticSink, Infeasible
from ir.core.module import Module
from ir.core.topology import Topology
from passes.model.work import within

__all__ = ["Compared", "DeviceLoad", "DevicePiece", "SolveOptions", "SolveResult", "solve_file"]


@dataclass(frozen=True, slots=True)
class DevicePiece:
    """What an accelerator runs at one go, under latency: ids of its nodes, sorted; times in the file's unit."""

    nodes: tuple[int | str, ...]
    start: float
    finish: float


@dataclass(frozen=True, slots=True)
class DeviceLoad:
    """A device and what it does: times in the file's unit, bytes of memory (``limit``: None when unlimited), ids of its nodes,
    sorted. A device without nodes is not used. ``stage``: its place in the pipeline, None when unused; several devices of
    one stage are replicas. Of latency: ``pieces`` in their order; and all CPUs are one entry, as their number is no limit.
    ``cpu``: it pays nothing for transfers and has no limit."""

    kind: str
    name: str
    load: float
    compute: float
    transfer: float
    memory: int
    limit: int | None
    nodes: tuple[int | str, ...]
    stage: int | None = None
    pieces: tuple[DevicePiece, ...] = ()
    cpu: bool = False


@dataclass(frozen=True, slots=True)
class Compared:
    """A method beside the others: ``objective`` in the file's unit (inf without a plan), ``ratio`` to that of the exact method;
    ``fits``: its memory, None without a plan; ``status``: optimal, feasible, ``unfit`` (it breaks a limit), unknown or
    infeasible (no plan); ``why``: what keeps it from being feasible."""

    method: str
    objective: float
    ratio: float
    split: str
    fits: bool | None
    status: str
    seconds: float
    why: str = ""


@dataclass(frozen=True, slots=True)
class SolveResult:
    """``method``: exact, or a baseline; ``compare``: every method, where asked for; ``boundaries``: of any split, what it costs
    to run. ``objective`` and ``bound`` in ``unit``; ``gap`` is objective / bound - 1; ``options``: what else defines the
    objective; ``forward``: backward nodes were left out, as asked; ``machines``: how many there are, and of what memory and
    bandwidth; or the ``topology`` (None: the workload's own), whether transfers count by their ``bytes`` alone, and whose
    ``seconds`` the devices have. ``devices`` in pipeline order, those without nodes last, none when there is no plan.
    ``seconds`` by phase (``load``: of the compiled search). ``reason``: how the bound was reached; ``interrupted``: the
    search was, from the keyboard."""

    workload: str
    format: str
    unit: str
    kind: str
    split: str
    comm: str
    nodes: int
    options: dict[str, Any] = field(default_factory=dict)
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
    method: str = EXACT
    compare: tuple[Compared, ...] = ()
    boundaries: Boundaries | None = None
    interrupted: bool = False
    forward: bool = False
    machines: dict[str, Any] = field(default_factory=dict)

    def statement(self) -> dict[str, Any]:
        """What was minimised and of what, in fields of ``dnnc.solve/1``: what a verifier or a timeline needs
        besides."""
        names = ("workload", "machines", "unit", "kind", "split", "comm", "options", "forward")
        return {name: getattr(self, name) for name in names}

    def stages(self) -> list[dict[str, Any]]:
        """Devices and ids of nodes of each stage, in pipeline order."""
        found: dict[int, dict[str, Any]] = {}
        for device in self.devices:
            if device.stage is not None:
                row = found.setdefault(device.stage, {"index": device.stage, "devices": [], "ops": list(device.nodes)})
                row["devices"].append(device.name)
        return [found[index] for index in sorted(found)]

    def to_json(self) -> dict[str, Any]:
        """The fields of ``dnnc.solve/1``."""
        return {
            "format": self.format,
            **self.statement(),
            "method": self.method,
            "objective": self.objective,
            "bound": self.bound,
            "gap": self.gap,
            "status": self.status,
            "reason": self.reason,
            "interrupted": self.interrupted,
            "ideals": self.ideals,
            "transitions": self.transitions,
            "nodes": self.nodes,
            "seconds": self.seconds,
            "stages": self.stages(),
            "devices": [
                {
                    "kind": device.kind,
                    "name": device.name,
                    "load": device.load,
                    "compute": device.compute,
                    "transfer": device.transfer,
                    "memory": device.memory,
                    "limit": device.limit,
                    "stage": device.stage,
                    "nodes": list(device.nodes),
                    **({"pieces": [asdict(piece) for piece in device.pieces]} if device.pieces else {}),
                }
                for device in self.devices
            ],
            **({"compare": [asdict(row) for row in self.compare]} if self.compare else {}),
            **({"boundaries": asdict(self.boundaries)} if self.boundaries is not None else {}),
        }


def solve_file(
    options: SolveOptions, *, sink: DiagnosticSink, progress: Progress = lambda label, fraction: None
) -> SolveResult:
    """Reads and solves. A workload that no plan fits is an answer: ``status`` is ``infeasible`` (``unknown`` when the search
    ended before that was proven) and ``why`` the error that says what is missing. Raises InvalidInput, UsageError."""
    from dnnc.compile.options import check_time_limit, warn_of_cut
    from dnnc.data.workloads import UNIT, in_unit

    check_time_limit(options.time_limit)
    started = time.perf_counter()
    progress("read the workload", None)
    read = read_problem(options, sink)
    module, objective, options = read.module, read.objective, read.options
    method = METHODS[objective, options.split]
    ended = time.perf_counter()
    result = SolveResult(
        workload=options.file,
        format=read.format,
        unit=UNIT,
        kind=objective,
        split=options.split,
        comm=options.comm,
        nodes=len(module.entry.ops),
        method=options.method,
        forward=options.forward,
        machines=read.machines,
    )
    progress("load the search", None)
    import_module("passes.model.stages.lattice.walk_kernels")  # half a second, of numba: no part of any search
    loaded = time.perf_counter()
    asked = options.time_limit
    rows = compare_all(module, objective, options, progress) if options.compare else ()
    if rows and options.time_limit is not None:
        left = options.time_limit - (time.perf_counter() - loaded)
        options = replace(options, time_limit=max(options.time_limit / 2, left))
    try:
        with within(options.time_limit) as limit:
            solved = (
                method(module, options, progress) if options.method == EXACT else baseline(module, objective, options, progress)
            )
        if limit.cut and solved.status != "optimal":
            warn_of_cut(sink, asked)
    except Infeasible as error:
        status = "infeasible" if error.proven else "unknown"
        exact = MethodResult(EXACT, math.inf, options.split, None, status, 0.0, error.diagnostics[0].message)
        return replace(
            result,
            compare=_compared(exact, rows),
            bound=math.inf if error.proven else 0.0,
            status=status,
            reason=error.diagnostics[0].message,
            seconds={"read": ended - started, "total": time.perf_counter() - started},
            why=error,
        )
    exact = MethodResult(EXACT, solved.value, options.split, True, solved.status, solved.seconds.get("search", 0.0))
    return replace(
        result,
        compare=_compared(exact, rows),
        split=solved.split or options.split,
        options=solved.options,
        objective=in_unit(solved.value),
        bound=in_unit(solved.bound),
        gap=solved.value / solved.bound - 1 if solved.bound > 0 else 0.0 if solved.value == 0 else math.inf,
        status=solved.status,
        reason=f"{solved.reason}; interrupted" if solved.interrupted else solved.reason,
        interrupted=solved.interrupted,
        ideals=solved.ideals,
        transitions=solved.transitions,
        seconds={"read": ended - started, "load": loaded - ended, **solved.seconds, "total": time.perf_counter() - started},
        devices=_devices(module, solved, read.types),
        boundaries=_in_unit(solved.boundaries),
    )


def _in_unit(boundaries: Boundaries | None) -> Boundaries | None:
    from dnnc.data.workloads import in_unit

    if boundaries is None or boundaries.contiguous is None:
        return boundaries
    return replace(boundaries, contiguous=in_unit(boundaries.contiguous))


def _compared(exact: MethodResult, rows: tuple[MethodResult, ...]) -> tuple[Compared, ...]:
    """The exact method and the others, none when there are no others."""
    from dnnc.data.workloads import in_unit

    return tuple(
        Compared(
            row.method,
            in_unit(row.value),
            row.value / exact.value if 0 < exact.value < math.inf else 1.0 if row.value == exact.value else math.inf,
            row.split,
            row.fits,
            row.status,
            row.seconds,
            row.why,
        )
        for row in ((exact, *rows) if rows else ())
    )


def _devices(module: Module, solved: Solved, types: Mapping[str, str]) -> tuple[DeviceLoad, ...]:
    """The devices of the topology: those of the stages first, each stage on the first free devices of its kind. ``types``: what
    a kind is called, where not as in the module."""
    from dnnc.data.workloads import in_unit

    topology = module.first(Topology)
    assert topology is not None
    free: dict[str, list[str]] = {}
    limits: dict[str, int | None] = {}  # equal within a kind
    for device in topology.devices:
        free.setdefault(device.type, []).append(device.name)
        limits[device.type] = topology.memory(device)
    numbered = {kind: tuple(names) for kind, names in free.items()}
    told = {kind: types.get(kind, kind) for kind in free}
    cpus = {kind for kind, limit in limits.items() if limit is None and topology.type(kind).free_transfers}

    def ids(ops: Sequence[int]) -> tuple[int | str, ...]:
        # The backward pass that a node states besides its own seconds is an op without an id.
        found: list[int | str] = [id_ for v in ops if (id_ := module.entry.ops[v].get("id")) is not None]
        return tuple(sorted(found, key=lambda id_: (isinstance(id_, str), id_)))

    used = []
    for index, stage in enumerate(solved.stages):
        if stage.name:
            free[stage.kind] = [stage.name]  # the whole kind at once
        # Where devices stand in groups the number of a stage says in which; devices before it may be left out.
        first = 0 if stage.device is None else free[stage.kind].index(numbered[stage.kind][stage.device])
        for _ in range(stage.replicas):
            used.append(
                DeviceLoad(
                    kind=told[stage.kind],
                    name=free[stage.kind].pop(first),
                    load=in_unit(stage.load),
                    compute=in_unit(stage.compute),
                    transfer=in_unit(stage.transfer),
                    memory=stage.memory,
                    limit=limits[stage.kind],
                    nodes=ids(stage.ops),
                    stage=index if stage.device is None else stage.device,
                    pieces=tuple(
                        DevicePiece(ids(piece.ops), in_unit(piece.start), in_unit(piece.finish)) for piece in stage.pieces
                    ),
                    cpu=stage.kind in cpus,
                )
            )
    idle = {name for names in free.values() for name in names}
    rest = (device for device in topology.devices if device.name in idle)
    return (*used, *(DeviceLoad(told[d.type], d.name, 0.0, 0.0, 0.0, 0, limits[d.type], (), cpu=d.type in cpus) for d in rest))
