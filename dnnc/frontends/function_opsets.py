"""Model-local functions in the opset of the model: a body written for another one is converted before its calls are expanded.

A body is converted once for each choice of attributes that calls make (the converter drops references to attributes, so these
are bound first), without the types of its inputs, by onnx's version converter. It knows the operators of ONNX only: another
domain in two versions that differ is refused. Constants whose data stayed in the file are kept aside, for the converter drops
references to files too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, TensorProto, ValueInfoProto

from dnnc.ort import plain_words
from ir.diagnostics import InvalidInput


def domain_key(domain: str) -> str:
    """A domain as tables name it."""
    return "" if domain == "ai.onnx" else domain


def subgraphs(node: NodeProto) -> Iterator[tuple[str, GraphProto]]:
    """Graph attributes of a node with their keys; the i-th of a list is ``name.i``."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.name, attribute.g
        for index, graph in enumerate(attribute.graphs):
            yield f"{attribute.name}.{index}", graph


def bound_attributes(call: NodeProto, function: FunctionProto) -> dict[str, AttributeProto]:
    """What the function's attributes are in a call: its own, else the function's defaults."""
    return {attribute.name: attribute for attribute in (*function.attribute_proto, *call.attribute)}


def rewrite(node: NodeProto, rename: Callable[[str], str], attributes: Mapping[str, AttributeProto]) -> None:
    """Gives the node's values the names that ``rename`` says, and puts ``attributes`` in place of references to them."""
    node.input[:] = [rename(name) for name in node.input]
    node.output[:] = [rename(name) for name in node.output]
    kept = []
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            given = attributes.get(attribute.ref_attr_name)
            if given is None:
                continue
            replaced = AttributeProto()
            replaced.CopyFrom(given)
            replaced.name = attribute.name
            kept.append(replaced)
            continue
        for graph in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
            for value in [*graph.input, *graph.output, *graph.value_info]:
                value.name = rename(value.name)
            for tensor in (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)):
                tensor.name = rename(tensor.name)
            for inner in graph.node:
                rewrite(inner, rename, attributes)
        kept.append(attribute)
    kept = [_copy(attribute) for attribute in kept]
    del node.attribute[:]
    node.attribute.extend(kept)


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
            self._converted[choice] = self._convert(function, attributes)
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

    def _convert(self, function: FunctionProto, attributes: Mapping[str, AttributeProto]) -> FunctionProto:
        result = FunctionProto()
        result.CopyFrom(function)
        for node in result.node:
            rewrite(node, str, attributes)
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
        result.node.extend([*aside, *converted.graph.node])
        return result

    def _refused(self, reason: str) -> InvalidInput:
        message = f"a model function uses another opset than the model and cannot be converted: {reason}"
        return InvalidInput(message, where=self.where, hint="export the model with one opset")


def _versions(function: FunctionProto) -> dict[str, int]:
    return {domain_key(entry.domain): entry.version for entry in function.opset_import}


def _lies_in_a_file(node: NodeProto) -> bool:
    """Whether the node is a ``Constant`` whose data is not in the graph."""
    return node.op_type == "Constant" and any(a.t.data_location == TensorProto.EXTERNAL for a in node.attribute)


__all__ = ["Converter", "bound_attributes", "domain_key", "rewrite", "subgraphs"]
