"""Model-local functions, expanded into the graphs that call them.

After ``inline_functions`` no node calls a function of the model. A node that came from one carries the way to it in its
metadata (``PATH_KEY``: ``call:Function`` parts joined by ``/``), which the import puts into the op's location. Inner values
are named ``CALL/inner``, after the call's node name or first output.

Invariants: a value keeps its name when it is an input or output of the call; attribute references are replaced by the call's
attribute, else by the function's default, else left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

from dnnc.onnx.importer.faults import (
    FunctionsInCircle,
    FunctionsNestedTooDeep,
    FunctionsOfTooManyBytes,
    FunctionsOfTooManyNodes,
    GraphsNestedTooDeep,
)
from dnnc.onnx.importer.function_opsets import Converter, bound_attributes, domain_key, rewrite
from dnnc.onnx.importer.graphs import graphs, subgraphs
from ir.core.diagnostics import InvalidInput
from ir.core.limits import LIMITS, Limits
from ir.core.names import unique

PATH_KEY = "dnnc.path"
"""Node metadata: the calls that a node was inlined from."""

SCOPE_KEY = "dnnc.scope"
"""Node metadata: the exporter's scope, as the export writes it back."""

TRAINING_KEY = "dnnc.training"
"""Node metadata: what stands in the facet ``training<..>`` of the node's op, or of the resource that a Constant becomes."""

Key = tuple[str, str, str]


def inline_functions(model: ModelProto, where: str, limits: Limits = LIMITS) -> None:
    """Expands every call, in place. Raises InvalidInput for functions that call themselves, need another opset, are nested too
    deep or expand to too much (``limits``)."""
    functions = {(domain_key(f.domain), f.name, f.overload): f for f in model.functions}
    _check_extent(model, functions, where, limits)
    if not model.functions:
        return
    imported = {domain_key(entry.domain) for entry in model.opset_import}
    for function in model.functions:
        for entry in function.opset_import:
            if domain_key(entry.domain) not in imported:
                imported.add(domain_key(entry.domain))
                model.opset_import.add(domain=entry.domain, version=entry.version)
    versions = {domain_key(entry.domain): entry.version for entry in model.opset_import}
    inliner = _Inliner(functions, set(_names(model.graph)), Converter(versions, where), where, _most_bytes(model, limits))
    nodes = list(inliner.expand(model.graph.node, ""))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    del model.functions[:]


def _names(graph: GraphProto) -> Iterator[str]:
    """Names that the graph and those inside it define."""
    for one in graphs(graph):
        yield from (value.name for value in one.input)
        yield from (tensor.name for tensor in one.initializer)
        yield from (sparse.values.name for sparse in one.sparse_initializer)
        yield from (name for node in one.node for name in node.output)


@dataclass(frozen=True, slots=True)
class _Extent:
    """Totals of a body after expansion: ``nodes``, their ``size`` in bytes, and the depths to which ``graphs`` and ``calls``
    nest."""

    nodes: int = 0
    size: int = 0
    graphs: int = 0
    calls: int = 0


def _check_extent(model: ModelProto, functions: dict[Key, FunctionProto], where: str, limits: Limits) -> None:
    """Raises InvalidInput where the expansion would be larger or deeper than ``limits`` say, before anything is expanded."""
    whole = _extent(model.graph.node, functions, {}, (), where, limits)
    stated = len(model.graph.node) + sum(len(function.node) for function in model.functions)
    most = max(limits.inlined_nodes, 10 * stated)
    if functions and whole.nodes > most:
        raise InvalidInput(FunctionsOfTooManyNodes(whole.nodes, most), where=where)
    if functions and whole.size > (most := _most_bytes(model, limits)):
        raise InvalidInput(FunctionsOfTooManyBytes(most), where=where)
    if whole.graphs > limits.nested_graphs:
        raise InvalidInput(GraphsNestedTooDeep(whole.graphs, limits.nested_graphs), where=where)
    if whole.calls > limits.nested_calls:
        raise InvalidInput(FunctionsNestedTooDeep(limits.nested_calls), where=where)


def _most_bytes(model: ModelProto, limits: Limits) -> int:
    stated: int = model.ByteSize()
    return max(limits.inlined_bytes, 10 * stated)


def _extent(
    nodes: Iterable[NodeProto],
    functions: dict[Key, FunctionProto],
    known: dict[Key, _Extent],
    stack: tuple[Key, ...],
    where: str,
    limits: Limits,
) -> _Extent:
    """The extent of a body. ``known``: extents of functions so far, each computed once; ``stack``: the calls that lead here.
    Raises InvalidInput for a function that calls itself, and for calls nested too deep."""
    total = size = graphs = calls = 0
    for node in nodes:
        key = (domain_key(node.domain), node.op_type, node.overload)
        function = functions.get(key)
        if function is None:
            total, size = total + 1, size + node.ByteSize() + _loaded_bytes(node)
            for _, graph in subgraphs(node):
                inner = _extent(graph.node, functions, known, stack, where, limits)
                total, size = total + inner.nodes, size + inner.size - graph.ByteSize()
                graphs, calls = max(graphs, inner.graphs + 1), max(calls, inner.calls)
            continue
        if key not in known:
            if key in stack:
                circle = " -> ".join(name for _, name, _ in (*stack[stack.index(key) :], key))
                raise InvalidInput(FunctionsInCircle(circle), where=where)
            if len(stack) >= limits.nested_calls:
                raise InvalidInput(FunctionsNestedTooDeep(limits.nested_calls), where=where)
            known[key] = _extent(function.node, functions, known, (*stack, key), where, limits)
        inner = known[key]
        total, size = total + inner.nodes, size + inner.size
        graphs, calls = max(graphs, inner.graphs), max(calls, inner.calls + 1)
    return _Extent(total, size, graphs, calls)


def _loaded_bytes(node: NodeProto) -> int:
    """Bytes of external data of the node's tensor attributes. The import reads these for every copy of the node; copies of a
    ``Constant`` share theirs."""
    if node.op_type == "Constant":
        return 0
    tensors = [tensor for attribute in node.attribute for tensor in (attribute.t, *attribute.tensors)]
    lengths = [entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "length"]
    return sum(int(length) for length in lengths if length.isdecimal() and len(length) < 18)


@dataclass(slots=True)
class _Inliner:
    """One expansion. ``taken``: names of values in use; ``spent``: bytes made so far, of ``most``."""

    functions: dict[Key, FunctionProto]
    taken: set[str]
    converter: Converter
    where: str
    most: int
    spent: int = 0

    def expand(self, nodes: Iterable[NodeProto], path: str) -> Iterator[NodeProto]:
        for node in nodes:
            function = self.functions.get((domain_key(node.domain), node.op_type, node.overload))
            if function is None:
                for attribute in node.attribute:
                    for inner in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
                        body = list(self.expand(inner.node, path))
                        del inner.node[:]
                        inner.node.extend(body)
                if path:
                    node.metadata_props.add(key=PATH_KEY, value=path)
                    self.spend(node.ByteSize())
                yield node
                continue
            call = node.name or next(filter(None, node.output), node.op_type)
            inner_path = f"{path}/{call}:{node.op_type}" if path else f"{call}:{node.op_type}"
            function = self.converter.converted(function, bound_attributes(node, function))
            yield from self.expand(_body(node, function, call, self.taken), inner_path)

    def spend(self, size: int) -> None:
        self.spent += size
        if self.spent > self.most:
            raise InvalidInput(FunctionsOfTooManyBytes(self.most), where=self.where)


def _body(call: NodeProto, function: FunctionProto, prefix: str, taken: set[str]) -> Iterator[NodeProto]:
    """The nodes of one call, renamed."""
    names = {"": ""}
    for index, name in enumerate(function.input):
        names[name] = call.input[index] if index < len(call.input) else ""
    inputs = set(function.input)
    wanted = dict(zip(function.output, call.output, strict=False))
    for name, outer in wanted.items():
        if outer and name not in inputs:
            names[name] = outer
    attributes = bound_attributes(call, function)

    def rename(name: str) -> str:
        if name not in names:
            names[name] = unique(f"{prefix}/{name}", taken)
        return names[name]

    for original in function.node:
        node = NodeProto()
        node.CopyFrom(original)
        rewrite(node, rename, attributes)
        yield node
    for name, outer in wanted.items():
        if outer and name in inputs:  # handed through
            yield onnx.helper.make_node("Identity", [names[name]], [outer], name=f"{prefix}/{name}")
