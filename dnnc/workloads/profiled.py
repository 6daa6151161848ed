"""Reads a profiled workload and its machines, for ``dnnc solve`` and ``dnnc simulate``.

The machines are the accelerators and CPUs that the file states, or the devices of a topology; a workload in IR text may contain
its own topology. On a topology the port model holds (``passes.costs.network``): each device pays for what it sends and receives
over its fastest route, whatever the other end is, and there is no cost of handing over between stages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dnnc.workloads.faults import (
    AcceleratorsUnknown,
    BackwardNodesInInference,
    BytesWithoutTopology,
    CompareWithMethod,
    DevicesUnknown,
    ExpertUnused,
    ForwardOfTraining,
    GroupBandwidthMissing,
    GroupBandwidthsSwapped,
    GroupsDisagree,
    GroupsWithBaselines,
    GroupsWithCpus,
    IdTwice,
    InnerBandwidthWithoutGroups,
    MachinesWithTopology,
    NoDevices,
    NoMethod,
    NotAWorkload,
    ObjectiveNotOnTopology,
)
from dnnc.workloads.methods import EXACT, EXPERT, METHODS, SolveOptions
from ir.core.attributes import attributes
from ir.core.diagnostics import DiagnosticSink, InvalidInput, UsageError
from ir.core.facets import Direction, Time
from ir.core.module import Module
from ir.core.objectives import PIPEDREAM, THROUGHPUT, TRAINING, Planned, names, objective_of, offered
from ir.core.topology import DeviceType, Topology

if TYPE_CHECKING:
    from dnnc.data.workloads import Profile


@dataclass(frozen=True, slots=True)
class WorkloadOnMachines:
    """``module``: the workload with its topology; ``types``: names in the topology for the device types of the module, empty
    for the machines of the file; ``options``: completed for these machines; ``machines``: their description in a result."""

    module: Module
    types: Mapping[str, str]
    objective: str
    options: SolveOptions
    format: str
    machines: dict[str, Any]


def read_problem(options: SolveOptions, sink: DiagnosticSink) -> WorkloadOnMachines:
    """The workload of a file on the machines that the options name. Raises InvalidInput, UsageError."""
    from_topology = bool(options.topology) or (is_text(options.file) and not options.format)
    if options.by_bytes and not from_topology:
        raise UsageError(BytesWithoutTopology())
    read = _read_on_topology(options, sink) if from_topology else _read_on_own(options, sink)
    _check_machines(read.module, options)
    return read


def _read_on_own(options: SolveOptions, sink: DiagnosticSink) -> WorkloadOnMachines:
    """The workload on the accelerators and CPUs that its file and the options state."""
    from dnnc.data.workloads import Machines, lower, read_profile

    profile = read_profile(options.file, sink=sink, format=options.format)
    objective = options.objective or _suggested(profile, options)
    _check(options, objective, profile.has_backward_nodes)
    if options.hierarchy is not None or options.inner_bandwidth is not None:
        options = _in_groups(options, profile)
    inside = options.bandwidth if options.hierarchy is None else options.inner_bandwidth
    machines = Machines(options.accelerators, options.cpus, options.memory, inside)
    inference = options.forward or not objective_of(objective).trains
    module = lower(profile, machines, backward=not inference, sink=sink)
    return WorkloadOnMachines(module, {}, objective, options, profile.format, asdict(machines.over(profile.machines)))


def _read_on_topology(options: SolveOptions, sink: DiagnosticSink) -> WorkloadOnMachines:
    """The workload on the devices of a topology: that of ``options``, or the one in the IR text of the workload."""
    from dnnc.data.workloads.fitted import has_backward

    own = {
        "--accelerators": options.accelerators,
        "--cpus": options.cpus,
        "--memory": options.memory,
        "--bandwidth": options.bandwidth,
        "--hierarchy": options.hierarchy,
        "--inner-bandwidth": options.inner_bandwidth,
    }
    where, by_bytes = options.file, options.by_bytes
    if flags := tuple(flag for flag, value in own.items() if value is not None):
        raise UsageError(MachinesWithTopology(flags), where=options.topology or where)
    known = offered(Planned.PROFILE)
    if options.objective and objective_of(options.objective) not in known:
        raise UsageError(ObjectiveNotOnTopology(options.objective, names(known)), where=options.topology or where)
    module = read_workload(where, sink, options.format)
    suggested = TRAINING if has_backward(module) and not options.forward else THROUGHPUT
    objective = options.objective or suggested.name
    _check(options, objective, has_backward_nodes(module))
    trains = objective_of(objective).trains
    if trains and options.forward:
        raise UsageError(ForwardOfTraining(objective))
    module, note = on_topology(module, options.topology, training=trains, by_bytes=by_bytes, sink=sink, where=where)
    machines = {"topology": options.topology or None, "bytes": by_bytes, "seconds": note}
    text = is_text(where) and not options.format
    format_ = "ir" if text else str(dict(module.attributes)["producer"].value)
    return WorkloadOnMachines(*in_kinds(module), objective, options, format_, machines)


def _check(options: SolveOptions, objective: str, backward_nodes: bool) -> None:
    """Raises UsageError for options that contradict each other, and for inference with backward nodes."""
    if (objective, options.split) not in METHODS:
        methods = tuple(f"--objective {kind} --split {split}" for kind, split in METHODS)
        raise UsageError(NoMethod(objective, options.split, methods))
    if options.compare and options.method != EXACT:
        raise UsageError(CompareWithMethod())
    if options.expert and not options.compare and options.method != EXPERT:
        raise UsageError(ExpertUnused())
    if not objective_of(objective).trains and backward_nodes and not options.forward:
        raise UsageError(BackwardNodesInInference(options.file, objective))


def _suggested(profile: Profile, options: SolveOptions) -> str:
    """The objective if none is named: pipedream for its profiles, training if there are backward nodes, else throughput."""
    from dnnc.data.workloads import PIPEDREAM as FORMAT

    if options.forward:
        return THROUGHPUT.name
    if profile.format == FORMAT:
        return PIPEDREAM.name
    return (TRAINING if profile.has_backward_nodes else THROUGHPUT).name


def _in_groups(options: SolveOptions, profile: Profile) -> SolveOptions:
    """The options completed for groups of accelerators. Raises UsageError for options that are missing or contradict them."""
    if options.hierarchy is None:
        raise UsageError(InnerBandwidthWithoutGroups())
    count = options.hierarchy[0] * options.hierarchy[1]
    if options.accelerators is not None and options.accelerators != count:
        raise UsageError(GroupsDisagree(count, options.accelerators))
    if options.cpus:
        raise UsageError(GroupsWithCpus())
    if options.compare or options.method != EXACT:
        raise UsageError(GroupsWithBaselines())
    between = options.bandwidth or profile.machines.bandwidth
    if between is None or options.inner_bandwidth is None:
        raise UsageError(GroupBandwidthMissing("--bandwidth" if between is None else "--inner-bandwidth"))
    if between > options.inner_bandwidth:
        raise UsageError(GroupBandwidthsSwapped(options.inner_bandwidth, between))
    return replace(options, accelerators=count, cpus=0, bandwidth=between)


def _check_machines(module: Module, options: SolveOptions) -> None:
    topology = module.first(Topology)
    if topology is None:
        raise UsageError(AcceleratorsUnknown(), where=options.file)
    if not topology.devices:
        raise UsageError(NoDevices(), where=options.file)


def is_text(file: str | Path) -> bool:
    """Whether a workload is IR text, by the suffix of its path."""
    return Path(file).suffix == ".ir"


def read_workload(file: str, sink: DiagnosticSink, format: str = "") -> Module:
    """The workload of a file in any of the three formats; every node has an ``id``. Raises InvalidInput, UsageError."""
    from dnnc.data.workloads import Machines, lower, read_profile
    from dnnc.data.workloads.fitted import is_profile
    from dnnc.onnx import DIALECTS
    from ir import load_module, read_text
    from passes.graph.folding import expand

    if format or not is_text(file):
        return lower(read_profile(file, sink=sink, format=format), Machines(), backward=True, sink=sink)
    module = expand(load_module(read_text(file), file, dialects=DIALECTS))
    if not is_profile(module):
        raise InvalidInput(NotAWorkload(), where=file)
    return _with_ids(module, file)


def has_backward_nodes(module: Module) -> bool:
    """Whether some nodes of the workload are backward passes of others."""
    return any(op.facet(Direction) == Direction("bw") for op in module.entry.ops)


def on_topology(
    module: Module, spec: str, *, training: bool, by_bytes: bool, sink: DiagnosticSink, where: str, root: Path | None = None
) -> tuple[Module, str]:
    """The workload on the topology that ``spec`` names (empty: its own), and a sentence on whose seconds the devices use.
    ``root``: a folder in which a file that is not found is looked for. Raises InvalidInput, UsageError."""
    from dnnc.compile.context import with_topology
    from dnnc.data.workloads.fitted import fitted
    from dnnc.machines import machines_of

    if spec:
        if root is not None and not spec.startswith("preset:") and not Path(spec).exists():
            spec = str(root / spec)
        module = with_topology(module, machines_of(spec, sink))
    topology = module.first(Topology)
    if topology is None:
        raise UsageError(DevicesUnknown(), where=where)
    return fitted(module, topology, training=training, sink=sink, where=where, by_bytes=by_bytes)


def in_kinds(module: Module) -> tuple[Module, dict[str, str]]:
    """The module with one device type per kind of interchangeable devices, without hand-over cost; and the original type of
    each. So the type of a stage determines the devices that it may run on."""
    from passes.costs.network import network
    from passes.stages.from_ir import kinds_of

    topology = module.first(Topology)
    assert topology is not None, "a workload on a topology"
    kinds = kinds_of(topology, network(topology))
    types: list[DeviceType] = []
    home: dict[str, str] = {}
    was: dict[str, str] = {}
    for kind in kinds:
        alone = sum(other.type == kind.type for other in kinds) == 1
        name = kind.type if alone else f"{kind.type} like {kind.devices[0]}"
        types.append(replace(topology.type(kind.type), name=name, handover=0.0))
        home |= dict.fromkeys(kind.devices, name)
        was[name] = kind.type
    devices = tuple(replace(device, type=home[device.name]) for device in topology.devices)
    module = module.replace(topology, replace(topology, types=tuple(types), devices=devices))
    ops = []
    for op in module.entry.ops:
        time = op.facet(Time)
        stated = () if time is None else time.seconds
        told = sorted((f"@{name}", seconds) for old, seconds in stated for name, type_ in was.items() if type_ == old[1:])
        ops.append(op.with_facets(Time(tuple(told))))
    return module.replace(module.entry, replace(module.entry, ops=tuple(ops))), was


def _with_ids(module: Module, where: str) -> Module:
    """The module with an id for every node; a node without one gets the name of its value."""
    ops, seen = [], set()
    for op in module.entry.ops:
        id_ = op.get("id", op.id[1:])
        if id_ in seen:
            raise InvalidInput(IdTwice(str(id_)), where=f"{where}: {op.id}")
        seen.add(id_)
        more = () if op.get("id") is not None else attributes(id=id_)
        ops.append(replace(op, attributes=tuple(sorted((*op.attributes, *more)))))
    return module.replace(module.entry, replace(module.entry, ops=tuple(ops)))
