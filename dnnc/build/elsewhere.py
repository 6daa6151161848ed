"""Refuses builds and topologies that are for other machines than this one.

A plan cannot say which host this machine is, nor how fast its CPUs are: a plan for one host of CPUs is taken to be for this
one. Refused are plans whose devices are on another number of hosts than take part, and plans for devices that nothing here
runs: types that are no CPU and name no execution provider, and in training, whose ranks run on CPUs, all types that are no CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dnnc.build.faults import EmulatedRun, NoCpu, NoProvider, OtherHosts, SeveralHosts, TrainingNeedsCpu
from dnnc.build.snapshot import Snapshot
from ir.core.diagnostics import Diagnostic, InvalidInput, UsageError
from ir.core.topology import Topology
from passes.model.graph import listing


def require_here(files: Snapshot, *, hosts: int = 1, trains: bool = False, emulate: bool = False) -> None:
    """Raises InvalidInput that names the machines which the build needs and the ``hosts`` that take part are not; with
    ``emulate`` it raises nothing."""
    faults = [] if emulate else list(_missing(files, hosts, trains))
    if faults:
        raise InvalidInput(faults)


def require_one_host(topology: Topology, where: str, *, emulate: bool = False) -> None:
    """Raises InvalidInput for a topology without CPUs, or with CPUs on several hosts: one machine is measured."""
    cpus = {type_.name for type_ in topology.types if type_.kind == "cpu" and not type_.provider}
    hosts = sorted({device.host for device in topology.devices if device.type in cpus})
    if not hosts:
        raise InvalidInput(NoCpu(), where=where)
    if len(hosts) > 1 and not emulate:
        raise InvalidInput(SeveralHosts(len(hosts), listing(hosts)), where=where)


def require_row(files: Snapshot, *, hosts: int = 1, trains: bool = False, emulate: bool = False) -> None:
    """Raises UsageError where a build for other machines is emulated: its seconds are not recorded in ``--runs``."""
    if emulate and any(_missing(files, hosts, trains)):
        raise UsageError(EmulatedRun(), where="--runs")


def _missing(files: Snapshot, hosts: int, trains: bool) -> Iterator[Diagnostic]:
    manifest, where = files.manifest, str(files.folder)
    names, types = _machines(files)
    count = max(len(names), 1)  # without a topology there is one
    if count != hosts:
        needed = f"{count} hosts, {listing(names)}" if count > 1 else "one host"
        present = "one machine" if hosts == 1 else f"{hosts}"
        advice = f"run 'dnnc train' on each of them with --nodes {count}; " if count > 1 else "leave out --nodes; "
        advice = advice if trains else ""
        yield OtherHosts(needed, present, advice).at(where)
    others = {name: kind for name, kind in _of(dict, manifest.get("kinds")).items() if kind != "cpu"}
    named = _of(dict, manifest.get("providers"))
    for name, kind in sorted(others.items()):
        on = [device for device, type_ in types.items() if type_ == name]
        lacking = on if trains else [device for device in on if device not in named]
        if lacking:
            fields = name, str(kind), listing(lacking)
            yield (TrainingNeedsCpu(*fields) if trains else NoProvider(*fields)).at(where)


def _machines(files: Snapshot) -> tuple[list[str], dict[str, str]]:
    """The hosts of the devices that a build uses, and the type of each device. Manifests of earlier versions lack them; then
    they are read from plan.ir, which takes seconds where that is large. Raises InvalidInput."""
    from dnnc.build.build import PROGRAM, read_program

    manifest = files.manifest
    if "hosts" in manifest or PROGRAM not in files.contents:
        return _of(list, manifest.get("hosts")), _of(dict, manifest.get("types"))
    topology = read_program(files).first(Topology)
    used = {device for stage in _of(list, manifest.get("stages")) for device in stage["devices"]}
    devices = [device for device in topology.devices if device.name in used] if topology is not None else []
    return sorted({device.host for device in devices}), {device.name: device.type for device in devices}


def _of(kind: type[Any], value: Any) -> Any:
    """The value, or an empty ``kind`` where the value is of another kind."""
    return value if isinstance(value, kind) else kind()


__all__ = ["require_here", "require_one_host", "require_row"]
