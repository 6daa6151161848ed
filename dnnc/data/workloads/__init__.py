"""Workloads of the placement literature as IR: profiled graphs without tensors.

The text tells which of two formats a file has: device-placement JSON (``device_placement``) or PipeDream's profile,
``graph.txt`` (``pipedream``). ``profile`` makes of either a module of ``dnnc.work`` ops and a topology of accelerators and
CPUs. The passes plan such a module as they plan an ONNX model. ``fitted`` puts it on another topology; ``faults``: what is
refused, by code.
"""

from __future__ import annotations

from pathlib import Path

from dnnc.data.workloads import device_placement, pipedream
from dnnc.data.workloads.faults import FormatNotFound, UnknownFormat
from dnnc.data.workloads.profile import ACCELERATOR, CPU, UNIT, Machines, Profile, in_unit, lower
from ir.core.diagnostics import DiagnosticSink, InvalidInput, Span, UsageError
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
        raise UsageError(UnknownFormat(chosen, FORMATS), where="--format")
    if chosen == device_placement.FORMAT:
        return device_placement.read(text, where, sink)
    return pipedream.read(text, where)


def _detect(text: str, where: str) -> str:
    if device_placement.looks_like(text):
        return device_placement.FORMAT
    if pipedream.looks_like(text):
        return pipedream.FORMAT
    line = next((line for line in text.splitlines() if line.strip()), "")
    span = Span(1, 1, max(1, len(line)), line[:160]) if line else None
    raise InvalidInput(FormatNotFound(FORMATS), where=where, span=span)


__all__ = ["ACCELERATOR", "CPU", "FORMATS", "PIPEDREAM", "UNIT", "Machines", "Profile", "in_unit", "lower", "read_profile"]
