"""The schedule for ``dnnc simulate``: of a build, of a plan without programs, or of a split that ``dnnc solve`` wrote.

A split names a workload and says which of its nodes are on which device. That becomes a plan: stages are the pieces that a
device runs without interruption (``passes.reference.pieces``), ``assign`` gives them devices, ``place`` computes their
costs, ``schedule`` orders them. For PipeDream's objective, the forward and backward pass of each stage are simulated, with
transfers that overlap compute; the averaging of weights is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dnnc.build.snapshot import Snapshot
from dnnc.workloads.faults import (
    BuildWithoutPlan,
    NodeMissing,
    NodesOnUncountedCpus,
    NodeTwice,
    NoMachines,
    NothingToSimulate,
    NotObjects,
    ReplicasDiffer,
    SplitInGroups,
    SplitWithoutWorkload,
    TopologyUnused,
    UnknownNode,
    WrongMachine,
    WrongPieces,
    WrongSplit,
)
from ir.core.diagnostics import DiagnosticSink, InvalidInput, UsageError
from ir.core.limits import LIMITS
from ir.core.module import Module, Plan, Schedule
from ir.core.objectives import PIPEDREAM, TRAINING, objective_of
from ir.core.ops import Op
from ir.core.topology import Topology
from ir.system.files import read_input_text
from ir.text.json_text import parse_json


def scheduled(subject: Path, workload: str, sink: DiagnosticSink, topology: str = "") -> Module:
    """The module, with plan and schedule, of ``subject``: a directory that ``dnnc compile`` wrote, or a file of ``dnnc solve``
    (``--json`` or ``-o``). ``workload`` and ``topology`` replace those that the file names. Raises InvalidInput."""
    if not subject.exists():
        raise InvalidInput(NothingToSimulate(), where=str(subject))
    if not subject.is_file():
        return _of_folder(subject, sink)
    return _with_schedule(_of_split(subject, workload, topology, sink), sink)


def _of_folder(folder: Path, sink: DiagnosticSink) -> Module:
    from dnnc.build.build import Build
    from dnnc.build.snapshot import ONNXRUNTIME
    from passes.graph.folding import expand

    files = Snapshot.open(folder)
    if files.engine == ONNXRUNTIME:
        return Build.of(files).program()
    return _with_schedule(expand(written_plan(files)), sink)


def written_plan(files: Snapshot) -> Module:
    """The module of a build's ``plan.ir``. Raises InvalidInput if it has no plan."""
    from dnnc.build.build import PROGRAM, read_program

    module = read_program(files)
    if module.first(Plan) is None:
        raise InvalidInput(BuildWithoutPlan(), where=files.where(PROGRAM))
    return module


def _with_schedule(module: Module, sink: DiagnosticSink) -> Module:
    """The module with all that a timeline needs: the schedule, and the collectives of stages on meshes."""
    from dnnc.compile.context import pass_context
    from passes.framework.manager import PassManager
    from passes.framework.pipeline import parse_pipeline

    plan = module.first(Plan)
    missing = [] if module.first(Schedule) is not None else ["schedule"]
    if plan is not None and not plan.in_steps and plan.on_meshes:
        missing.append("lower")
    return PassManager(parse_pipeline(",".join(missing))).run(module, pass_context(sink)) if missing else module


def _of_split(path: Path, workload: str, topology_file: str, sink: DiagnosticSink) -> Module:
    """The placed plan of a split."""
    from dnnc.compile.context import pass_context
    from passes.costs.network import network
    from passes.framework.manager import PassManager
    from passes.framework.pipeline import parse_pipeline
    from passes.partition.replay.assign import AssignPass
    from passes.reference.pieces import pieces
    from passes.stages.from_ir import problem_of

    claimed = parse_json(read_input_text(path, "a split of 'dnnc solve'", LIMITS.text_bytes), str(path))
    stated = _stated(claimed, path)
    objective = objective_of(str(stated["kind"]), str(path))
    module = _workload(stated, path, workload, topology_file, objective.trains, sink)
    topology = module.first(Topology)
    assert topology is not None, "machines are stated"
    rows = _rows(claimed, stated, path, topology)
    sets = _positions(module.entry.ops, [nodes for _, nodes in rows], path)
    parts = pieces(problem_of(module, topology, network(topology)), sets)
    stated_plan = AssignPass(
        ops=tuple(f"{index}:{module.entry.ops[v].id[1:]}" for index, (_, ops) in enumerate(parts) for v in ops),
        devices=tuple(f"{index}:{name}" for index, (owner, _) in enumerate(parts) for name in rows[owner][0]),
        objective=(TRAINING if objective.trains else objective).name,
        comm="duplex" if objective is PIPEDREAM else str(stated.get("comm", "sum")),
        source=str(path),
    )
    return PassManager((stated_plan, *parse_pipeline("place"))).run(module, pass_context(sink))


def _stated(claimed: Any, path: Path) -> Mapping[str, Any]:
    """The objective and workload that the split states. Raises InvalidInput if a field that a timeline needs is missing."""
    stated = claimed.get("dnnc", claimed) if isinstance(claimed, dict) else None
    if not isinstance(stated, dict) or not all(isinstance(stated.get(key), str) for key in ("kind", "workload")):
        raise InvalidInput(SplitWithoutWorkload(), where=str(path))
    if not isinstance(stated.get("machines"), dict) or not isinstance(stated.get("options", {}), dict):
        raise InvalidInput(NotObjects(), where=str(path))
    if stated.get("options", {}).get("hierarchy"):
        raise InvalidInput(SplitInGroups(), where=str(path))
    return stated


def _workload(
    stated: Mapping[str, Any], path: Path, workload: str, topology_file: str, training: bool, sink: DiagnosticSink
) -> Module:
    """The workload on the machines of the split. ``topology_file`` replaces the topology that the split names."""
    from dnnc.data.workloads import Machines, lower, read_profile
    from dnnc.data.workloads.fitted import fitted
    from dnnc.data.workloads.profile import MOST_BYTES, MOST_DEVICES

    file = Path(workload or stated["workload"])
    if not workload and not file.exists():
        file = path.parent / file
    if "topology" in stated["machines"]:
        return _on_topology(stated["machines"], path, str(file), topology_file, training, sink)
    if topology_file:
        raise UsageError(TopologyUnused(), where=str(path))
    machines = {key: value for key, value in stated["machines"].items() if value is not None}
    most = {"accelerators": MOST_DEVICES, "cpus": MOST_DEVICES, "memory": MOST_BYTES, "bandwidth": MOST_BYTES}
    for key, value in machines.items():
        whole = isinstance(value, int) or (key == "bandwidth" and isinstance(value, float))
        if key not in most or not whole or isinstance(value, bool) or not 0 <= value <= most[key]:
            raise InvalidInput(WrongMachine(key, str(value)[:40]), where=str(path))
    module = lower(read_profile(file, sink=sink), Machines(**machines), backward=training, sink=DiagnosticSink())
    topology = module.first(Topology)
    if topology is None or not topology.devices or machines.get("bandwidth") == 0:
        raise InvalidInput(NoMachines(), where=str(path))
    return fitted(module, topology, training=training, sink=DiagnosticSink(), where=str(file))[0]


def _on_topology(
    machines: Mapping[str, Any], path: Path, file: str, topology: str, training: bool, sink: DiagnosticSink
) -> Module:
    """The workload on the devices of the topology that is given, or that the split names."""
    from dnnc.workloads.profiled import on_topology, read_workload

    spec = topology or machines.get("topology") or ""
    if not isinstance(spec, str):
        raise InvalidInput(WrongMachine("topology", str(spec)[:40]), where=str(path))
    by_bytes = machines.get("bytes") is True
    module = read_workload(file, sink)
    quiet = DiagnosticSink()  # dnnc solve warned of what is left out
    return on_topology(module, spec, training=training, by_bytes=by_bytes, sink=quiet, where=file, root=path.parent)[0]


def _rows(
    claimed: Mapping[str, Any], stated: Mapping[str, Any], path: Path, topology: Topology
) -> list[tuple[list[str], Sequence[int | str]]]:
    """Devices and nodes of each stage; replicas are several devices of one. Raises InvalidInput."""
    from dnnc.data.workloads.profile import MOST_DEVICES
    from dnnc.workloads.verify_plan.claims import claims_of
    from dnnc.workloads.verify_plan.numbers import Malformed

    named = "topology" in stated["machines"]
    types = {device.name: device.type for device in topology.devices}
    try:
        devices, _ = claims_of(claimed, types if named else None)
    except Malformed as error:
        raise InvalidInput(WrongSplit(str(error)), where=str(path)) from None
    alone = objective_of(str(stated["kind"])).alone
    of_kind: dict[str, list[str]] = {device.kind: [] for device in devices}
    for name, type_ in types.items():
        of_kind.setdefault(type_, []).append(name)
    cpus = {type_.name for type_ in topology.types if type_.free_transfers and type_.memory is None}
    if alone and any(device.kind in cpus and device.name not in types and device.nodes for device in devices):
        raise InvalidInput(NodesOnUncountedCpus(), where=str(path))
    pieces_of = stated.get("options", {}).get("pieces", 1) if alone and "devices" not in claimed else 1
    if not isinstance(pieces_of, int) or not 1 <= pieces_of <= MOST_DEVICES:
        raise InvalidInput(WrongPieces(), where=str(path))
    rows: dict[object, tuple[list[str], Sequence[int | str]]] = {}
    for number, device in enumerate(device for device in devices if device.nodes):
        if device.name in of_kind[device.kind]:
            name = device.name
        else:
            numbered = device.name.partition("[")[2].rstrip("]")  # a row of the reference's format has a number
            place = int(numbered) // pieces_of if numbered.isdecimal() and "devices" not in claimed else len(topology.devices)
            name = of_kind[device.kind][place] if place < len(of_kind[device.kind]) else device.name
        key = (device.kind, device.stage) if isinstance(device.stage, int) else number
        names, nodes = rows.setdefault(key, ([], device.nodes))
        if name not in names:
            names.append(name)
        if nodes is not device.nodes and sorted(map(str, nodes)) != sorted(map(str, device.nodes)):
            raise InvalidInput(ReplicasDiffer(name, names[0]), where=str(path))
    return list(rows.values())


def _positions(ops: Sequence[Op], rows: Iterable[Sequence[int | str]], path: Path) -> list[list[int]]:
    """Positions of the ops of each row. A backward op that the file does not list goes with the ops of its colour."""
    from ir.core.facets import Color

    place = {op.get("id"): v for v, op in enumerate(ops) if op.get("id") is not None}
    mates: dict[int, list[int]] = {}
    for v, op in enumerate(ops):
        color = op.facet(Color)
        if op.get("id") is None and color is not None:
            mates.setdefault(color.color, []).append(v)
    sets, seen = [], set()
    for row in rows:
        found = set()
        for id_ in row:
            if id_ not in place or place[id_] in seen:
                node = str(id_)
                raise InvalidInput(NodeTwice(node) if id_ in place else UnknownNode(node), where=str(path))
            seen.add(place[id_])
            color = ops[place[id_]].facet(Color)
            found |= {place[id_], *(mates.get(color.color, ()) if color is not None else ())}
        sets.append(sorted(found))
    if missing := [id_ for id_, v in place.items() if v not in seen]:
        raise InvalidInput(NodeMissing(str(missing[0])), where=str(path))
    return sets
