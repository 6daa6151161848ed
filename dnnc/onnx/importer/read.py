"""ONNX model to module: the whole computation as one function ``@main``, with weights as resources.

The steps: open the file (``model_file``), inline functions, check and sort nodes (``checks``), bind dimensions, infer types
(``inference``), translate. Names are ONNX's behind a sigil; a name that occurs in two branches gets a suffix in the second.

Weights: large ones stay in their file (``External``: the weight file or the .onnx file itself); those under
``wire.INLINE_LIMIT`` bytes are ``Inline``, so that arithmetic on shapes is readable. A large ``Constant`` becomes a resource. A
sparse initializer becomes a dense one. An initializer that is also an input (all are, in IR version 3) becomes a resource; from
IR version 4 on, where the input was optional, a warning says so.

Dropped, since no pass and no runtime reads them: doc strings, names of graphs, denotations, quantization annotations, device
configurations, and metadata of the model, its values and nodes. Two entries of a node's metadata are kept: the exporter's scope
as location, and ``dnnc.training`` as facet ``training``. Training information is dropped with a warning.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from dnnc.onnx.attributes import attribute_of, densify
from dnnc.onnx.importer.checks import check_model, node_label
from dnnc.onnx.importer.contradictions import Ports, refuse_contradiction
from dnnc.onnx.importer.faults import (
    AttributeInvalid,
    DefaultsBecomeConstants,
    InitializerInvalid,
    SparseInitializerInvalid,
    TrainingInfoIgnored,
    TrainingMetadataInvalid,
)
from dnnc.onnx.importer.functions import PATH_KEY, SCOPE_KEY, TRAINING_KEY, inline_functions
from dnnc.onnx.importer.graphs import graphs, part_averages, subgraphs, take_caches
from dnnc.onnx.importer.inference.claims import refuse_defaults
from dnnc.onnx.importer.inference.faults import UnknownRanks
from dnnc.onnx.importer.inference.shapes import infer_shapes
from dnnc.onnx.importer.inference.type_check import check_types
from dnnc.onnx.importer.inference.value_types import graph_types, has_rank
from dnnc.onnx.importer.model_dims import bind_dims, input_types, model_symbols, name_input_dims
from dnnc.onnx.importer.model_file import open_model
from dnnc.onnx.importer.refusals import refuse_nodes
from dnnc.onnx.model import CHOOSES_CACHES, Arrays, ImportedModel, bindings_of, dim_flags, used_names
from dnnc.onnx.opdefs import DIALECTS
from dnnc.onnx.protobuf.wire import INLINE_LIMIT, SELF
from dnnc.onnx.types import dense_of, tensor_type
from dnnc.onnx.weights import WeightFiles, data_path, missing_data, read_resource
from ir import verify
from ir.core.attributes import Attribute, Dense, attributes
from ir.core.diagnostics import DiagnosticSink, InvalidInput, Severity
from ir.core.facets import FROM_TORCH, Facets, InTraining, parse_facet
from ir.core.limits import LIMITS, Limits
from ir.core.module import External, Func, Inline, Module, Resource, ResourceData
from ir.core.names import unique
from ir.core.ops import Location, Op, Region, Value
from ir.core.types import UNKNOWN, DType, TensorType, Type
from passes.prepare.states.decoder import BRANCH

_SHOWN = 5
"""Values without a shape that one warning names."""


def import_model(
    path: str | Path,
    *,
    dims: Mapping[str, int | str],
    sink: DiagnosticSink,
    allow_missing_weights: bool = False,
    limits: Limits = LIMITS,
    arrays: Arrays | None = None,
    caches: bool = False,
) -> ImportedModel:
    """The program of an ONNX file (``.onnx``, or ONNX's text syntax in ``.onnxtxt``). ``caches``: of a file of two models, the
    one with caches (``graphs.take_caches``).

    Raises InvalidInput for a file that is no whole, valid model, or whose weights are not all there (a warning with
    ``allow_missing_weights``); UsageError for ``dims`` that the model does not have.
    ``arrays`` bind the dimensions of inputs too.
    """
    path = Path(path)
    model, file = open_model(path, limits)
    files = WeightFiles(path.parent, {path.name: file})
    names = {"where": str(path), "file": path.name, "name": path.stem}
    module = import_proto(model, **names, files=files, dims=dims, sink=sink, limits=limits, arrays=arrays, caches=caches)
    faults = [replace(fault, where=f"{path}: {fault.where}") for fault in missing_data(module, files)]
    if faults and not allow_missing_weights:
        raise InvalidInput(faults)
    for fault in faults:
        sink.emit(replace(fault, severity=Severity.WARNING))
    files.confirm()
    return ImportedModel(module, files, str(path))


def import_proto(
    model: ModelProto,
    *,
    where: str,
    file: str = "",
    name: str = "",
    files: WeightFiles | None = None,
    dims: Mapping[str, int | str] | None = None,
    sink: DiagnosticSink | None = None,
    limits: Limits = LIMITS,
    arrays: Arrays | None = None,
    caches: bool = False,
) -> Module:
    """The module of a model in memory, which is changed. ``where``: how messages call it; ``file``: the file name that
    ``wire.SELF`` stands for; ``files``: those of its weights."""
    sink = sink if sink is not None else DiagnosticSink()
    files = files or WeightFiles(Path())
    inline_functions(model, where, limits)
    check_model(model, where, sink)
    if model.training_info:
        sink.warn(TrainingInfoIgnored(), where=where)
    if not model.producer_name.startswith(FROM_TORCH):
        part_averages(model.graph)
    taken = caches and take_caches(model.graph)
    name_input_dims(model)
    ports = Ports(model)
    bindings = bindings_of(dims or {}, arrays, input_types(model), model_symbols(model))
    bind_dims(model, bindings)
    translator = _Translator(model, where, file, files, sink, limits)
    translator.check_initializers()
    sink.raise_errors()
    refuse_defaults(model, where, sink)
    sink.raise_errors()
    remarks = DiagnosticSink()
    fault = infer_shapes(model, where, remarks, limits)
    if fault:
        refuse_contradiction(model, ports, bindings, where, limits)
    check_types(model, where, sink)
    sink.raise_errors()  # they are what inference failed at, and told better
    if fault:
        refuse_nodes(model, where, sink, limits)
        sink.raise_errors()
    for remark in remarks.diagnostics:
        sink.emit(remark)
    module = translator.module(name or model.graph.name or "model", {BRANCH: CHOOSES_CACHES} if taken else {})
    sink.raise_errors()
    faults = verify(module, dialects=DIALECTS)
    if faults:
        raise InvalidInput([replace(fault, where=f"{where}: {fault.where}") for fault in faults])
    _report_unknown(module, where, sink)
    return module


def _report_unknown(module: Module, where: str, sink: DiagnosticSink) -> None:
    used = used_names(module.entry)
    values = [value for op in module.entry.ops for value in op.results if value.name in used]
    unknown = [value.name for value in values if not has_rank(value.type)]
    if unknown:
        shown = ", ".join(unknown[:_SHOWN]) + (", ..." if len(unknown) > _SHOWN else "")
        sink.warn(UnknownRanks(shown, len(unknown), dim_flags(module.entry)), where=where)


class _Translator:
    """Translates the graphs of one model; collects its resources on the way."""

    def __init__(
        self, model: ModelProto, where: str, file: str, files: WeightFiles, sink: DiagnosticSink, limits: Limits
    ) -> None:
        self.model, self.where, self.file, self.files = model, where, file, files
        self.sink, self.limits = sink, limits
        self.resources: list[Resource] = []
        self.symbols: set[str] = set()
        self.values: set[str] = set()
        self.constants: dict[tuple[ResourceData, TensorType], str] = {}
        """Resources of large constants by their data, or where it lies."""

    def check_initializers(self) -> None:
        """Errors for tensors whose data does not fit their type, before inference trips over them."""
        for graph in graphs(self.model.graph):
            for tensor in graph.initializer:
                self._data(tensor)
            for sparse in graph.sparse_initializer:
                try:
                    dense = densify(sparse, self.limits)
                except (ValueError, TypeError) as error:
                    self.sink.error(SparseInitializerInvalid(sparse.values.name, str(error)), where=self.where)
                    continue
                # From here on it is an ordinary initializer.
                added = graph.initializer.add(name=sparse.values.name, data_type=sparse.values.data_type, dims=dense.type.shape)
                assert isinstance(dense.data, bytes)
                added.raw_data = dense.data
            del graph.sparse_initializer[:]

    def module(self, name: str, facts: Mapping[str, object]) -> Module:
        """``facts``: attributes of the entry."""
        graph = self.model.graph
        initialized = {tensor.name for tensor in graph.initializer}
        hidden = [value.name for value in graph.input if value.name in initialized]
        if hidden and self.model.ir_version >= 4:
            shown = ", ".join(hidden[:_SHOWN]) + (", ..." if len(hidden) > _SHOWN else "")
            self.sink.warn(DefaultsBecomeConstants(shown), where=self.where)
        # The main graph's names first: they are not to change because a branch before them uses the same.
        own = [value.name for value in graph.input if value.name not in initialized]
        own += [output for node in graph.node for output in node.output]
        scope = {value: "%" + value for value in own}
        self.values.update(scope.values())
        types = graph_types(graph)
        self._initializers(graph, scope)
        self._constants(graph, scope)
        args = tuple(Value("%" + v.name, types.get(v.name, UNKNOWN)) for v in graph.input if v.name not in initialized)
        ops = self._ops(graph, scope, types, "main")
        results = tuple(Value(scope[v.name], types.get(v.name, UNKNOWN)) for v in graph.output)
        func = Func(unique("@main", self.symbols), args, results, ops, attributes(facts))
        versions = {f"opset.{entry.domain or 'onnx'}": entry.version for entry in self.model.opset_import}
        producer = " ".join(filter(None, (self.model.producer_name, self.model.producer_version)))
        about = {"ir_version": self.model.ir_version, **({"producer": producer} if producer else {}), **versions}
        return Module("@" + name, (*self.resources, func), attributes(about))

    def _initializers(self, graph: GraphProto, scope: dict[str, str]) -> None:
        for tensor in graph.initializer:
            data = self._data(tensor)
            if data is not None:
                scope[tensor.name] = self._resource(tensor.name, tensor_type(tensor), data)

    def _resource(self, name: str, type_: TensorType, data: ResourceData, facets: Facets = ()) -> str:
        symbol = unique("@" + name, self.symbols)
        self.resources.append(Resource(symbol, type_, data, facets=facets))
        return symbol

    def _constants(self, graph: GraphProto, scope: dict[str, str]) -> None:
        """Large constants become resources; their nodes are left out. Calls of one function share the constants of its body."""
        for node in graph.node:
            value = _large_constant(node)
            if value is None or (data := self._data(value, node.output[0])) is None:
                continue
            key, facets = (data, tensor_type(value)), self._facets(node)
            if key not in self.constants:
                self.constants[key] = self._resource(node.output[0], tensor_type(value), data, facets)
            scope[node.output[0]] = self.constants[key]

    def _ops(self, graph: GraphProto, scope: dict[str, str], types: dict[str, Type], path: str) -> tuple[Op, ...]:
        ops = []
        for index, node in enumerate(graph.node):
            if _large_constant(node) is not None:
                continue
            label = node.name or f"{node.op_type}_{index}"
            here = "/".join(filter(None, (path, _inlined_path(node))))
            regions = [(key, self._region(inner, scope, f"{here}/{label}/{key}")) for key, inner in subgraphs(node)]
            domain = f"{node.domain}." if node.domain else ""
            ops.append(
                Op(
                    f"onnx.{domain}{node.op_type}",
                    tuple(scope[name] if name else "" for name in node.input),
                    tuple(Value(scope[name], types.get(name, UNKNOWN)) for name in node.output),
                    self._attributes(node, index),
                    tuple(sorted(regions, key=lambda region: region[0])),
                    facets=() if node.op_type == "Constant" else self._facets(node),
                    location=Location(here, node.name, _exporter_scope(node)),
                )
            )
        return tuple(ops)

    def _region(self, graph: GraphProto, outer: dict[str, str], path: str) -> Region:
        scope, types = dict(outer), graph_types(graph)
        initialized = {tensor.name for tensor in graph.initializer}
        for name in [*(value.name for value in graph.input), *(output for node in graph.node for output in node.output)]:
            if name not in initialized:
                scope[name] = unique("%" + name, self.values)
        self._initializers(graph, scope)
        self._constants(graph, scope)
        args = tuple(Value(scope[v.name], types.get(v.name, UNKNOWN)) for v in graph.input if v.name not in initialized)
        ops = self._ops(graph, scope, types, path)
        return Region(args, ops, tuple(scope[value.name] for value in graph.output))

    def _facets(self, node: NodeProto) -> Facets:
        """The facet ``training`` of a node, from its metadata."""
        said = next((entry.value for entry in node.metadata_props if entry.key == TRAINING_KEY), None)
        if said is None:
            return ()
        try:
            return (parse_facet(f"{InTraining.keyword}<{said}>"),)
        except ValueError as error:
            place = f"{self.where}: {node.name or next(filter(None, node.output), node.op_type)}"
            self.sink.error(TrainingMetadataInvalid(TRAINING_KEY, str(error)), where=place)
            return ()

    def _attributes(self, node: NodeProto, index: int) -> tuple[tuple[str, Attribute], ...]:
        by_name = {}
        for proto in node.attribute:
            try:
                name = "value" if node.op_type == "Constant" and proto.name == "sparse_value" else proto.name
                self._load(proto)
                attribute = attribute_of(proto, self.limits)
            except (ValueError, TypeError) as error:
                place = f"{self.where}: {node_label(node, index)}"
                self.sink.error(AttributeInvalid(proto.name, str(error)), where=place)
                continue
            if attribute is not None:
                by_name[name] = attribute
        return tuple((name, by_name[name]) for name in sorted(by_name))

    def _load(self, proto: onnx.AttributeProto) -> None:
        """Reads the external data of an attribute's tensors into them."""
        for tensor in [*([proto.t] if proto.HasField("t") else []), *proto.tensors]:
            if tensor.data_location == TensorProto.EXTERNAL:
                data = self._data(tensor, proto.name)
                if not isinstance(data, External):
                    raise ValueError("its tensor has no data")
                raw = read_resource(Resource("@" + proto.name, TensorType(DType.U8, (data.length,)), data), self.files)
                tensor.raw_data = raw.tobytes()
                tensor.data_location = TensorProto.DEFAULT
                del tensor.external_data[:]

    def _data(self, tensor: TensorProto, name: str = "") -> ResourceData | None:
        """The data of a tensor, or its place in a file; None after an error."""
        name = name or tensor.name
        try:
            type_ = tensor_type(tensor)
            if tensor.data_location != TensorProto.EXTERNAL:
                dense: Dense = dense_of(tensor)
                return Inline(dense.data)
            data = self._external(tensor, type_)
        except (ValueError, TypeError) as error:
            self.sink.error(InitializerInvalid(name, str(error)), where=self.where)
            return None
        except InvalidInput as error:
            for fault in error.diagnostics:
                self.sink.emit(replace(fault, where=f"{self.where}: initializer '{name}'"))
            return None
        return data

    def _external(self, tensor: TensorProto, type_: TensorType) -> External:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        needed = type_.nbytes or 0
        if type_.dtype is DType.STRING:
            raise ValueError("strings cannot be external data")
        offset, length = (_whole(entries.get(key), default) for key, default in (("offset", 0), ("length", needed)))
        if length != needed:
            raise ValueError(f"{type_} needs {needed} bytes, {length} are given")
        file = entries.get("location", "")
        if file == SELF:
            return External(self.file, offset, length)
        data_path(file, self.files.folder, self.where)
        return External(file, offset, length)


def _whole(text: str | None, default: int) -> int:
    """An offset or length in bytes. Raises ValueError for another text than a number."""
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise ValueError(f"offset and length of its external data must be numbers of bytes, found '{text[:40]}'")
    return int(text)


def _large_constant(node: NodeProto) -> TensorProto | None:
    """The tensor of a ``Constant`` that is worth a resource."""
    if node.op_type != "Constant" or node.domain:
        return None
    for attribute in node.attribute:
        if attribute.name == "value" and attribute.HasField("t"):
            tensor = attribute.t
            large = tensor.data_location == TensorProto.EXTERNAL or tensor.ByteSize() >= INLINE_LIMIT
            return tensor if large and tensor.data_type != TensorProto.STRING else None
    return None


def _inlined_path(node: NodeProto) -> str:
    return next((entry.value for entry in node.metadata_props if entry.key == PATH_KEY), "")


def _exporter_scope(node: NodeProto) -> str:
    """The innermost layer that PyTorch's exporter recorded: ``m.encoder.layer.0`` of the scopes ``['', 'm', ..., 'add']``,
    the last of which is the node itself; '' where nothing was recorded."""
    metadata: dict[str, str] = {entry.key: entry.value for entry in node.metadata_props}
    if SCOPE_KEY in metadata:
        return metadata[SCOPE_KEY]
    scopes = metadata.get("pkg.torch.onnx.name_scopes")
    if scopes:
        try:
            names = json.loads(scopes.replace("'", '"'))
        except (ValueError, RecursionError):
            return ""
        return str(names[-2]) if isinstance(names, list) and len(names) > 1 else ""
    parts = metadata.get("namespace", "").split("/")
    return parts[-2].partition(": ")[0] if len(parts) > 1 else ""
