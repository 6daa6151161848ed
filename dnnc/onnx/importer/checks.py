"""Structural checks of an ONNX model, in the words of the person who has to repair it.

Checked here: opset imports, operators that exist, arity and attributes of standard operators, one definition per value, also
against the graphs around it, no use without a definition, no cycle. Repaired here, silently, because ONNX's own tools do: nodes
out of order are sorted (stable: first by what they need, then by their place in the file); trailing empty outputs are dropped
and other empty outputs named; a graph output that is listed twice is kept once, with a warning. Value types are the business of
``shapes``.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import onnx
from onnx import GraphProto, ModelProto, NodeProto

from dnnc.onnx.domains import MICROSOFT, STANDARD_DOMAINS
from dnnc.onnx.importer.attribute_values import value_faults
from dnnc.onnx.importer.functions import subgraphs
from dnnc.onnx.schemas import is_listed, schema
from dnnc.onnx.types import ELEMENT_TYPES
from ir.core.diagnostics import DiagnosticSink
from ir.core.names import unique
from passes.model.graph import topological

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
    made = next(filter(None, node.output), "")
    return f"node #{index} ({node.op_type}{', makes ' + repr(made) if made else ''})"


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
        self.warned: set[str] = set()
        self.faults = 0
        self.fresh: set[str] = set()
        self.above: dict[str, str] = {}  # what makes each name that a graph inside can read, where the walk is

    def error(self, message: str, place: str = "", hint: str = "") -> None:
        self.faults += 1
        if self.faults <= _MOST_FAULTS:
            self.sink.error(message, where=f"{self.where}: {place}" if place else self.where, hint=hint)

    def warn(self, message: str, place: str = "", hint: str = "") -> None:
        if message not in self.warned:
            self.warned.add(message)
            self.sink.warn(message, where=f"{self.where}: {place}" if place else self.where, hint=hint)

    def opsets(self) -> None:
        for entry in self.model.opset_import:
            entry.domain = "" if entry.domain == "ai.onnx" else entry.domain
            known = self.versions.setdefault(entry.domain, entry.version)
            if known != entry.version:
                self.error(
                    f"opset '{domain_name(entry.domain)}' is imported in versions {known} and {entry.version}; one was expected"
                )
        newest = onnx.defs.onnx_opset_version()
        version = self.versions.get("")
        if version is not None and version > newest:
            self.error(f"opset {version} is newer than the installed onnx knows (up to {newest})", hint="pip install -U onnx")
        elif version is not None and version < 1:
            self.error(f"opset {version} does not exist; {OLDEST_OPSET} or newer was expected")
            self.versions[""] = newest
        elif version is not None and version < OLDEST_OPSET:
            changed = sorted(_changed_operators(self.model.graph, version))
            if changed:
                names = ", ".join(changed)
                message = f"opset {version} is older than the oldest supported, {OLDEST_OPSET}, and {names} changed since"
                hint = f"onnx.version_converter.convert_version(model, {OLDEST_OPSET}) or export again"
                self.error(message, hint=hint)
            else:
                self.versions[""] = OLDEST_OPSET
                for entry in self.model.opset_import:
                    entry.version = OLDEST_OPSET if not entry.domain else entry.version
        if not self.model.opset_import:
            self.error("the model imports no opset; at least one was expected", hint="export it again with an opset version")
            self.versions[""] = newest

    def interface(self) -> None:
        """Inputs of the model state an element type, and something comes out of it."""
        for value in self.model.graph.input:
            if value.type.HasField("tensor_type") and value.type.tensor_type.elem_type not in ELEMENT_TYPES:
                number = value.type.tensor_type.elem_type
                found = f"has element type {number}, which is not one of ONNX" if number else "states no element type"
                self.error(f"graph input '{value.name}' {found}", hint="export the model again")
        if not self.model.graph.output:
            self.error("the model has no outputs; at least one was expected", hint="name as output what is to be computed")

    def graph(self, graph: GraphProto, outer: set[str], path: str) -> None:
        self._empty_outputs(graph)
        place = f"{path}: " if path else ""
        defined = self._definitions(graph, place)
        visible = outer | set(defined)
        self._uses(graph, visible, place)
        if not self.faults:
            self._order(graph, outer, place)
        self._shadows(defined, place)
        made = {name for node in graph.node for name in node.output}
        hidden = {name: self.above.get(name) for name in defined}
        self.above.update((name, place + what) for name, what in defined.items() if name not in made)
        for index, node in enumerate(graph.node):
            node.domain = "" if node.domain == "ai.onnx" else node.domain
            label = node_label(node, index)
            self._operator(node, place + label)
            for key, inner in subgraphs(node):
                self.graph(inner, visible, f"{place}{label}, {key}")
            self.above.update((name, place + label) for name in node.output)
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
        kept = []
        for value in graph.output:
            if value.name in seen:
                self.sink.warn(f"output '{value.name}' is listed twice; it is kept once", where=self.where)
            else:
                kept.append(value)
            seen.add(value.name)
        if len(kept) < len(graph.output):
            kept = [_copied(value) for value in kept]
            del graph.output[:]
            graph.output.extend(kept)

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
                hint = "every value must be made once; rename one of them"
                self.error(f"'{name}' is defined twice: by {defined[name]} and by {what}", place.rstrip(": "), hint)
            defined[name] = what

        inputs = {value.name for value in graph.input}
        for value in graph.input:
            if not value.name:
                self.error("a graph input has no name", place.rstrip(": "))
            define(value.name, _INPUT)
        tensors = [*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)]
        seen: set[str] = set()
        for tensor in tensors:
            if not tensor.name:
                self.error("an initializer has no name", place.rstrip(": "))
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
                hint = "rename one of them: ONNX wants a name that is not yet known around the graph"
                message = f"'{name}' is defined by {what}, and around it by {self.above[name]}"
                self.error(message, place.rstrip(": "), hint)

    def _uses(self, graph: GraphProto, visible: set[str], place: str) -> None:
        for index, node in enumerate(graph.node):
            for name in node.input:
                if name and name not in visible:
                    hint = self._close(name, visible) or "the graph is cut off or the name is misspelt"
                    message = f"input '{name}' is made by no node, input or initializer"
                    self.error(message, place + node_label(node, index), hint)
        for value in graph.output:
            if value.name not in visible:
                hint = self._close(value.name, visible)
                self.error(f"graph output '{value.name}' is made by no node, input or initializer", place.rstrip(": "), hint)

    def _close(self, name: str, known: set[str]) -> str:
        """A hint at the closest name; none for a fault that is not shown, nor where the comparison would take long."""
        if self.faults >= _MOST_FAULTS or len(name) > _LONG_NAME or len(known) > _MANY_NAMES:
            return ""
        close = difflib.get_close_matches(name, sorted(other for other in known if len(other) <= _LONG_NAME), 1)
        return f"did you mean '{close[0]}'?" if close else ""

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
            self.error(f"the graph has a cycle: {names}", place.rstrip(": "), "a model graph must be acyclic; use Loop or Scan")
            return
        nodes = [_copied_node(graph.node[index]) for index in order]
        del graph.node[:]
        graph.node.extend(nodes)

    def _operator(self, node: NodeProto, place: str) -> None:
        domain, version = node.domain, self.versions.get(node.domain)
        if not node.op_type:
            self.error("a node names no operator", place)
            return
        if version is None:
            if domain not in self.missing_domains:
                self.missing_domains.add(domain)
                hint = f"add {domain_name(domain)} to the model's opset_import"
                self.error(
                    f"operator {node.op_type} is of domain '{domain_name(domain)}', which the model does not import",
                    place,
                    hint,
                )
            return
        if domain not in (*STANDARD_DOMAINS, MICROSOFT):
            self.custom[(domain, node.op_type)] += 1
            return
        try:
            found = schema(node.op_type, version, domain)
        except onnx.defs.SchemaError:
            if domain == MICROSOFT:
                self.custom[(domain, node.op_type)] += 1
            else:
                self._unknown(node, version, place)
            return
        if not found.has_type_and_shape_inference_function and is_listed(domain, node.op_type):
            self.custom[(domain, node.op_type)] += 1
        self._signature(node, found, place)

    def _unknown(self, node: NodeProto, version: int, place: str) -> None:
        where = domain_name(node.domain)
        schemas = [s for s in onnx.defs.get_all_schemas_with_history() if s.domain == node.domain]
        versions = sorted(s.since_version for s in schemas if s.name == node.op_type)
        if versions:
            message = f"{where} has no operator {node.op_type} in opset {version}; it came with opset {versions[0]}"
            self.error(message, place, f"export with opset {versions[0]} or newer")
            return
        names = sorted({s.name for s in schemas if s.since_version <= version})
        close = difflib.get_close_matches(node.op_type[:_LONG_NAME], names, 1)
        hint = f"did you mean {close[0]}? " if close else ""
        self.error(
            f"{where} has no operator {node.op_type}",
            place,
            hint + "an operator of your own needs a domain of its own (node.domain)",
        )

    def _signature(self, node: NodeProto, found: onnx.defs.OpSchema, place: str) -> None:
        """Counts and attributes. What is more than the schema has is an error, of ONNX Runtime's own operators a warning: they
        gain operands and attributes with its releases."""
        surplus = self.warn if found.domain == MICROSOFT else self.error
        for kind, count, low, high in (
            ("inputs", len(node.input), found.min_input, found.max_input),
            ("outputs", len(node.output), found.min_output, found.max_output),
        ):
            if not low <= count <= high:
                expected = f"{low}" if low == high else f"{low} or more" if high >= 1 << 30 else f"{low} to {high}"
                report = self.error if count < low else surplus
                report(f"{node.op_type} has {count} {kind}, {expected} were expected", place)
        names = [attribute.name for attribute in node.attribute]
        given = set(names)
        if len(given) < len(names):
            twice = sorted(name for name in given if names.count(name) > 1)
            self.error(f"{node.op_type} has the attribute '{twice[0]}' twice; once was expected", place)
        for name, attribute in found.attributes.items():
            if attribute.required and name not in given:
                self.error(f"{node.op_type} needs the attribute '{name}'", place)
        for name in sorted(given - set(found.attributes)):
            close = difflib.get_close_matches(name[:_LONG_NAME], sorted(found.attributes), 1)
            hint = f"did you mean '{close[0]}'?" if close else f"it has: {', '.join(sorted(found.attributes)) or 'none'}"
            surplus(f"{node.op_type} has no attribute '{name}' in opset {self.versions[node.domain]}", place, hint)
        if found.domain in ("", MICROSOFT):
            values = {attribute.name: _plain_value(attribute) for attribute in node.attribute}
            for fault in value_faults(node.op_type, len(node.input), values):
                self.error(fault, place)

    def report_custom(self) -> None:
        for (domain, op_type), count in sorted(self.custom.items()):
            times = f"{count} nodes" if count > 1 else "1 node"
            kind = f"operator {domain_name(domain)}.{op_type} ({times})"
            why = "has no rule here" if is_listed(domain, op_type) else "is not of a standard domain"
            message = f"{kind} {why}: kept as it is, its costs and types are guesses"
            self.sink.warn(message, where=self.where)
        if self.faults > _MOST_FAULTS:
            self.sink.error(f"{self.faults - _MOST_FAULTS} more faults are not shown", where=self.where)


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
    for node in graph.node:
        if node.domain in ("", "ai.onnx") and onnx.defs.has(node.op_type):
            try:
                then = onnx.defs.get_schema(node.op_type, version).since_version
                now = onnx.defs.get_schema(node.op_type, OLDEST_OPSET).since_version
            except onnx.defs.SchemaError:
                continue  # reported as unknown, with the node
            if then != now:
                changed.add(node.op_type)
        for _, inner in subgraphs(node):
            changed |= _changed_operators(inner, version)
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
    names = {value.name for value in (*graph.input, *graph.output)} | {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        names.update(node.input)
        names.update(node.output)
        for _, inner in subgraphs(node):
            names |= _all_names(inner)
    return names


def _copied(value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    copy = onnx.ValueInfoProto()
    copy.CopyFrom(value)
    return copy


def _copied_node(node: NodeProto) -> NodeProto:
    copy = NodeProto()
    copy.CopyFrom(node)
    return copy


__all__ = ["check_model", "domain_name", "node_label", "node_reads"]
