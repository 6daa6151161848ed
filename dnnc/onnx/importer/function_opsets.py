"""Model-local functions in the opset of the model: a body written for another one is converted before its calls are expanded.

onnx's version converter converts a body once for each combination of attributes in calls. The converter drops references to
attributes, so attributes are bound first, and references to files, so constants with external data are set aside. It does not
know the types of the body's inputs, and it knows the operators of ONNX only: a function that imports another version of another
domain is refused.

ONNX allows operators of another opset where their definition is the same in both. onnxruntime, however, reads every operator by
the model's opset, whatever the function imports. So an operator that is valid in both opsets with different meanings (Softmax
without an axis, before and since opset 13) is refused. An operator that is valid in the function's opset alone is converted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import onnx
from onnx import AttributeProto, FunctionProto, NodeProto, TensorProto, ValueInfoProto

from dnnc.onnx.importer.faults import FunctionNotConverted, OperatorOfTwoMeanings
from dnnc.onnx.importer.graphs import subgraphs
from dnnc.onnx.ort import plain_words
from ir.core.diagnostics import InvalidInput


def domain_key(domain: str) -> str:
    """A domain as tables name it."""
    return "" if domain == "ai.onnx" else domain


def bound_attributes(call: NodeProto, function: FunctionProto) -> dict[str, AttributeProto]:
    """What the function's attributes are in a call: its own, else the function's defaults."""
    return {attribute.name: attribute for attribute in (*function.attribute_proto, *call.attribute)}


def rewrite(node: NodeProto, rename: Callable[[str], str], attributes: Mapping[str, AttributeProto]) -> None:
    """Gives the node's values the names that ``rename`` says, and puts ``attributes`` in place of references to them."""
    node.input[:] = [rename(name) for name in node.input]
    node.output[:] = [rename(name) for name in node.output]
    bound = []
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            argument = attributes.get(attribute.ref_attr_name)
            if argument is None:
                continue
            replaced = AttributeProto()
            replaced.CopyFrom(argument)
            replaced.name = attribute.name
            bound.append(replaced)
            continue
        for graph in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
            for value in [*graph.input, *graph.output, *graph.value_info]:
                value.name = rename(value.name)
            for tensor in (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)):
                tensor.name = rename(tensor.name)
            for inner in graph.node:
                rewrite(inner, rename, attributes)
        bound.append(attribute)
    bound = [_copy(attribute) for attribute in bound]
    del node.attribute[:]
    node.attribute.extend(bound)


def _copy(attribute: AttributeProto) -> AttributeProto:
    copy = AttributeProto()
    copy.CopyFrom(attribute)
    return copy


@dataclass(slots=True)
class Converter:
    """Converts functions to the opsets ``versions`` of a model, by domain."""

    versions: Mapping[str, int]
    where: str
    _differing: dict[tuple[str, str, str], str | None] = field(default_factory=dict)
    _converted: dict[tuple[object, ...], FunctionProto] = field(default_factory=dict)

    def converted(self, function: FunctionProto, attributes: Mapping[str, AttributeProto]) -> FunctionProto:
        """The function as the model's opsets say it, with its attributes bound where it had to be converted. Raises
        InvalidInput."""
        key = (domain_key(function.domain), function.name, function.overload)
        if key not in self._differing:
            self._differing[key] = self._differs(
                function.node, {domain_key(e.domain): e.version for e in function.opset_import}
            )
        domain = self._differing[key]
        if domain is None:
            return function
        if domain:
            raise self._refused(f"it takes operators of '{domain}' from another version")
        choice = (*key, *(attributes[name].SerializeToString() for name in sorted(attributes)))
        if choice not in self._converted:
            bound = _bound(function, attributes)
            self._refuse_two_meanings(bound)
            self._converted[choice] = self._convert(bound)
        return self._converted[choice]

    def _differs(self, nodes: Iterable[NodeProto], own: Mapping[str, int]) -> str | None:
        """The domain of an operator whose definition is another in the model's opset; None where there is none."""
        for node in nodes:
            domain = domain_key(node.domain)
            ours, theirs = own.get(domain), self.versions.get(domain)
            if ours is not None and theirs is not None and ours != theirs and onnx.defs.has(node.op_type, domain):
                try:
                    first = onnx.defs.get_schema(node.op_type, ours, domain).since_version
                    second = onnx.defs.get_schema(node.op_type, theirs, domain).since_version
                except onnx.defs.SchemaError:
                    return domain
                if first != second:
                    return domain
            for _, graph in subgraphs(node):
                inner = self._differs(graph.node, own)
                if inner is not None:
                    return inner
        return None

    def _refuse_two_meanings(self, function: FunctionProto) -> None:
        """Raises InvalidInput for an operator that means one thing in the function's opset and another in the model's."""
        own, other = _versions(function).get("", 0), self.versions[""]
        for node in _leaves(function.node):
            if domain_key(node.domain) == "" and own and means_otherwise(node, own, other):
                fault = OperatorOfTwoMeanings(node.op_type, other, own)
                raise InvalidInput(fault, where=f"{self.where}: function '{function.name}'")

    def _convert(self, function: FunctionProto) -> FunctionProto:
        result = FunctionProto()
        result.CopyFrom(function)
        aside = [node for node in result.node if _lies_in_a_file(node)]
        inputs = [ValueInfoProto(name=name) for name in (*function.input, *(node.output[0] for node in aside))]
        outputs = [ValueInfoProto(name=name) for name in function.output]
        body = onnx.helper.make_graph([node for node in result.node if not _lies_in_a_file(node)], "body", inputs, outputs)
        versions = {**self.versions, **_versions(function)}
        try:
            opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in versions.items()]
            model = onnx.helper.make_model(body, opset_imports=opsets)
            converted = onnx.version_converter.convert_version(model, self.versions[""])
        except Exception as error:  # onnx raises bare RuntimeError and ConvertError here
            raise self._refused(plain_words(str(error))) from None
        del result.node[:], result.attribute[:], result.attribute_proto[:]
        constants = [onnx.helper.make_node("Constant", [], [t.name], value=t) for t in converted.graph.initializer]
        result.node.extend([*aside, *constants, *converted.graph.node])
        return result

    def _refused(self, reason: str) -> InvalidInput:
        return InvalidInput(FunctionNotConverted(reason), where=self.where)


_SILENT = {"Hardmax": 13, "GroupNormalization": 21, "RoiAlign": 16, "Scan": 9}
"""Opsets since which an operator means something else, where onnx's converter does not say so."""

_ALIKE = frozenset({"Dropout", "Split"})
"""Operators that the converter writes otherwise and that mean the same where both opsets take them."""


def means_otherwise(node: NodeProto, own: int, other: int) -> bool:
    """Whether a node of opset ``own`` can be read as one of ``other`` too, and is then another: onnx's converter writes it
    otherwise, but for what an operator does unless told."""
    try:
        first, second = (onnx.defs.get_schema(node.op_type, version, "") for version in (own, other))
    except onnx.defs.SchemaError:
        return False
    if first.since_version == second.since_version or node.op_type in _ALIKE or not _takes(second, node):
        return False
    since = _SILENT.get(node.op_type)
    if since is not None and (own < since) != (other < since):
        return node.op_type != "Hardmax" or not _of_last_axis(node)
    graph = onnx.helper.make_graph(
        [node],
        "alone",
        [ValueInfoProto(name=name) for name in dict.fromkeys(node.input) if name],
        [ValueInfoProto(name=name) for name in node.output if name],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", own)])
    try:
        converted = onnx.version_converter.convert_version(model, other).graph.node
    except Exception:  # onnx raises what it likes; the body as a whole is then refused too
        return False
    return len(converted) != 1 or _statement(converted[0], second) != _statement(node, second)


def _takes(schema: onnx.defs.OpSchema, node: NodeProto) -> bool:
    """Whether the node is one of this schema, by its operands and attributes."""
    stated = {attribute.name for attribute in node.attribute}
    required = {name for name, attribute in schema.attributes.items() if attribute.required}
    inputs, outputs = len(node.input), len(node.output)
    return (
        required <= stated <= set(schema.attributes)
        and schema.min_input <= inputs <= schema.max_input
        and schema.min_output <= outputs <= schema.max_output
    )


def _statement(node: NodeProto, schema: onnx.defs.OpSchema) -> tuple[object, ...]:
    """What a node says, without attributes that only repeat what its schema says."""
    defaults = {name: attribute.default_value for name, attribute in schema.attributes.items()}
    values = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    usual = {name: onnx.helper.get_attribute_value(default) for name, default in defaults.items() if default.type}
    return node.op_type, list(node.input), {name: value for name, value in values.items() if usual.get(name) != value}


def _of_last_axis(node: NodeProto) -> bool:
    """Whether a Hardmax is of the last axis: of this one every opset says the same."""
    return any(attribute.name == "axis" and attribute.i == -1 for attribute in node.attribute)


def _leaves(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Nodes without graphs of their own, those inside graphs included."""
    for node in nodes:
        inner = [graph for _, graph in subgraphs(node)]
        for graph in inner:
            yield from _leaves(graph.node)
        if not inner or node.op_type in _SILENT:
            yield node


def _bound(function: FunctionProto, attributes: Mapping[str, AttributeProto]) -> FunctionProto:
    """A copy of the function with its attributes in the place of references to them."""
    bound = FunctionProto()
    bound.CopyFrom(function)
    for node in bound.node:
        rewrite(node, str, attributes)
    return bound


def _versions(function: FunctionProto) -> dict[str, int]:
    return {domain_key(entry.domain): entry.version for entry in function.opset_import}


def _lies_in_a_file(node: NodeProto) -> bool:
    """Whether the node is a ``Constant`` whose data is not in the graph."""
    return node.op_type == "Constant" and any(a.t.data_location == TensorProto.EXTERNAL for a in node.attribute)
