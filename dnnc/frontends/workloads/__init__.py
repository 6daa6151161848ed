"""Workloads of the placement literature as IR: profiled graphs without tensors.

Two formats, told apart by their text: the device-placement JSON and PipeDream's profile (``graph.txt``). Either becomes a
module of ``dnnc.work`` ops with a topology of accelerators and CPUs, which the same passes read that plan ONNX models.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dnnc.frontends.workloads import device_placement, pipedream
from dnnc.frontends.workloads.profile import ACCELERATOR, CPU, UNIT, Machines, in_unit, lower
from ir.diagnostics import Diagnostic, DiagnosticSink, InvalidInput, Span, UsageError
from ir.module import Module

FORMATS = (device_placement.FORMAT, pipedream.FORMAT)
MAX_BYTES = 512 << 20
"""A larger file is no workload."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A module with one ``dnnc.work`` op per node and a ``Topology``; ``format`` of its file, and whether the file holds
    backward nodes."""

    module: Module
    format: str
    has_backward_nodes: bool


def read_workload(
    path: str | Path,
    *,
    sink: DiagnosticSink,
    format: str = "",
    machines: Machines | None = None,
    backward: bool = False,
) -> Workload:
    """The workload of a file. ``format``: one of ``FORMATS``, empty to tell by the text; ``machines`` stand over the file's;
    ``backward``: with the backward nodes and times, or inference alone.

    Raises InvalidInput with every fault of the file and its place, UsageError for an unknown format."""
    where = str(path)
    text = _text(Path(path), where)
    chosen = format or _detect(text, where)
    if chosen not in FORMATS:
        raise UsageError(f"'{chosen}' is no format of workloads; expected {' or '.join(FORMATS)}", where="--format")
    if chosen == device_placement.FORMAT:
        profile = device_placement.read(text, where, sink)
    else:
        profile = pipedream.read(text, where)
    module = lower(profile, machines or Machines(), backward=backward, sink=sink)
    return Workload(module, chosen, any(node.backward for node in profile.nodes))


def _detect(text: str, where: str) -> str:
    if device_placement.looks_like(text):
        return device_placement.FORMAT
    if pipedream.looks_like(text):
        return pipedream.FORMAT
    line = next((line for line in text.splitlines() if line.strip()), "")
    raise InvalidInput(
        Diagnostic(
            "found neither device-placement JSON (an object) nor a PipeDream profile (lines 'node1 -- description -- ..')",
            where,
            Span(1, 1, max(1, len(line)), line[:160]) if line else None,
            f"--format takes {' or '.join(FORMATS)}",
        )
    )


def _text(path: Path, where: str) -> str:
    try:
        if (size := path.stat().st_size) > MAX_BYTES:
            raise InvalidInput(f"the file has {size} bytes; a workload of more than {MAX_BYTES} is refused", where=where)
        data = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"cannot read: {error.strerror or error}", where=where) from None
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        message = f"expected text but byte {error.start} is not UTF-8"
        raise InvalidInput(message, where=where, hint="expected device-placement JSON or a PipeDream profile") from None


__all__ = ["ACCELERATOR", "CPU", "FORMATS", "UNIT", "Machines", "Workload", "in_unit", "read_workload"]
