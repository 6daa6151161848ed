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
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto

from ir.diagnostics import InvalidInput
from ir.limits import LIMITS, Limits
from ir.names import unique

PATH_KEY = "dnnc.path"
"""Node metadata: the calls that a node was inlined from."""

SCOPE_KEY = "dnnc.scope"
"""Node metadata: the exporter's scope, as the export writes it back."""

Key = tuple[str, str, str]


def inline_functions(model: ModelProto, where: str, limits: Limits = LIMITS) -> None:
    """Expands every call, in place. Raises InvalidInput for functions that call themselves, need another opset, are nested too
    deep or expand to too much (``limits``)."""
    functions = {(_domain(f.domain), f.name, f.overload): f for f in model.functions}
    _check_extent(model, functions, where, limits)
    if not model.functions:
        return
    if _needs_conversion(model):
        _inline_converting(model, where)
        return
    imported = {_domain(entry.domain) for entry in model.opset_import}
    for function in model.functions:
        for entry in function.opset_import:
            if _domain(entry.domain) not in imported:
                imported.add(_domain(entry.domain))
                model.opset_import.add(domain=entry.domain, version=entry.version)
    inliner = _Inliner(functions, set(_names(model.graph)), where, limits.inlined_bytes)
    nodes = list(inliner.expand(model.graph.node, ""))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    del model.functions[:]


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def subgraphs(node: NodeProto) -> Iterator[tuple[str, GraphProto]]:
    """Graph attributes of a node with their keys; the i-th of a list is ``name.i``."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.name, attribute.g
        for index, graph in enumerate(attribute.graphs):
            yield f"{attribute.name}.{index}", graph


def _names(graph: GraphProto) -> Iterator[str]:
    yield from (value.name for value in graph.input)
    yield from (tensor.name for tensor in graph.initializer)
    yield from (sparse.values.name for sparse in graph.sparse_initializer)
    for node in graph.node:
        yield from node.output
        for _, inner in subgraphs(node):
            yield from _names(inner)


@dataclass(frozen=True, slots=True)
class _Extent:
    """What a body becomes when its calls are expanded: ``nodes`` in all, ``graphs`` and ``calls`` nested in each other."""

    nodes: int = 0
    graphs: int = 0
    calls: int = 0


def _check_extent(model: ModelProto, functions: dict[Key, FunctionProto], where: str, limits: Limits) -> None:
    """Raises InvalidInput where the expansion would be larger or deeper than ``limits`` say, before anything is expanded."""
    whole = _extent(model.graph.node, functions, {}, (), where, limits)
    stated = len(model.graph.node) + sum(len(function.node) for function in model.functions)
    most = max(limits.inlined_nodes, 10 * stated)
    if functions and whole.nodes > most:
        message = f"the calls of model functions expand to {whole.nodes} nodes; at most {most} are supported"
        hint = "is a function called in a circle or far more often than meant? --limit inlined-nodes=NUMBER allows more"
        raise InvalidInput(message, where=where, hint=hint)
    if whole.graphs > limits.nested_graphs:
        message = f"graphs are nested {whole.graphs} deep; at most {limits.nested_graphs} levels are supported"
        raise InvalidInput(message, where=where)
    if whole.calls > limits.nested_calls:
        raise InvalidInput(_too_deep(limits), where=where)


def _too_deep(limits: Limits) -> str:
    return f"model functions call each other more than {limits.nested_calls} deep; at most that many levels are supported"


def _extent(
    nodes: Iterable[NodeProto],
    functions: dict[Key, FunctionProto],
    known: dict[Key, _Extent],
    stack: tuple[Key, ...],
    where: str,
    limits: Limits,
) -> _Extent:
    """The extent of a body, each function measured once. ``known``: functions so far; ``stack``: the calls that lead here.
    Raises InvalidInput for a function that calls itself, and for calls nested too deep."""
    total = graphs = calls = 0
    for node in nodes:
        key = (_domain(node.domain), node.op_type, node.overload)
        function = functions.get(key)
        if function is None:
            total += 1
            for _, graph in subgraphs(node):
                inner = _extent(graph.node, functions, known, stack, where, limits)
                total, graphs, calls = total + inner.nodes, max(graphs, inner.graphs + 1), max(calls, inner.calls)
            continue
        if key not in known:
            if key in stack:
                circle = " -> ".join(name for _, name, _ in (*stack[stack.index(key) :], key))
                raise InvalidInput(f"model functions call each other in a circle: {circle}", where=where)
            if len(stack) >= limits.nested_calls:
                raise InvalidInput(_too_deep(limits), where=where)
            known[key] = _extent(function.node, functions, known, (*stack, key), where, limits)
        inner = known[key]
        total, graphs, calls = total + inner.nodes, max(graphs, inner.graphs), max(calls, inner.calls + 1)
    return _Extent(total, graphs, calls)


@dataclass(slots=True)
class _Inliner:
    """One expansion. ``taken``: names of values in use; ``left``: bytes that may still be made."""

    functions: dict[Key, FunctionProto]
    taken: set[str]
    where: str
    left: int

    def expand(self, nodes: Iterable[NodeProto], path: str) -> Iterator[NodeProto]:
        for node in nodes:
            function = self.functions.get((_domain(node.domain), node.op_type, node.overload))
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
            yield from self.expand(_body(node, function, call, self.taken), inner_path)

    def spend(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            message = "the calls of model functions expand to more bytes than are supported"
            raise InvalidInput(message, where=self.where, hint="are its names or constants longer than meant?")


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
    attributes = {attribute.name: attribute for attribute in function.attribute_proto}
    attributes |= {attribute.name: attribute for attribute in call.attribute}

    def rename(name: str) -> str:
        if name not in names:
            names[name] = unique(f"{prefix}/{name}", taken)
        return names[name]

    for original in function.node:
        node = NodeProto()
        node.CopyFrom(original)
        _rewrite(node, rename, attributes)
        yield node
    for name, outer in wanted.items():
        if outer and name in inputs:  # handed through
            yield onnx.helper.make_node("Identity", [names[name]], [outer], name=f"{prefix}/{name}")


def _rewrite(node: NodeProto, rename: object, attributes: dict[str, AttributeProto]) -> None:
    assert callable(rename)
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
            for tensor in graph.initializer:
                tensor.name = rename(tensor.name)
            for inner in graph.node:
                _rewrite(inner, rename, attributes)
        kept.append(attribute)
    kept = [_copy(attribute) for attribute in kept]
    del node.attribute[:]
    node.attribute.extend(kept)


def _copy(attribute: AttributeProto) -> AttributeProto:
    copy = AttributeProto()
    copy.CopyFrom(attribute)
    return copy


def _needs_conversion(model: ModelProto) -> bool:
    """Whether some function uses an operator whose definition differs between its opset and the model's."""
    versions = {_domain(entry.domain): entry.version for entry in model.opset_import}

    def differs(nodes: Iterable[NodeProto], own: dict[str, int]) -> bool:
        for node in nodes:
            domain = _domain(node.domain)
            ours, theirs = own.get(domain), versions.get(domain)
            if ours is not None and theirs is not None and ours != theirs and onnx.defs.has(node.op_type, domain):
                try:
                    first = onnx.defs.get_schema(node.op_type, ours, domain).since_version
                    second = onnx.defs.get_schema(node.op_type, theirs, domain).since_version
                except onnx.defs.SchemaError:
                    return True
                if first != second:
                    return True
            if any(differs(graph.node, own) for _, graph in subgraphs(node)):
                return True
        return False

    return any(
        differs(function.node, {_domain(entry.domain): entry.version for entry in function.opset_import})
        for function in model.functions
    )


def _inline_converting(model: ModelProto, where: str) -> None:
    """onnx's own inliner, which converts opsets but records no path."""
    from onnx import inliner

    try:
        inlined = inliner.inline_local_functions(model, convert_version=True)
    except Exception as error:  # onnx raises bare RuntimeError and ConvertError here
        message = f"a model function uses another opset than the model and cannot be converted: {error}"
        raise InvalidInput(message, where=where, hint="export the model with one opset") from None
    model.CopyFrom(inlined)


__all__ = ["PATH_KEY", "SCOPE_KEY", "inline_functions", "subgraphs"]
