"""The model of a decoder as a step reads it: with caches, and with those tables written out of which sizes choose a part."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace

from dnnc.compile.context import pass_context
from dnnc.compile.flags import CompileOptions
from dnnc.compile.load import load_model
from dnnc.onnx.model import CHOOSES_CACHES, ImportedModel
from ir.core.diagnostics import DiagnosticSink, InvalidInput
from ir.core.limits import LIMITS
from ir.core.module import External, Inline, Module, Resource
from ir.core.ops import all_reads
from ir.core.types import TensorType
from passes.graph.folding import expand
from passes.prepare.canonicalize import CanonicalizePass
from passes.prepare.states.faults import TwoBranches
from passes.prepare.states.masks import MOST

SLICE, GATHER = "onnx.Slice", "onnx.Gather"
FOLDING = CanonicalizePass(fold_bytes=LIMITS.folded_bytes)
"""Simplifies a decoder: masks of a chunk, and tables of which a part is read, are judged where they are constants."""
OF_TYPE = ("onnx.Shape", "onnx.Size")
"""Operators that read no numbers of a tensor."""


def load_step(options: CompileOptions, sink: DiagnosticSink) -> Module:
    """The model of ``options`` as ``as_step`` has it; its weights may be missing. Raises as ``load_model`` and ``as_step``."""
    caches = options.context is not None
    imported = load_model(
        options.model, options.largest, sink, allow_missing_weights=True, limits=options.limits, caches=caches
    )
    return as_step(imported, options.context).module if options.context is not None else imported.module


def as_step(imported: ImportedModel, context: int) -> ImportedModel:
    """The model with those tables written out of which it reads a part that sizes alone choose, such as a causal mask, or
    biases by distance: what that part holds may depend on the length of the past, and is judged. Others stay, and such whose
    file is missing. ``context``: positions of its caches. Raises InvalidInput where an input chooses otherwise between caches
    and none than by an ``If``."""
    if f"%{CHOOSES_CACHES}" in {arg.name for arg in imported.module.entry.args}:
        raise InvalidInput(TwoBranches(CHOOSES_CACHES), where=imported.source)
    module = expand(imported.module)
    sliced = _tables(module, {op.operands[0] for op in module.entry.ops if op.name == SLICE}, imported)
    gathered = _gathered(module)
    if not sliced and not gathered:
        return imported
    simplified = FOLDING.run(_with_resources(module, sliced), pass_context(DiagnosticSink()))
    folded = {name: one for name, one in sliced.items() if name not in simplified.resources}
    return replace(
        imported, module=_with_resources(module, folded | _tables(module, gathered & _by_slot(simplified, context), imported))
    )


def _gathered(module: Module) -> set[str]:
    """The tables of which lengths of tensors, and no input's numbers, choose rows."""
    computed, found = {arg.name for arg in module.entry.args}, set[str]()
    for op in module.entry.ops:
        if op.name == GATHER and op.operands[1] not in computed:
            found.add(op.operands[0])
        if op.name not in OF_TYPE and not computed.isdisjoint(all_reads(op)):
            computed.update(value.name for value in op.results)
    return found


def _by_slot(simplified: Module, context: int) -> set[str]:
    """The tables that are read by constants alone which have a number for each slot of the caches."""
    resources, found, others = simplified.resources, set[str](), set[str]()
    for op in simplified.entry.ops:
        index = resources.get(op.operands[1]) if op.name == GATHER else None
        type_ = index.type if index is not None else None
        by_slot = isinstance(type_, TensorType) and (type_.shape or ())[-1:] == (context,)
        found.update(op.operands[:1] if by_slot else ())
        others.update(op.operands[1:] if by_slot else all_reads(op))
    return found - others


def _tables(module: Module, names: Collection[str], imported: ImportedModel) -> dict[str, Resource]:
    """Those of the named resources that lie in a file and are not too large, with their elements."""
    tables: dict[str, Resource] = {}
    for resource in module.of_type(Resource):
        elements = resource.type.elements if isinstance(resource.type, TensorType) else None
        if resource.name in names and isinstance(resource.data, External) and elements is not None and elements <= MOST:
            tables |= _read(resource, imported)
    return tables


def _read(resource: Resource, imported: ImportedModel) -> dict[str, Resource]:
    """The resource with its elements, by name; nothing where they are missing."""
    from dnnc.onnx.arrays import to_data
    from dnnc.onnx.weights import read_resource

    with suppress(InvalidInput):
        return {resource.name: replace(resource, data=Inline(to_data(read_resource(resource, imported.files))))}
    return {}


def _with_resources(module: Module, resources: Mapping[str, Resource]) -> Module:
    found = (resources.get(one.name, one) if isinstance(one, Resource) else one for one in module.symbols)
    return replace(module, symbols=tuple(found))
