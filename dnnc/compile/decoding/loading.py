"""The model of a decoder as a step reads it: with caches, and with those tables written out of which sizes choose a part."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from dnnc.compile.context import pass_context
from dnnc.compile.flags import CompileOptions
from dnnc.compile.load import load_model
from dnnc.onnx.model import CHOOSES_CACHES, ImportedModel
from ir.core.diagnostics import DiagnosticSink, InvalidInput
from ir.core.module import External, Inline, Module, Resource
from ir.core.types import TensorType
from passes.framework.registry import PASSES
from passes.graph.folding import expand
from passes.prepare.states.faults import TwoBranches
from passes.prepare.states.masks import MOST

SLICE = "onnx.Slice"


def load_step(options: CompileOptions, sink: DiagnosticSink) -> Module:
    """The model of ``options`` as ``as_step`` has it; its weights may be missing. Raises as ``load_model`` and ``as_step``."""
    caches = options.context is not None
    imported = load_model(
        options.model, options.largest, sink, allow_missing_weights=True, limits=options.limits, caches=caches
    )
    return as_step(imported).module if caches else imported.module


def as_step(imported: ImportedModel) -> ImportedModel:
    """The model with those tables written out of which it reads a part that sizes alone choose, such as a causal mask, or
    biases by distance: what that part holds may depend on the length of the past, and is judged. Others stay, and such whose
    file is missing. Raises InvalidInput where an input chooses otherwise between caches and none than by an ``If``."""
    if f"%{CHOOSES_CACHES}" in {arg.name for arg in imported.module.entry.args}:
        raise InvalidInput(TwoBranches(CHOOSES_CACHES), where=imported.source)
    module = expand(imported.module)
    sliced = {op.operands[0] for op in module.entry.ops if op.name == SLICE}
    tables: dict[str, Resource] = {}
    for resource in module.of_type(Resource):
        elements = resource.type.elements if isinstance(resource.type, TensorType) else None
        if resource.name in sliced and isinstance(resource.data, External) and elements is not None and elements <= MOST:
            tables |= _read(resource, imported)
    if not tables:
        return imported
    simplified = PASSES["canonicalize"]().run(_with_resources(module, tables), pass_context(DiagnosticSink()))
    folded = {name: one for name, one in tables.items() if name not in simplified.resources}
    return replace(imported, module=_with_resources(module, folded))


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
