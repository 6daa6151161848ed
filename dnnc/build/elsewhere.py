"""Whether a build, or a topology, is for the machine that is to run it.

One machine is one host with CPUs: which host of a topology it is, and how fast its CPUs are, nobody can tell. So a plan for one
host of CPUs is taken to be for this one. Not for it are devices that lie on more hosts than take part, and devices that are
no CPU where nothing runs them: a type that names no execution provider, or any at all in training, whose ranks run on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dnnc.build.snapshot import Snapshot
from ir.core.diagnostics import Diagnostic, InvalidInput
from ir.core.topology import Topology
from passes.model.graph import listing

EMULATE = "--emulate runs it all the same, as one host and on its CPU: to try its numbers, for its seconds say nothing"

NO_ROW = "leave --runs out, or measure on the machines of the plan"


def require_here(files: Snapshot, *, hosts: int = 1, trains: bool = False, emulate: bool = False) -> None:
    """Raises InvalidInput that names what a build is for and is not here, of ``hosts`` that take part; nothing where it is to
    be emulated."""
    faults = [] if emulate else list(_missing(files, hosts, trains))
    if faults:
        raise InvalidInput(faults)


def require_one_host(topology: Topology, where: str, *, emulate: bool = False) -> None:
    """Raises InvalidInput for a topology whose CPUs are of several hosts, or that has none: what is measured are those of one
    machine."""
    cpus = {type_.name for type_ in topology.types if type_.kind == "cpu" and not type_.provider}
    hosts = sorted({device.host for device in topology.devices if device.type in cpus})
    if not hosts:
        raise InvalidInput("it has no CPU, and only CPUs are measured", where=where)
    if len(hosts) > 1 and not emulate:
        message = f"it has CPUs on {len(hosts)} hosts, {listing(hosts)}, and this is one machine"
        hint = (
            "measure each host on itself, by a topology of that host, and --merge the files; --emulate takes this one for all"
        )
        raise InvalidInput(message, where=where, hint=hint)


def is_elsewhere(files: Snapshot) -> bool:
    """Whether a build is for more than one host, or for devices that nothing here runs."""
    return any(_missing(files, 1, False))


def _missing(files: Snapshot, hosts: int, trains: bool) -> Iterator[Diagnostic]:
    manifest, where = files.manifest, str(files.folder)
    names = _of(list, manifest.get("hosts"))
    if len(names) > hosts:
        here = "one machine" if hosts == 1 else f"{hosts}"
        more = f"run 'dnnc train' on each of them with --nodes {len(names)}; " if trains else ""
        yield Diagnostic(
            f"it is for {len(names)} hosts, {listing(names)}, and runs on {here}", where=where, hint=more + EMULATE
        )
    others = {name: kind for name, kind in _of(dict, manifest.get("kinds")).items() if kind != "cpu"}
    named, types = _of(dict, manifest.get("providers")), _of(dict, manifest.get("types"))
    for name, kind in sorted(others.items()):
        on = [device for device, type_ in types.items() if type_ == name]
        lacking = on if trains else [device for device in on if device not in named]
        if lacking:
            why = "ranks of a training run on the CPU" if trains else "its type names no execution provider that would run it"
            message = f"it is for devices of type {name} ({kind}: {listing(lacking)}), and here is none: {why}"
            yield Diagnostic(message, where=where, hint=EMULATE)


def _of(kind: type[Any], value: Any) -> Any:
    """The value, or an empty one of ``kind`` where it is none of it."""
    return value if isinstance(value, kind) else kind()


__all__ = ["EMULATE", "NO_ROW", "is_elsewhere", "require_here", "require_one_host"]
