"""``dnnc topology detect``, ``measure`` and ``merge``: topology files made of this machine, and of several machines."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dnnc.cli.console import progress, put, show_warnings, talk, write_whole
from dnnc.cli.faults import (
    DevicesOfFile,
    NotATomlFile,
    NotATopologyName,
    ProviderMissing,
)
from dnnc.cli.options import shared as opt
from ir.core.diagnostics import DiagnosticSink, UsageError

if TYPE_CHECKING:
    from dnnc.engines.hosts.options import ClusterOptions
    from dnnc.machines.topology.writer import Notes
    from ir.core.topology import Topology

_TOLD = 4
"""Names of a file that the message on what it renamed lists."""
OutOption = Annotated[
    Path | None, typer.Option("-o", "--out", metavar="FILE.toml", help="File to write, whole or not at all (default: print).")
]
DevicesOption = Annotated[
    int | None,
    typer.Option(
        "--devices",
        metavar="N",
        min=1,
        max=1 << 16,
        help="CPU devices, with equally many cores each (default: one per NUMA node).",
    ),
]


def detect(out: OutOption = None, devices: DevicesOption = None, quiet: opt.QuietOption = False) -> None:
    """Describe this host as a topology: cores, memory, their limits, NUMA nodes, GPUs, execution providers.

    Nothing is measured. A comment beside each number says where it is from: the system, the vendor's data sheet, or a guess,
    which 'dnnc topology measure' replaces."""
    from dnnc.machines import detected, missing_providers, read_facts

    facts = read_facts()
    topology, notes = detected(facts, devices)
    for provider in missing_providers(topology, facts.providers):
        sink = DiagnosticSink()
        sink.warn(ProviderMissing(provider))
        show_warnings(sink.diagnostics, quiet)
    write_topology(topology, notes, out, quiet)


def measure(
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="A topology with this host in it (default: as 'detect' describes it)."),
    ] = None,
    out: OutOption = None,
    devices: DevicesOption = None,
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="NAME",
            help="This host's name in FILE (default: its only host, or the one named like this host). With --cluster "
            "NAME=NODE: measure this node and call its host so (default: all nodes that offer cores). Repeatable.",
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            "--seed",
            min=0,
            max=(1 << 32) - 1,
            metavar="N",
            help="Seed of the random numbers that the measured operators work on.",
        ),
    ] = 0,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Measure again what is kept of an earlier time (without FILE, for preset:local).")
    ] = False,
    cluster: Annotated[
        str, typer.Option("--cluster", metavar="HOST:PORT", help="Measure the nodes of the Ray cluster whose head is there.")
    ] = "",
    ports: opt.PortsOption = opt.PORTS,
    training: Annotated[
        bool,
        typer.Option("--training/--no-training", help="Measure training too (with torch): three times as long."),
    ] = True,
    quiet: opt.QuietOption = False,
) -> None:
    """Measure the CPU devices of this host, and GPUs that CUDA's provider runs, and write them as a topology: rates per
    element type, efficiency per class of operators, memory bandwidth, overhead per operator, hand-over of a microbatch to a
    device, latency and bandwidth of links, start of a collective.

    All CPU devices work at once, each on its cores, as in a pipeline. Numbers are medians; comments state the quartiles. What
    is not measured (other hosts) stays as in FILE; the comments of FILE are lost. Run nothing else meanwhile.

    With --cluster, each node measures its devices, then each two the network between them, as values of 'dnnc run --cluster'
    cross it. The file states their addresses, so a run on the cluster needs no --host."""
    if cluster:
        from dnnc.engines.hosts.options import ClusterOptions, port_range, stated_hosts

        options = ClusterOptions(cluster, stated_hosts(host or ()), port_range(ports))
        _measure_cluster(options, file, out, devices, seed, training, quiet)
        return
    from dnnc.machines import busy_warning, detected, duration, host_here, measured, read_facts
    from dnnc.machines.cache import cache_file, keep, kept
    from dnnc.machines.topology import load_topology

    opt.cluster_options("", None, ports)
    if file is not None and devices is not None:
        raise UsageError(DevicesOfFile())
    facts = read_facts()
    cached = cache_file(facts, devices, training=training) if file is None and not (seed or host) else None
    if cached is not None and not fresh and kept(cached) is not None:
        talk(f"measured before, and kept in {cached}; --fresh measures again", quiet)
        write_text(cached.read_text(encoding="utf-8"), out, quiet)
        return
    sink = DiagnosticSink()
    topology, notes = detected(facts, devices) if file is None else (load_topology(file, sink), {})
    show_warnings(sink.diagnostics, quiet)
    here = host_here(topology, facts, host[0] if host else "")
    talk(f"measuring the devices of {here}, about {duration(training)} seconds", quiet)
    with progress(not quiet) as report:
        topology, found, share = measured(topology, facts, here, seed=seed, training=training, progress=report)
    if busy := busy_warning(share):
        late = DiagnosticSink()
        late.warn(busy, where=here)
        show_warnings(late.diagnostics, quiet)
    elif cached is not None:
        keep(cached, topology, {**notes, **found})
    write_topology(topology, {**notes, **found}, out, quiet)


def _measure_cluster(
    cluster: ClusterOptions, file: str | None, out: Path | None, devices: int | None, seed: int, training: bool, quiet: bool
) -> None:
    """Measures the nodes of a cluster and writes their topology."""
    from dnnc.engines.hosts.faults import NotWithCluster
    from dnnc.engines.hosts.options import require_packages
    from dnnc.machines import busy_warning

    if file is not None:
        raise UsageError(NotWithCluster(("FILE",)), where="topology measure")
    require_packages()
    from dnnc.machines.cluster import measured_cluster

    with progress(not quiet) as report:
        found = measured_cluster(cluster, devices=devices, seed=seed, training=training, progress=report)
    sink = DiagnosticSink()
    for host, share in found.shares.items():
        if busy := busy_warning(share):
            sink.warn(busy, where=host)
    show_warnings(sink.diagnostics, quiet)
    write_topology(found.topology, found.notes, out, quiet)


def merge(
    topologies: Annotated[
        list[str],
        typer.Argument(metavar="TOPOLOGY...", help="Files or presets.", autocompletion=opt.complete_topology),
    ],
    out: OutOption = None,
    link: Annotated[
        list[str] | None,
        typer.Option(
            "--link",
            metavar="A-B=BANDWIDTH,LATENCY",
            help="Join two hosts, each named by its name or its file's: --link a-b=10Gbit/s,50us; between names that have a -, "
            "write --: a-1--b. Repeatable.",
        ),
    ] = None,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Name of the merged topology.")] = "merged",
    quiet: opt.QuietOption = False,
) -> None:
    """Merge several topologies into one, and join their hosts by links.

    Where two files use the same name, each gets the name of its file in front; equal device types become one."""
    from dnnc.machines import merged, parse_link
    from dnnc.machines.topology import load_topology

    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", name):
        raise UsageError(NotATopologyName(name), where="--name")
    links = [parse_link(text) for text in link or ()]
    sink = DiagnosticSink()
    loaded = [load_topology(spec, sink) for spec in topologies]
    show_warnings(sink.diagnostics, quiet)
    result = merged(name, list(zip(_file_names(topologies), loaded, strict=True)), links)
    for file, renamed in groupby(result.renamed, key=lambda change: change[0]):
        talk(_renaming(file, [(old, new) for _, old, new in renamed]), quiet)
    for type_ in result.joined:
        talk(f"the device type {type_} is the same in several files, and kept once", quiet)
    write_topology(result.topology, {}, out, quiet)


def _renaming(file: str, changes: list[tuple[str, str]]) -> str:
    """What a file's names became, told of the first ones."""
    shown = ", ".join(f"{old} is now {new}" for old, new in changes[:_TOLD])
    more = f" and {len(changes) - _TOLD} more names" if len(changes) > _TOLD else ""
    return f"{file}: {shown}{more}, for another file has the same names"


def write_topology(topology: Topology, notes: Notes, out: Path | None, quiet: bool) -> None:
    """To a file, or to standard output without one. The text has been read back: it is the same topology."""
    from dnnc.machines.topology import read_topology, topology_to_toml

    text = topology_to_toml(topology, notes)
    if read_topology(text, name=topology.name[1:]) != topology:
        raise AssertionError(f"the text of {topology.name} is read back as another topology")
    write_text(text, out, quiet)


def write_text(text: str, out: Path | None, quiet: bool) -> None:
    """Writes the text of a topology to a file, or to standard output without one."""
    from dnnc.machines.topology.document import file_syntax

    if out is not None and file_syntax(out) != "toml":
        raise UsageError(NotATomlFile(str(out)), where="--out")
    if out is None:
        put(text)
        return
    write_whole(out, text)
    talk(f"wrote {out}; next: dnnc compile zoo:mlp -t {out} -o build/mlp", quiet)


def _file_names(specs: list[str]) -> list[str]:
    """What names of each topology get in front where they clash: its file's name, numbered where files are called alike."""
    names: list[str] = []
    for spec in specs:
        stem = spec.removeprefix("preset:") if spec.startswith("preset:") else Path(spec).stem
        base = name = re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-") or "topology"
        number = 2
        while name in names:
            name, number = f"{base}{number}", number + 1
        names.append(name)
    return names
