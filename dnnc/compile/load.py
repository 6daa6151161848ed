"""Loads a model: the one place that picks a frontend, by how the model is spelled.

``zoo:NAME,option=value`` is built; ``*.ir`` is parsed; ``*.json`` and ``*.txt`` are profiled workloads; anything else is an
ONNX file, beside which a ``genai_config.json`` may say what its inputs are. Importing this module imports no third-party
library.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from dnnc.onnx.model import Arrays, ImportedModel, bind_module
from dnnc.onnx.opdefs import DIALECTS
from ir.core.diagnostics import DiagnosticSink, InvalidInput
from ir.core.limits import LIMITS, Limits
from ir.core.module import Func, Module

_LOG = logging.getLogger(__name__)
IR_SUFFIX = ".ir"
WORKLOAD_SUFFIXES = (".json", ".txt")


def load_model(
    spec: str,
    dims: Mapping[str, int | str],
    sink: DiagnosticSink,
    *,
    allow_missing_weights: bool = False,
    limits: Limits = LIMITS,
    arrays: Arrays | None = None,
    caches: bool = False,
) -> ImportedModel:
    """The program that ``spec`` names. ``allow_missing_weights``: absent or short weight files are a warning (enough to plan).
    ``arrays`` bind the dimensions of inputs as ``dims`` do. ``caches``: of an ONNX file that holds a decoder with caches and
    one without, the one with caches; its entry's attribute ``decoding.branch`` names the input that chose.

    Raises InvalidInput for what cannot be read and for arrays that contradict the model, each other or ``dims``; UsageError for
    dims that the model lacks.
    """
    path = Path(spec)
    if spec.startswith("zoo:"):
        imported = _load_zoo(spec, dims, sink, arrays)
    elif path.suffix == IR_SUFFIX:
        imported = _load_text(path, spec, dims, arrays)
    elif path.suffix in WORKLOAD_SUFFIXES:
        imported = _load_workload(path, spec, dims, sink)
    else:
        from dnnc.compile.decoding.configs import with_configs
        from dnnc.onnx.importer.read import import_model

        imported = import_model(
            path, dims=dims, sink=sink, allow_missing_weights=allow_missing_weights, limits=limits, arrays=arrays, caches=caches
        )
        imported = replace(imported, module=with_configs(imported.module, path))
    module = imported.module
    _LOG.debug("%s: %d ops, %d resources", spec, sum(len(func.ops) for func in module.of_type(Func)), len(module.resources))
    return imported


def may_be_profile(spec: str) -> bool:
    """Whether ``spec`` names a file that can hold a profiled workload, by its spelling."""
    return not spec.startswith("zoo:") and Path(spec).suffix in (IR_SUFFIX, *WORKLOAD_SUFFIXES)


def _load_zoo(spec: str, dims: Mapping[str, int | str], sink: DiagnosticSink, arrays: Arrays | None) -> ImportedModel:
    from dnnc import zoo
    from dnnc.onnx.weights import WeightFiles

    module = zoo.build(spec)
    return ImportedModel(bind_module(module, dims, arrays), WeightFiles(Path()), spec)


def is_profiled(model: str, module: Module) -> bool:
    """Whether the module of ``model`` is a profiled workload."""
    if not may_be_profile(model):
        return False
    from dnnc.data.workloads.fitted import is_profile

    return is_profile(module)


def _load_workload(path: Path, spec: str, dims: Mapping[str, int | str], sink: DiagnosticSink) -> ImportedModel:
    from dnnc.data.workloads import Machines, lower, read_profile
    from dnnc.onnx.weights import WeightFiles

    module = lower(read_profile(path, sink=sink), Machines(), backward=True, sink=sink)
    return ImportedModel(bind_module(module, dims, None), WeightFiles(path.parent), spec)


def _load_text(path: Path, spec: str, dims: Mapping[str, int | str], arrays: Arrays | None) -> ImportedModel:
    from dnnc.onnx.weights import WeightFiles, missing_data
    from ir import load_module
    from ir.system.digests import OpenFile
    from ir.system.files import open_input
    from ir.text.parser import decode_text

    file = OpenFile(open_input(path, "IR text"))
    module = load_module(decode_text(file.file, spec, file.stamp.size), spec, dialects=DIALECTS)
    files = WeightFiles(path.parent, {path.name: file})
    with suppress(InvalidInput):
        missing_data(module, files)  # it opens them; what is amiss is told when they are read
    return ImportedModel(bind_module(module, dims, arrays), files, spec)
