"""Topology files: TOML or JSON that describes machines, read into ``ir.Topology``.

``dnnc/machines/README.md`` is the reference of the format. Presets are such files too (``dnnc/machines/presets``), so there is
one reader (``reader.py``). Every fault is collected, with file, line and column, and all are raised together as
InvalidInput (exit 3).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dnnc.machines.faults import WorkersShareCores
from dnnc.machines.presets import find_preset
from dnnc.machines.topology.document import file_syntax, parse_document, read_file
from dnnc.machines.topology.reader import Reader
from ir.core.diagnostics import Diagnostic, DiagnosticSink, Severity
from ir.core.topology import Topology


def load_topology(spec: str, sink: DiagnosticSink) -> Topology:
    """The topology that ``spec`` names: ``preset:NAME``, or the path of a ``.toml`` or ``.json`` file.

    Warnings go to ``sink``. Raises InvalidInput with every error found.
    """
    if spec.startswith("preset:"):
        preset = find_preset(spec.removeprefix("preset:"))
        if preset.workers > preset.cores:
            sink.warn(WorkersShareCores(preset.workers, preset.cores, f"{preset.slowdown:.3g}"), where=spec)
        return slowed(read_topology(preset.text, where=spec, name=preset.name, sink=sink), preset.slowdown)
    file = Path(spec)
    return read_topology(read_file(file), where=spec, folder=file.parent, sink=sink, syntax=file_syntax(file), name=file.stem)


def read_topology(
    text: str,
    *,
    where: str = "<text>",
    folder: Path | None = None,
    syntax: str = "toml",
    name: str = "topology",
    sink: DiagnosticSink | None = None,
) -> Topology:
    """The topology that a text describes. ``folder`` is where its ``include`` looks for files (None: nowhere); ``name`` is used
    when the text gives none. Raises InvalidInput with every error found."""
    faults = DiagnosticSink()
    document = parse_document(text, where, syntax)
    reader = Reader(faults, folder=folder)
    topology = reader.topology(document, name)
    for diagnostic in faults.diagnostics:
        if diagnostic.severity is not Severity.ERROR and sink is not None:
            sink.emit(diagnostic)
    faults.diagnostics.sort(key=_place)
    faults.raise_errors()
    return topology


def _place(diagnostic: Diagnostic) -> tuple[str, int, int]:
    span = diagnostic.span
    return (diagnostic.where, span.line, span.column) if span else (diagnostic.where, 0, 0)


def slowed(topology: Topology, factor: float) -> Topology:
    """The topology with every device ``factor`` times slower: what is left to each worker when several share a core."""
    if factor == 1:
        return topology
    types = tuple(
        replace(
            type_,
            rates=tuple((dtype, rate / factor) for dtype, rate in type_.rates),
            scalar_rate=type_.scalar_rate / factor,
            memory_bandwidth=type_.memory_bandwidth / factor,
            cache_bandwidth=type_.cache_bandwidth / factor,
            overhead=type_.overhead * factor,
            launch=type_.launch * factor,
            handover=type_.handover * factor,
            source=f"{type_.source} Here {factor:g} workers share each core.",
        )
        for type_ in topology.types
    )
    return replace(topology, types=types)
