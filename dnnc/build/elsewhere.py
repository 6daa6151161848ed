"""Refuses builds and topologies that are for other machines than this one.

A plan cannot say which host this machine is, nor how fast its CPUs are: a plan for one host of CPUs is taken to be for this
one. Refused are plans whose devices are on another number of hosts than take part, and plans for devices that nothing here
runs: types that are no CPU and name no execution provider, and in training, whose ranks run on CPUs, all types that are no CPU.
"""

from __future__ import annotations

from collections.abc import Iterator

from dnnc.build.build import outline
from dnnc.build.faults import EmulatedRun, NoCpu, NoProvider, OtherHosts, SeveralHosts, TrainingNeedsCpu
from dnnc.build.snapshot import Snapshot
from ir.core.diagnostics import Diagnostic, InvalidInput, UsageError
from ir.core.module import Plan
from ir.core.topology import Topology
from passes.graph.graph import listing


def require_here(files: Snapshot, *, hosts: int | None = 1, trains: bool = False, emulate: bool = False) -> None:
    """Raises InvalidInput that names the machines which the build needs and the ``hosts`` that take part are not (None: as many
    as it needs); with ``emulate`` it raises nothing."""
    faults = [] if emulate else list(_missing(files, hosts, trains))
    if faults:
        raise InvalidInput(faults)


def device_hosts(files: Snapshot) -> dict[str, str]:
    """The host of each device of the build's topology."""
    topology = outline(files).first(Topology)
    return {} if topology is None else {device.name: device.host for device in topology.devices}


def host_addresses(files: Snapshot) -> dict[str, str]:
    """The address of each host of the build's topology; empty where none is stated."""
    topology = outline(files).first(Topology)
    return {} if topology is None else {host.name: host.address for host in topology.hosts}


def require_one_host(topology: Topology, where: str, *, emulate: bool = False) -> None:
    """Raises InvalidInput for a topology without CPUs, or with CPUs on several hosts: one machine is measured."""
    cpus = {type_.name for type_ in topology.types if type_.on_cores}
    hosts = sorted({device.host for device in topology.devices if device.type in cpus})
    if not hosts:
        raise InvalidInput(NoCpu(), where=where)
    if len(hosts) > 1 and not emulate:
        raise InvalidInput(SeveralHosts(len(hosts), listing(hosts)), where=where)


def require_row(files: Snapshot, *, hosts: int = 1, trains: bool = False, emulate: bool = False) -> None:
    """Raises UsageError where a build for other machines is emulated: its seconds are not recorded in ``--runs``."""
    if emulate and any(_missing(files, hosts, trains)):
        raise UsageError(EmulatedRun(), where="--runs")


def _missing(files: Snapshot, hosts: int | None, trains: bool) -> Iterator[Diagnostic]:
    where, module = str(files.folder), outline(files)
    topology, plan = module.first(Topology), module.first(Plan)
    if topology is None or plan is None:
        return
    used = dict.fromkeys(device for stage in plan.stages for device in stage.devices)
    names = sorted({topology.device(device).host for device in used})
    if hosts is not None and len(names) != hosts:
        needed = f"{len(names)} hosts, {listing(names)}" if len(names) > 1 else "one host"
        present = "one machine" if hosts == 1 else f"{hosts}"
        advice = f"run 'dnnc train' on each of them with --nodes {len(names)}; " if len(names) > 1 else "leave out --nodes; "
        advice = advice if trains else "--cluster HOST:PORT runs it on the nodes of a Ray cluster; " if len(names) > 1 else ""
        yield OtherHosts(needed, present, advice).at(where)
    for type_ in sorted((type_ for type_ in topology.types if type_.kind != "cpu"), key=lambda type_: type_.name):
        on = [device for device in used if topology.device(device).type == type_.name]
        if on and (trains or not type_.provider):
            fields = type_.name, type_.kind, listing(on)
            yield (TrainingNeedsCpu(*fields) if trains else NoProvider(*fields)).at(where)
