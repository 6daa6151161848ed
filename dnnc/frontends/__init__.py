"""Ways in: ONNX models, IR text, zoo models, topologies; and the weights and constants behind them.

What needs onnx is imported when it is called, so that importing this package costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dnnc.frontends.load import load_model, may_be_profile
from dnnc.frontends.model import Arrays, ImportedModel, bind_module, dim_flags, free_symbols, require_static
from dnnc.frontends.opdefs import DIALECTS
from dnnc.frontends.topology import load_topology, read_topology
from dnnc.frontends.topology_writer import topology_to_toml
from ir.core.diagnostics import DiagnosticSink
from ir.core.limits import LIMITS, Limits


def import_model(
    path: str | Path,
    *,
    dims: Mapping[str, int | str],
    sink: DiagnosticSink,
    allow_missing_weights: bool = False,
    limits: Limits = LIMITS,
) -> ImportedModel:
    """The program of an ONNX file; see ``dnnc.frontends.onnx_import.import_model``."""
    from dnnc.frontends.onnx_import import import_model as run

    return run(path, dims=dims, sink=sink, allow_missing_weights=allow_missing_weights, limits=limits)


__all__ = [
    "DIALECTS",
    "Arrays",
    "ImportedModel",
    "bind_module",
    "dim_flags",
    "free_symbols",
    "import_model",
    "load_model",
    "load_topology",
    "may_be_profile",
    "read_topology",
    "require_static",
    "topology_to_toml",
]
