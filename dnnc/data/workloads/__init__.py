"""Workloads of the placement literature as IR: profiled graphs without tensors.

Two formats, told apart by their text: the device-placement JSON and PipeDream's profile (``graph.txt``). Either becomes a
module of ``dnnc.work`` ops with a topology of accelerators and CPUs, which the same passes read that plan ONNX models.
"""

from __future__ import annotations

from pathlib import Path

from dnnc.data.workloads import device_placement, pipedream
from dnnc.data.workloads.profile import ACCELERATOR, CPU, UNIT, Machines, Profile, in_unit, lower
from ir.core.diagnostics import Diagnostic, DiagnosticSink, InvalidInput, Span, UsageError
from ir.core.limits import LIMITS
from ir.system.files import read_input_text

PIPEDREAM = pipedream.FORMAT
FORMATS = (device_placement.FORMAT, PIPEDREAM)


def read_profile(path: str | Path, *, sink: DiagnosticSink, format: str = "") -> Profile:
    """What a workload's file states. ``format``: one of ``FORMATS``, empty to tell by the text.

    Raises InvalidInput with every fault of the file and its place, UsageError for an unknown format."""
    where = str(path)
    text = read_input_text(path, "a workload (device-placement JSON or a PipeDream profile)", LIMITS.text_bytes)
    chosen = format or _detect(text, where)
    if chosen not in FORMATS:
        raise UsageError(f"'{chosen}' is no format of workloads; expected {' or '.join(FORMATS)}", where="--format")
    if chosen == device_placement.FORMAT:
        return device_placement.read(text, where, sink)
    return pipedream.read(text, where)


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


__all__ = ["ACCELERATOR", "CPU", "FORMATS", "PIPEDREAM", "UNIT", "Machines", "Profile", "in_unit", "lower", "read_profile"]
