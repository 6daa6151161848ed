"""Exports a function or a stage as an ONNX model: the inverse of the import.

Names lose ``%`` and ``@``; regions become subgraphs; values of ``comm.recv`` become graph inputs, operands of ``comm.send``
graph outputs, each value once. States become graph inputs behind all others. Locations become node names and metadata, so that
importing the model gives ops with the same locations. Exception: if nodes of one graph have the same name (a function that is
called twice gives such nodes), all but the first get a suffix, because onnxruntime refuses the graph otherwise.

Invariants: every value keeps its ONNX name (a resource that has the name of a value gets a suffix); the model has only what the
function uses; weights are not read here, ``tensors`` decides how.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import onnx_ir
from onnx_ir import serde

from dnnc.engines.onnxruntime.faults import NotAnOnnxOp, OpsetMissing, OpsetTooNew, WeightOfUnknownShape, WeightWithoutData
from dnnc.onnx.attributes import attribute_proto
from dnnc.onnx.importer.functions import PATH_KEY, SCOPE_KEY, TRAINING_KEY
from dnnc.onnx.opdefs import operator_of
from dnnc.onnx.schemas import schema
from dnnc.onnx.types import ELEMENT_NUMBERS, tensor_proto, type_proto
from dnnc.onnx.weights import WeightSource, read_resource
from ir.core.attributes import AttrKind, Dense
from ir.core.diagnostics import InvalidInput
from ir.core.facets import InTraining, facet_text
from ir.core.module import Declared, External, Func, Inline, Module, Resource, Stage, State, View
from ir.core.names import unique
from ir.core.ops import Op, Region, Value, all_ops, all_values
from ir.core.types import DType, MapType, OptionalType, SeqType, TensorType, Type
from passes.graph.folding import expand, is_block
from passes.meshes.reshard_ops import without_reshards

Tensors: TypeAlias = Callable[[Resource], onnx_ir.TensorProtocol]

RUNTIME_OPSET = 26
"""Newest default-domain opset that onnxruntime 1.31 runs."""

RUNTIME_IR_VERSION = 13
"""Newest IR version that onnxruntime 1.31 reads."""

_BASE_IR_VERSION = 11  # the first with multi-device annotations
_IR_VERSION_OF = {DType.F8E8M0: 12, DType.I2: 13, DType.U2: 13, DType.F6E2M3: 14, DType.F6E3M2: 14}


def export_func(
    module: Module,
    func: Func | Stage,
    *,
    ir_version: int | None = None,
    tensors: Tensors | None = None,
    opset_limit: int | None = RUNTIME_OPSET,
) -> onnx_ir.Model:
    """The ONNX model of a function or stage of ``module``, with folded blocks expanded and reshards left out.

    - ``ir_version``: of the model; by default 11 (the first with multi-device annotations), or newer if the element types need
      it;
    - ``tensors``: from a resource to its tensor; by default ``reference_tensor``, which reads no file;
    - ``opset_limit``: the newest default opset of the model. A newer one is converted (``lower_opset``); None: no limit.

    Raises InvalidInput for ops of other dialects, weights without data or of unknown shape, and an opset that is missing or
    cannot be converted.
    """
    if any(map(is_block, module.of_type(Func))):
        module = expand(module)
        expanded = module.symbol(func.name)
        func = expanded if isinstance(expanded, Func | Stage) else func
    if isinstance(func, Func):
        func = without_reshards(func).func
    builder = _Builder(module, func, tensors or reference_tensor)
    model = builder.model(ir_version)
    version = model.opset_imports.get("", 0)
    if opset_limit is not None and version > opset_limit:
        return lower_opset(model, opset_limit, module.name)
    return model


def reference_tensor(resource: Resource) -> onnx_ir.TensorProtocol:
    """The tensor of a resource, made without reading a file: a reference for external data, with the path as in the module;
    inline data as it is; other data lazily. Raises InvalidInput for a resource without data."""
    type_, name = _tensor_type(resource), resource.name[1:]
    dtype, shape = onnx_ir.DataType(ELEMENT_NUMBERS[type_.dtype]), onnx_ir.Shape(_shape(type_))
    match resource.data:
        case External(file, offset, length):
            return onnx_ir.ExternalTensor(file, offset, length, dtype, shape=shape, name=name)
        case Inline(data):
            return serde.deserialize_tensor(tensor_proto(Dense(type_, data), name))
        case Declared():
            raise InvalidInput(WeightWithoutData(), where=resource.name)
    return onnx_ir.LazyTensor(lambda: read_tensor(resource, Path()), dtype, shape, name=name)


def lazy_tensors(source: WeightSource) -> Tensors:
    """Makes tensors whose data is read from ``source``, or generated, at first access."""

    def tensor(resource: Resource) -> onnx_ir.TensorProtocol:
        if not isinstance(resource.data, External | View):
            return reference_tensor(resource)
        type_ = _tensor_type(resource)
        dtype, shape = onnx_ir.DataType(ELEMENT_NUMBERS[type_.dtype]), onnx_ir.Shape(_shape(type_))
        return onnx_ir.LazyTensor(lambda: read_tensor(resource, source), dtype, shape, name=resource.name[1:])

    return tensor


def reading_tensors(source: WeightSource) -> Tensors:
    """Makes tensors with their data in memory, read from ``source``."""
    return lambda resource: read_tensor(resource, source)


def read_tensor(resource: Resource, source: WeightSource) -> onnx_ir.TensorProtocol:
    """The tensor of a resource with its data. Raises InvalidInput as ``read_resource``."""
    array, type_ = read_resource(resource, source), _tensor_type(resource)
    if type_.dtype is DType.STRING:
        return onnx_ir.StringTensor(array.reshape(-1).tolist(), shape=onnx_ir.Shape(array.shape), name=resource.name[1:])
    return onnx_ir.Tensor(array, onnx_ir.DataType(ELEMENT_NUMBERS[type_.dtype]), name=resource.name[1:])


def lower_opset(model: onnx_ir.Model, version: int, where: str) -> onnx_ir.Model:
    """The model in the older default opset ``version``: unchanged except for that number if none of its operators changed since
    ``version``, else converted by onnx. Raises InvalidInput, with the operators that changed, where onnx cannot convert it."""
    opset = model.opset_imports.get("", version)
    changed = sorted(
        {
            node.op_type
            for node in onnx_ir.traversal.RecursiveGraphIterator(model.graph)
            if node.domain == "" and schema(node.op_type, opset).since_version > version
        }
    )
    if not changed:
        model.graph.opset_imports[""] = version
        return model
    from onnx import version_converter

    try:
        converted = serde.deserialize_model(version_converter.convert_version(serde.serialize_model(model), version))
        _check_operators(converted, version)
    except Exception as error:  # the converter raises RuntimeError, ConvertError and others
        raise InvalidInput(OpsetTooNew(opset, version, tuple(changed), str(error)), where=where) from None
    # The converter loses the references to external data.
    for name, value in model.graph.initializers.items():
        if name in converted.graph.initializers:
            converted.graph.initializers[name].const_value = value.const_value
    converted.ir_version = model.ir_version
    return converted


def _check_operators(model: onnx_ir.Model, version: int) -> None:
    """Raises SchemaError for an operator that ``version`` does not have: the converter passes on operators that it does not
    know."""
    for node in onnx_ir.traversal.RecursiveGraphIterator(model.graph):
        if node.domain == "":
            schema(node.op_type, version)


class _Builder:
    """Builds the model of one function. ``values``: by IR name; ``taken``: ONNX names of values; ``named``: (graph, node name)
    of the nodes so far."""

    def __init__(self, module: Module, func: Func | Stage, tensors: Tensors) -> None:
        self.source, self.func, self.tensors = module, func, tensors
        self.resources = module.resources
        self.values: dict[str, onnx_ir.Value] = {}
        self.initializers: list[onnx_ir.Value] = []
        self.states: list[onnx_ir.Value] = []
        self.taken = {value.name[1:] for value in (*func.args, *all_values(func.ops))}
        self.dtypes: set[DType] = set()
        self.node_names = {op.location.node for op in all_ops(func.ops)}
        self.named: set[tuple[str, str]] = set()

    def model(self, ir_version: int | None) -> onnx_ir.Model:
        func = self.func
        received = [value for op in func.ops if op.name == "comm.recv" for value in op.results]
        sent = list(dict.fromkeys(op.operands[0] for op in func.ops if op.name == "comm.send"))
        inputs = [self.define(value) for value in (*func.args, *received)]
        nodes = self.nodes([op for op in func.ops if op.dialect != "comm"], "main")
        names = list(dict.fromkeys([*(value.name for value in func.results), *sent]))
        types = {value.name: value.type for value in func.results}
        outputs = [self.output(name, types.get(name)) for name in names]
        attributes = dict(self.source.attributes)
        graph = onnx_ir.Graph(
            [*inputs, *self.states],
            outputs,
            nodes=nodes,
            initializers=self.initializers,
            opset_imports=self.opsets(),
            name=func.name[1:],
        )
        needed = max((_IR_VERSION_OF.get(dtype, 0) for dtype in self.dtypes), default=0)
        producer = attributes["producer"].value if "producer" in attributes else None
        version = ir_version if ir_version is not None else max(_BASE_IR_VERSION, needed)
        return onnx_ir.Model(graph, ir_version=version, producer_name=producer)

    def opsets(self) -> dict[str, int]:
        """The opset of each domain. Raises InvalidInput for an op of a domain without one."""
        opsets = {}
        for key, attribute in self.source.attributes:
            if key.startswith("opset.") and attribute.kind is AttrKind.INT:
                domain = key.removeprefix("opset.")
                opsets["" if domain == "onnx" else domain] = int(attribute.value)
        for op in all_ops(self.func.ops):
            domain = operator_of(op.name)[0] if op.dialect == "onnx" else ""
            if op.dialect == "onnx" and domain not in opsets:
                missing = f"opset.{domain or 'onnx'}"
                raise InvalidInput(OpsetMissing(op.id, op.name, missing), where=self.source.name)
        return opsets

    def define(self, value: Value) -> onnx_ir.Value:
        """Makes and registers the ONNX value of an argument or a result of an op."""
        defined = onnx_ir.Value(name=value.name[1:])
        self.annotate(defined, value.type)
        self.values[value.name] = defined
        return defined

    def annotate(self, value: onnx_ir.Value, type_: Type) -> None:
        """Sets the type of ``value``, except for types with maps, which onnx_ir lacks."""
        if _has_map(type_):
            return
        self.dtypes.update(_dtypes(type_))
        proto = type_proto(type_)
        try:
            value.type = serde.deserialize_type_proto_for_type(proto)
            value.shape = serde.deserialize_type_proto_for_shape(proto)
        except (ValueError, serde.SerdeError):  # a sequence of unknown elements
            value.type = None

    def value(self, name: str) -> onnx_ir.Value | None:
        """The ONNX value of an operand, None for an absent one. Makes an initializer at the first use of a resource, an input
        at that of a state."""
        if not name:
            return None
        value = self.values.get(name)
        if value is None and name in self.resources:
            resource = self.resources[name]
            value = onnx_ir.Value(name=unique(name[1:], self.taken))
            self.annotate(value, resource.type)
            self.values[name] = value
            if isinstance(resource.data, State):
                self.states.append(value)
                return value
            tensor = self.tensors(resource)
            if tensor.name != value.name:
                tensor.name = value.name
            value.const_value = tensor
            self.initializers.append(value)
        if value is None:
            raise AssertionError(f"{self.func.name}: {name} is used but not defined")  # the verifier forbids it
        return value

    def output(self, name: str, type_: Type | None) -> onnx_ir.Value:
        value = self.value(name)
        assert value is not None
        if value.type is None and type_ is not None:
            self.annotate(value, type_)
        return value

    def nodes(self, ops: Iterable[Op], path: str) -> list[onnx_ir.Node]:
        return [self.node(op, index, path) for index, op in enumerate(ops)]

    def node(self, op: Op, index: int, path: str) -> onnx_ir.Node:
        if op.dialect != "onnx":
            raise InvalidInput(NotAnOnnxOp(op.id, op.name), where=self.source.name)
        domain, op_type = operator_of(op.name)
        here = op.location.path or path
        label = op.location.node or f"{op_type}_{index}"
        attributes = [serde.deserialize_attribute(attribute_proto(key, attribute)) for key, attribute in op.attributes]
        attributes += self.graphs(op, f"{here}/{label}")
        metadata = {}
        if here.startswith(path + "/"):
            metadata[PATH_KEY] = here[len(path) + 1 :]
        if op.location.scope:
            metadata[SCOPE_KEY] = op.location.scope
        if fact := op.facet(InTraining):
            metadata[TRAINING_KEY] = facet_text(fact).removeprefix(f"{InTraining.keyword}<")[:-1]
        return onnx_ir.Node(
            domain,
            op_type,
            [self.value(name) for name in op.operands],
            attributes,
            outputs=[self.define(value) for value in op.results],
            name=self.node_name(op.location.node, path),
            metadata_props=metadata,
        )

    def node_name(self, name: str, graph: str) -> str:
        """The name of a node, with a suffix if a node of the same graph has it."""
        if name and (graph, name) in self.named:
            return unique(name, self.node_names)
        self.named.add((graph, name))
        return name

    def graphs(self, op: Op, path: str) -> list[onnx_ir.Attr]:
        """The graph attributes of an op. Regions with keys ``name.0``, ``name.1`` and so on become one list."""
        single: list[onnx_ir.Attr] = []
        lists: dict[str, list[onnx_ir.Graph]] = {}
        for key, region in op.regions:
            name, _, index = key.rpartition(".")
            graph = self.region(region, f"{path}/{key}")
            if name and index.isdigit():
                lists.setdefault(name, []).append(graph)
            else:
                single.append(onnx_ir.AttrGraph(key, graph))
        return single + [onnx_ir.AttrGraphs(name, graphs) for name, graphs in lists.items()]

    def region(self, region: Region, path: str) -> onnx_ir.Graph:
        inputs = [self.define(value) for value in region.args]
        nodes = self.nodes(region.ops, path)
        own = {value.name for value in region.args} | {value.name for op in region.ops for value in op.results}
        outputs: list[onnx_ir.Value] = []
        for name in region.results:
            value = self.value(name)
            assert value is not None
            if name not in own or value in outputs:
                # In ONNX a subgraph's outputs are values of that subgraph, each at most once.
                copy = onnx_ir.Value(name=unique(f"{value.name}.copy", self.taken))
                copy.type, copy.shape = value.type, value.shape
                nodes.append(onnx_ir.Node("", "Identity", [value], outputs=[copy], name=""))
                value = copy
            outputs.append(value)
        return onnx_ir.Graph(inputs, outputs, nodes=nodes, name=path.rpartition("/")[2])


def _tensor_type(resource: Resource) -> TensorType:
    if not isinstance(resource.type, TensorType) or resource.type.elements is None:
        raise InvalidInput(WeightOfUnknownShape(str(resource.type)), where=resource.name)
    return resource.type


def _shape(type_: TensorType) -> list[int]:
    return [dim for dim in type_.shape or () if isinstance(dim, int)]


def _has_map(type_: Type) -> bool:
    return isinstance(type_, MapType) or (isinstance(type_, SeqType | OptionalType) and _has_map(type_.element))


def _dtypes(type_: Any) -> Iterator[DType]:
    if isinstance(type_, TensorType):
        yield type_.dtype
    elif isinstance(type_, SeqType | OptionalType):
        yield from _dtypes(type_.element)
