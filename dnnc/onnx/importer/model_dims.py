"""Symbolic dimensions of an ONNX model: those without a name get one, and ``--dim`` and arrays bind them.

Exporters write an unknown dimension as absent, as -1, or under a name that means unknown (``?``, ``None``, ``unk__12``). Two
such dimensions may differ even if their names are equal. So each one of an input gets the name ``INPUT_dimAXIS``, and each one
of another value loses its name. Any dimension of an input can also be bound by its place, as ``INPUT.AXIS``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import onnx
from onnx import ModelProto, TypeProto

from dnnc.onnx.importer.graphs import graphs
from dnnc.onnx.types import type_of
from ir.core import dims as dimensions
from ir.core.types import Type

_UNKNOWN = re.compile(r"\s*([?*]|-1|none|null|unknown(_?\d+)?|unk(__?\d+)?)?\s*", re.IGNORECASE)
"""Names of dimensions that mean "not known" and nothing else."""


def tensor_dims(proto: TypeProto) -> Iterator[onnx.TensorShapeProto.Dimension]:
    """Dimensions of all tensors within a type."""
    kind = proto.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        yield from getattr(proto, kind).shape.dim
    elif kind in ("sequence_type", "optional_type"):
        yield from tensor_dims(getattr(proto, kind).elem_type)
    elif kind == "map_type":
        yield from tensor_dims(proto.map_type.value_type)


def _annotated(model: ModelProto) -> Iterator[onnx.TensorShapeProto.Dimension]:
    """Dimensions of every annotation of the model, those of its inputs first."""
    for graph in graphs(model.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            yield from tensor_dims(value.type)


def model_symbols(model: ModelProto) -> list[str]:
    """Names of symbolic dimensions, those of the inputs first, each once."""
    symbols: dict[str, None] = {}
    for dim in _annotated(model):
        if dim.dim_param:
            symbols.update(dict.fromkeys(dimensions.symbols(dim.dim_param)))
    return list(symbols)


def input_symbols(model: ModelProto) -> list[str]:
    """Names of symbolic dimensions of the inputs: each stands for one number in a run."""
    names = (dim.dim_param for value in _real_inputs(model) for dim in tensor_dims(value.type) if dim.dim_param)
    return list(dict.fromkeys(symbol for name in names for symbol in dimensions.symbols(name)))


def name_input_dims(model: ModelProto) -> None:
    """Gives a name of its own (``INPUT_dim0``) to every input dimension that has neither a number nor a name that says
    something; elsewhere such a dimension loses its name."""
    for dim in _annotated(model):
        if dim.dim_value < 0 or (dim.HasField("dim_param") and _UNKNOWN.fullmatch(dim.dim_param)):
            dim.Clear()
    taken = set(model_symbols(model))
    for value in _real_inputs(model):
        for axis, dim in enumerate(tensor_dims(value.type)):
            if not dim.dim_param and not dim.HasField("dim_value"):
                name = f"{value.name}_dim{axis}"
                while name in taken:
                    name += "_"
                taken.add(name)
                dim.dim_param = name


def _real_inputs(model: ModelProto) -> list[onnx.ValueInfoProto]:
    """Inputs of the model without those that an initializer gives a default."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in weights]


def input_types(model: ModelProto) -> dict[str, Type]:
    """Types of the inputs that have to be given."""
    return {value.name: type_of(value.type) for value in _real_inputs(model)}


def bind_dims(model: ModelProto, bindings: Mapping[str, int | str]) -> None:
    """Replaces dimensions, by name, by what they are bound to, in every graph. Raises UsageError (``dims.resolve``)."""
    if not bindings:
        return
    resolved = dimensions.resolve(bindings, model_symbols(model))
    for dim in _annotated(model):
        if dim.dim_param:
            bound = dimensions.bind(dim.dim_param, resolved)
            if isinstance(bound, int):
                dim.dim_value = bound
            elif bound is not None:
                dim.dim_param = bound
