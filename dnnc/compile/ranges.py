"""Builds that take any size in a range: ``--dim seq=1..512``.

The plan is made for the largest sizes, and the model must take the smallest too. Then the model is read again with these
dimensions open, and what does not depend on them is simplified; its ops get the stages of the plan
(``passes.plan.other_sizes``). Its programs compute shapes, masks and positions from what they are given, and what crosses
between stages has the size that it has. The module keeps each range as an attribute, ``size.NAME = [least, most]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dnnc.build.build import SIZE
from dnnc.compile.faults import RangesOfInference
from dnnc.compile.flags import CompileOptions
from dnnc.compile.load import load_model
from dnnc.compile.options import asks_training
from dnnc.onnx.model import free_symbols
from ir.core import dims as dimensions
from ir.core.attributes import attributes
from ir.core.diagnostics import DiagnosticSink, UsageError
from ir.core.module import Module
from ir.core.types import TensorType
from passes.framework.base import Pass, PassContext
from passes.framework.registry import NO_MESH
from passes.graph.folding import expand
from passes.plan.other_sizes import cut_alike

SIMPLIFIES, SCHEDULES = ("canonicalize", "autocast"), "schedule"


def of_ranges(options: CompileOptions) -> CompileOptions:
    """The options; with ranges, without meshes, whose programs are of one size. Raises UsageError for ranges together with what
    else needs one size."""
    ranges = options.ranges
    if not ranges:
        return options
    one_size = {
        "training": asks_training(options),
        "--mesh": options.mesh not in ("", NO_MESH),
        "--inputs": options.inputs is not None,
    }
    if found := [name for name, asked in one_size.items() if asked]:
        name, sizes = next(iter(ranges.items()))
        raise UsageError(RangesOfInference(name, sizes.stop - 1, tuple(found)), where="--dim")
    return replace(options, mesh=NO_MESH)


def require_least(options: CompileOptions) -> None:
    """Reads the model at the smallest sizes of its ranges: where it takes the largest alone, a build of a range would fail when
    it runs. Raises as ``load_model``."""
    if options.ranges:
        load_model(options.model, options.least, DiagnosticSink(), allow_missing_weights=True, limits=options.limits)


def with_open_sizes(planned: Module, options: CompileOptions, pipeline: Sequence[Pass], context: PassContext) -> Module:
    """The planned module with the ranges of ``options`` left open: its entry is that of the model as it is read with them.
    Raises as ``load_model``."""
    ranges = options.ranges
    kept = {name: size for name, size in options.dims.items() if not isinstance(size, range)}
    imported = load_model(options.model, kept, DiagnosticSink(), limits=options.limits)
    module = expand(imported.module)
    args = module.entry.args
    shapes = {arg.name[1:]: arg.type.shape for arg in args if isinstance(arg.type, TensorType) and arg.type.shape is not None}
    symbols = free_symbols(module.entry)
    least = dimensions.by_place({name: size.start for name, size in ranges.items()}, shapes, symbols)
    most = dimensions.by_place({name: size.stop - 1 for name, size in ranges.items()}, shapes, symbols)
    inside = replace(context, sink=DiagnosticSink(), statistics={})
    for step in pipeline:
        if step.name in SIMPLIFIES:
            module = expand(step.run(module, inside))
    module = cut_alike(planned, module)
    for step in pipeline:
        if step.name == SCHEDULES:
            module = step.run(module, inside)
    sizes = {f"{SIZE}{name}": (least[name], most[name]) for name in least}
    return replace(module, attributes=attributes({**dict(module.attributes), **sizes}))
