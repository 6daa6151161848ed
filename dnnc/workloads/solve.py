"""``dnnc solve``: reads a workload file and computes a split with its bound.

``dnnc.data.workloads`` turns the workload into IR. A *method* (``dnnc.workloads.methods``), chosen by objective and split,
turns the module into stages and a bound. The result is in the unit of the file. Nothing here prints.
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
from ir.core.outcomes import Outcome
from ir.core.topology import Topology
from passes.solvers.work import within


@dataclass(frozen=True, slots=True)
class DevicePiece:
    """Nodes that an accelerator runs without interruption, under latency: sorted ids; times in the unit of the file."""

    nodes: tuple[int | str, ...]
    start: float
    finish: float


@dataclass(frozen=True, slots=True)
class DeviceLoad:
    """The load of a device: times in the unit of the file, bytes of memory (``limit``: None if unlimited), sorted ids of its
    nodes. A device without nodes is not used. ``stage``: its position in the pipeline, None if not used; several devices of
    one stage are replicas. Under latency, ``pieces`` are in the order in which they run, and all CPUs are one entry, since
    their number is not limited. ``cpu``: its transfers are free and its memory is unlimited."""

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
    """Result of one method: ``objective`` in the unit of the file (inf without a plan), ``ratio`` to that of the exact method;
    ``fits``: whether the memory suffices, None without a plan; ``why``: the limits that the plan breaks, or why there is none.
    A plan that breaks a limit is no plan to ``status``; its objective stands for comparison."""

    method: str
    objective: float
    ratio: float
    split: str
    fits: bool | None
    status: Outcome
    seconds: float
    why: str = ""


@dataclass(frozen=True, slots=True)
class SolveResult:
    """``method``: exact, or a baseline; ``compare``: results of all methods, with --compare; ``boundaries``: transfers of a
    plan with --split any. ``objective`` and ``bound`` in ``unit``; ``gap`` = objective / bound - 1; ``options``: parameters of
    the objective; ``forward``: whether backward nodes were dropped. ``machines``: their number, memory and bandwidth; or the
    ``topology`` (None: that of the workload), whether only the ``bytes`` of transfers count, and whose ``seconds`` the devices
    use. ``devices`` in the order of the pipeline, unused ones last; none without a plan. ``seconds`` by phase (``load``: to
    load the compiled search). ``reason``: how the bound was proven; ``interrupted``: whether Ctrl-C ended the search."""

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
    status: Outcome = "undecided"
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
        """The objective and its parameters, as fields of ``dnnc.solve/1``: a verifier or a timeline needs them beside the
        split."""
        names = ("workload", "machines", "unit", "kind", "split", "comm", "options", "forward")
        return {name: getattr(self, name) for name in names}

    def stages(self) -> list[dict[str, Any]]:
        """Devices and ids of nodes of each stage, in pipeline order."""
        stages: dict[int, dict[str, Any]] = {}
        for device in self.devices:
            if device.stage is not None:
                row = stages.setdefault(device.stage, {"index": device.stage, "devices": [], "ops": list(device.nodes)})
                row["devices"].append(device.name)
        return [stages[index] for index in sorted(stages)]

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
    """Reads a workload and solves it. If no plan fits, that is a result too: ``status`` is ``infeasible``, or ``undecided`` if
    the search ended before this was proven, and ``why`` the error that explains it. Raises InvalidInput, UsageError."""
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
    import_module("passes.stages.lattice.walk_kernels")  # numba takes half a second to load it; that is not search time
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
        status: Outcome = "infeasible" if error.proven else "undecided"
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
    """Results of the exact method and of the others; none if there are no others."""
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
    """Loads of the devices of the topology. Stages come first, in order; each takes the first free devices of its kind.
    ``types``: names of kinds that differ from those in the module."""
    from dnnc.data.workloads import in_unit

    topology = module.first(Topology)
    assert topology is not None
    free: dict[str, list[str]] = {}
    limits: dict[str, int | None] = {}  # equal within a kind
    for device in topology.devices:
        free.setdefault(device.type, []).append(device.name)
        limits[device.type] = topology.memory(device)
    numbered = {kind: tuple(names) for kind, names in free.items()}
    shown = {kind: types.get(kind, kind) for kind in free}
    cpus = {kind for kind, limit in limits.items() if limit is None and topology.type(kind).free_transfers}

    def ids(ops: Sequence[int]) -> tuple[int | str, ...]:
        # The backward pass of a node that states both passes is an op without an id.
        named: list[int | str] = [id_ for v in ops if (id_ := module.entry.ops[v].get("id")) is not None]
        return tuple(sorted(named, key=lambda id_: (isinstance(id_, str), id_)))

    used = []
    for index, stage in enumerate(solved.stages):
        if stage.name:
            free[stage.kind] = [stage.name]  # all devices of the kind are one entry
        # With groups, the device number of a stage determines its group; earlier devices may be unused.
        first = 0 if stage.device is None else free[stage.kind].index(numbered[stage.kind][stage.device])
        for _ in range(stage.replicas):
            used.append(
                DeviceLoad(
                    kind=shown[stage.kind],
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
    return (*used, *(DeviceLoad(shown[d.type], d.name, 0.0, 0.0, 0.0, 0, limits[d.type], (), cpu=d.type in cpus) for d in rest))
