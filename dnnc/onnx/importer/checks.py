"""Structural checks of an ONNX model, in the words of the person who has to repair it.

Checks: opset imports; operators exist; arity and attributes of standard operators; each value is defined once, also with
respect to the graphs around it; each used value is defined; there is no cycle. Repairs, silently, as ONNX's own tools do: nodes
out of order are sorted topologically, ties by their place in the file; trailing empty outputs are dropped and other empty
outputs named; a graph output that is listed twice is kept once, with a warning. ``inference`` checks types of values.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import onnx
from onnx import GraphProto, ModelProto, NodeProto

from dnnc.onnx.domains import MICROSOFT, STANDARD_DOMAINS
from dnnc.onnx.importer import faults
from dnnc.onnx.importer.attribute_values import value_faults
from dnnc.onnx.importer.graphs import all_nodes, graphs, subgraphs
from dnnc.onnx.schemas import is_listed, schema
from dnnc.onnx.types import ELEMENT_TYPES
from ir.core.diagnostics import DiagnosticSink, Fault
from ir.core.names import unique
from passes.graph.graph import topological

OLDEST_OPSET = 7
_MOST_FAULTS = 20
_INPUT = "a graph input"
_LONG_NAME, _MANY_NAMES = 200, 20_000
"""Names that are longer or more are not searched for the closest one, which takes time by the product of their lengths."""


def domain_name(domain: str) -> str:
    """How messages spell a domain."""
    return domain or "ai.onnx"


def node_label(node: NodeProto, index: int) -> str:
    """How messages name a node: its name, else its place."""
    if node.name:
        return f"node '{node.name}' ({node.op_type})"
    result = next(filter(None, node.output), "")
    return f"node #{index} ({node.op_type}{', makes ' + repr(result) if result else ''})"


def node_reads(node: NodeProto) -> list[str]:
    """Names that a node needs from its graph or further out: its inputs and what its subgraphs capture."""
    reads = [name for name in node.input if name]
    for _, graph in subgraphs(node):
        defined = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
        defined |= {sparse.values.name for sparse in graph.sparse_initializer}
        for inner in graph.node:
            defined.update(inner.output)
        for inner in graph.node:
            reads += [name for name in node_reads(inner) if name not in defined]
        reads += [value.name for value in graph.output if value.name not in defined]
    return reads


def check_model(model: ModelProto, where: str, sink: DiagnosticSink) -> None:
    """Checks and orders the model in place. Emits errors and warnings; raises InvalidInput when there were errors."""
    checker = _Checker(model, where, sink)
    checker.opsets()
    checker.interface()
    # Functions are inlined by now; a subgraph is checked within the scope of what encloses it.
    checker.graph(model.graph, set(), "")
    checker.report_custom()
    sink.raise_errors()


class _Checker:
    def __init__(self, model: ModelProto, where: str, sink: DiagnosticSink) -> None:
        self.model, self.where, self.sink = model, where, sink
        self.versions: dict[str, int] = {}
        self.custom: Counter[tuple[str, str]] = Counter()
        self.missing_domains: set[str] = set()
        self.warned: set[Fault] = set()
        self.errors = 0
        self.fresh: set[str] = set()
        self.above: dict[str, str] = {}  # what makes each name that a graph inside can read, where the walk is

    def error(self, fault: Fault, place: str = "") -> None:
        self.errors += 1
        if self.errors <= _MOST_FAULTS:
            self.sink.error(fault, where=f"{self.where}: {place}" if place else self.where)

    def warn(self, fault: Fault, place: str = "") -> None:
        if fault not in self.warned:
            self.warned.add(fault)
            self.sink.warn(fault, where=f"{self.where}: {place}" if place else self.where)

    def opsets(self) -> None:
        for entry in self.model.opset_import:
            entry.domain = "" if entry.domain == "ai.onnx" else entry.domain
            known = self.versions.setdefault(entry.domain, entry.version)
            if known != entry.version:
                self.error(faults.OpsetImportedTwice(domain_name(entry.domain), known, entry.version))
        newest = onnx.defs.onnx_opset_version()
        version = self.versions.get("")
        if version is not None and version > newest:
            self.error(faults.OpsetTooNew(version, newest))
        elif version is not None and version < 1:
            self.error(faults.OpsetNotPositive(version, OLDEST_OPSET))
            self.versions[""] = newest
        elif version is not None and version < OLDEST_OPSET:
            changed = sorted(_changed_operators(self.model.graph, version))
            if changed:
                self.error(faults.OpsetTooOld(version, OLDEST_OPSET, tuple(changed)))
            else:
                self.versions[""] = OLDEST_OPSET
                for entry in self.model.opset_import:
                    entry.version = OLDEST_OPSET if not entry.domain else entry.version
        if not self.model.opset_import:
            self.error(faults.NoOpset())
            self.versions[""] = newest

    def interface(self) -> None:
        """Inputs of the model state an element type, and something comes out of it."""
        for value in self.model.graph.input:
            if value.type.HasField("tensor_type") and value.type.tensor_type.elem_type not in ELEMENT_TYPES:
                number = value.type.tensor_type.elem_type
                if number:
                    self.error(faults.InputOfUnknownElementType(value.name, number))
                else:
                    self.error(faults.InputWithoutElementType(value.name))
        if not self.model.graph.output:
            self.error(faults.NoOutputs())

    def graph(self, graph: GraphProto, outer: set[str], path: str) -> None:
        self._empty_outputs(graph)
        place = f"{path}: " if path else ""
        defined = self._definitions(graph, place)
        visible = outer | set(defined)
        self._uses(graph, visible, place)
        if not self.errors:
            self._order(graph, outer, place)
        self._shadows(defined, place)
        results = {name for node in graph.node for name in node.output}
        hidden = {name: self.above.get(name) for name in defined}
        around = place or "the model's graph: "
        self.above.update((name, around + what) for name, what in defined.items() if name not in results)
        for index, node in enumerate(graph.node):
            node.domain = "" if node.domain == "ai.onnx" else node.domain
            label = node_label(node, index)
            self._operator(node, place + label)
            for key, inner in subgraphs(node):
                self.graph(inner, visible, f"{place}{label}, {key}")
            self.above.update((name, around + label) for name in node.output)
        for name, what in hidden.items():
            self.above.pop(name, None)
            if what is not None:
                self.above[name] = what

    def _empty_outputs(self, graph: GraphProto) -> None:
        for node in graph.node:
            least = self._least_outputs(node)
            while len(node.output) > least and not node.output[-1]:
                del node.output[-1]
            for index, name in enumerate(node.output):
                if not name:
                    if not self.fresh:
                        self.fresh = _all_names(self.model.graph)
                    named = next(filter(None, node.output), node.name or node.op_type)
                    node.output[index] = unique(f"{named}.unused{index}", self.fresh)
        seen: set[str] = set()
        outputs = []
        for value in graph.output:
            if value.name in seen:
                self.sink.warn(faults.OutputListedTwice(value.name), where=self.where)
            else:
                outputs.append(value)
            seen.add(value.name)
        if len(outputs) < len(graph.output):
            outputs = [_copied(value) for value in outputs]
            del graph.output[:]
            graph.output.extend(outputs)

    def _least_outputs(self, node: NodeProto) -> int:
        """Outputs that the operator always has."""
        domain = "" if node.domain == "ai.onnx" else node.domain
        if node.output and not node.output[-1] and domain in (*STANDARD_DOMAINS, MICROSOFT) and domain in self.versions:
            try:
                return int(schema(node.op_type, self.versions[domain], domain).min_output)
            except onnx.defs.SchemaError:
                return 0  # reported as unknown, with the node
        return 0

    def _definitions(self, graph: GraphProto, place: str) -> dict[str, str]:
        """Names that the graph defines, with what defines them."""
        defined: dict[str, str] = {}

        def define(name: str, what: str) -> None:
            if name in defined:
                self.error(faults.DefinedTwice(name, defined[name], what), place.rstrip(": "))
            defined[name] = what

        inputs = {value.name for value in graph.input}
        for value in graph.input:
            if not value.name:
                self.error(faults.WithoutName("a graph input"), place.rstrip(": "))
            define(value.name, _INPUT)
        tensors = [*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)]
        seen: set[str] = set()
        for tensor in tensors:
            if not tensor.name:
                self.error(faults.WithoutName("an initializer"), place.rstrip(": "))
            if tensor.name not in inputs or tensor.name in seen:
                define(tensor.name, "an initializer")
            seen.add(tensor.name)
        for index, node in enumerate(graph.node):
            for name in node.output:
                define(name, node_label(node, index))
        return defined

    def _shadows(self, defined: Mapping[str, str], place: str) -> None:
        """Errors for names that a graph can read from around it and makes anew, which ONNX forbids: onnxruntime refuses such a
        node, and reads sometimes the one and sometimes the other of two initializers. What enters a body may be called as
        anything around it."""
        for name, what in defined.items():
            if name in self.above and what != _INPUT:
                self.error(faults.DefinedAround(name, what, self.above[name]), place.rstrip(": "))

    def _uses(self, graph: GraphProto, visible: set[str], place: str) -> None:
        for index, node in enumerate(graph.node):
            for name in node.input:
                if name and name not in visible:
                    self.error(faults.UnknownValue(name, self._close(name, visible)), place + node_label(node, index))
        for value in graph.output:
            if value.name not in visible:
                self.error(faults.UnknownOutput(value.name, self._close(value.name, visible)), place.rstrip(": "))

    def _close(self, name: str, known: set[str]) -> str:
        """The known name closest to ``name``; empty where none is close, for a fault that is not shown, and where comparing
        would take long."""
        if self.errors >= _MOST_FAULTS or len(name) > _LONG_NAME or len(known) > _MANY_NAMES:
            return ""
        close = difflib.get_close_matches(name, sorted(other for other in known if len(other) <= _LONG_NAME), 1)
        return close[0] if close else ""

    def _order(self, graph: GraphProto, outer: set[str], place: str) -> None:
        reads = [node_reads(node) for node in graph.node]
        maker = {name: index for index, node in enumerate(graph.node) for name in node.output}
        needs = [
            sorted({maker[name] for name in names if name in maker and not (maker[name] == index and name in outer)})
            for index, names in enumerate(reads)
        ]
        if all(not need or need[-1] < index for index, need in enumerate(needs)):
            return
        order = _topological(needs)
        if len(order) < len(needs):
            circle = _circle(needs, set(range(len(needs))) - set(order))
            names = " -> ".join(node_label(graph.node[index], index) for index in (*circle, circle[0]))
            self.error(faults.GraphWithCycle(names), place.rstrip(": "))
            return
        nodes = [_copied_node(graph.node[index]) for index in order]
        del graph.node[:]
        graph.node.extend(nodes)

    def _operator(self, node: NodeProto, place: str) -> None:
        domain, version = node.domain, self.versions.get(node.domain)
        if not node.op_type:
            self.error(faults.NodeWithoutOperator(), place)
            return
        if version is None:
            if domain not in self.missing_domains:
                self.missing_domains.add(domain)
                self.error(faults.DomainNotImported(node.op_type, domain_name(domain)), place)
            return
        if domain not in (*STANDARD_DOMAINS, MICROSOFT):
            self.custom[(domain, node.op_type)] += 1
            return
        try:
            definition = schema(node.op_type, version, domain)
        except onnx.defs.SchemaError:
            if domain == MICROSOFT:
                self.custom[(domain, node.op_type)] += 1
            else:
                self._unknown(node, version, place)
            return
        if not definition.has_type_and_shape_inference_function and is_listed(domain, node.op_type):
            self.custom[(domain, node.op_type)] += 1
        self._signature(node, definition, place)

    def _unknown(self, node: NodeProto, version: int, place: str) -> None:
        where = domain_name(node.domain)
        schemas = [s for s in onnx.defs.get_all_schemas_with_history() if s.domain == node.domain]
        versions = sorted(s.since_version for s in schemas if s.name == node.op_type)
        if versions:
            self.error(faults.OperatorTooNew(where, node.op_type, version, versions[0]), place)
            return
        names = sorted({s.name for s in schemas if s.since_version <= version})
        close = difflib.get_close_matches(node.op_type[:_LONG_NAME], names, 1)
        self.error(faults.UnknownOperator(where, node.op_type, close[0] if close else ""), place)

    def _signature(self, node: NodeProto, definition: onnx.defs.OpSchema, place: str) -> None:
        """Counts and attributes. What is more than the schema has is an error, of ONNX Runtime's own operators a warning: they
        gain operands and attributes with its releases."""
        grows = definition.domain == MICROSOFT
        for kind, count, low, high in (
            ("inputs", len(node.input), definition.min_input, definition.max_input),
            ("outputs", len(node.output), definition.min_output, definition.max_output),
        ):
            if not low <= count <= high:
                expected = f"{low}" if low == high else f"{low} or more" if high >= 1 << 30 else f"{low} to {high}"
                if grows and count > high:
                    self.warn(faults.SurplusOperands(node.op_type, count, kind, expected), place)
                else:
                    self.error(faults.WrongArity(node.op_type, count, kind, expected), place)
        names = [attribute.name for attribute in node.attribute]
        stated = set(names)
        if len(stated) < len(names):
            twice = sorted(name for name in stated if names.count(name) > 1)
            self.error(faults.AttributeTwice(node.op_type, twice[0]), place)
        for name, attribute in definition.attributes.items():
            if attribute.required and name not in stated:
                self.error(faults.AttributeMissing(node.op_type, name), place)
        for name in sorted(stated - set(definition.attributes)):
            close = difflib.get_close_matches(name[:_LONG_NAME], sorted(definition.attributes), 1)
            names_of = (close[0] if close else "", tuple(sorted(definition.attributes)))
            if grows:
                self.warn(faults.SurplusAttribute(node.op_type, name, self.versions[node.domain], *names_of), place)
            else:
                self.error(faults.UnknownAttribute(node.op_type, name, self.versions[node.domain], *names_of), place)
        if definition.domain in ("", MICROSOFT):
            values = {attribute.name: _plain_value(attribute) for attribute in node.attribute}
            for reason in value_faults(node.op_type, len(node.input), values):
                self.error(faults.AttributeRefused(reason), place)

    def report_custom(self) -> None:
        for (domain, op_type), count in sorted(self.custom.items()):
            name = f"{domain_name(domain)}.{op_type}"
            listed = is_listed(domain, op_type)
            fault = faults.OperatorWithoutRule(name, count) if listed else faults.CustomOperator(name, count)
            self.sink.warn(fault, where=self.where)
        if self.errors > _MOST_FAULTS:
            self.sink.error(faults.MoreFaults(self.errors - _MOST_FAULTS), where=self.where)


def _plain_value(attribute: onnx.AttributeProto) -> int | list[int] | str | None:
    """The value of an attribute that is an integer, a list of integers or a text."""
    if attribute.type == attribute.INT:
        return int(attribute.i)
    if attribute.type == attribute.INTS:
        return list(attribute.ints)
    return attribute.s.decode(errors="replace") if attribute.type == attribute.STRING else None


def _changed_operators(graph: GraphProto, version: int) -> set[str]:
    """Default-domain operators of the graph whose definition differs between ``version`` and the oldest supported opset."""
    changed = set()
    for node in all_nodes(graph):
        if node.domain in ("", "ai.onnx") and onnx.defs.has(node.op_type):
            try:
                then = onnx.defs.get_schema(node.op_type, version).since_version
                now = onnx.defs.get_schema(node.op_type, OLDEST_OPSET).since_version
            except onnx.defs.SchemaError:
                continue  # reported as unknown, with the node
            if then != now:
                changed.add(node.op_type)
    return changed


def _topological(needs: Sequence[Sequence[int]]) -> list[int]:
    """Indices so that each stands after what it needs, smallest first; those on or behind a cycle are missing."""
    users: list[list[int]] = [[] for _ in needs]
    for index, need in enumerate(needs):
        for other in need:
            users[other].append(index)
    return topological(users)


def _circle(needs: Sequence[Iterable[int]], left: set[int]) -> list[int]:
    """A cycle within ``left``, in the direction of the data, from its smallest index."""
    index = min(left)
    seen: dict[int, int] = {}
    trail: list[int] = []
    while index not in seen:
        seen[index] = len(trail)
        trail.append(index)
        index = min(other for other in needs[index] if other in left)
    circle = trail[seen[index] :][::-1]
    start = circle.index(min(circle))
    return circle[start:] + circle[:start]


def _all_names(graph: GraphProto) -> set[str]:
    """Names of all values of the graph and of those inside it."""
    names: set[str] = set()
    for one in graphs(graph):
        names.update(value.name for value in (*one.input, *one.output, *one.initializer))
        names.update(name for node in one.node for name in (*node.input, *node.output))
    return names


def _copied(value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    copy = onnx.ValueInfoProto()
    copy.CopyFrom(value)
    return copy


def _copied_node(node: NodeProto) -> NodeProto:
    copy = NodeProto()
    copy.CopyFrom(node)
    return copy
