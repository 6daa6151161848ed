"""Values whose shape inference cannot know, by the reason: an operator without inference, or control flow.

``opaque_values``: results of operators without inference, of which only the model states a type. ``open_values``: results of a
Loop, Scan or If whose shape differs from iteration to iteration or branch to branch, whatever the model states. Both include
the values of incomplete type that are computed from them; a value that is computed from both kinds is opaque. Each function
returns one set of names per graph of the model, in the order of ``graphs``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

from onnx import GraphProto, ModelProto, NodeProto, defs

from dnnc.onnx.importer.checks import node_reads
from dnnc.onnx.importer.graphs import graphs, subgraphs
from dnnc.onnx.importer.inference.value_types import is_complete
from dnnc.onnx.schemas import schema
from ir.core.types import UNKNOWN, Type

_CONTROL = frozenset({"If", "Loop", "Scan"})
_ROUNDS = 8
"""Each round follows a value through one more of those that a loop carries."""


def opaque_values(model: ModelProto, known: Sequence[Mapping[str, Type]]) -> list[frozenset[str]]:
    """Values of open shape that an operator without inference makes, or that follow from one. ``known``: types by graph."""
    versions = {entry.domain: entry.version for entry in model.opset_import}
    return [frozenset(names) for names in _opaque(model.graph, known, 0, frozenset(), versions)]


def open_values(model: ModelProto, known: Sequence[Mapping[str, Type]], opaque: Sequence[Set[str]]) -> list[frozenset[str]]:
    """Values that are not ``opaque`` and whose shape control flow leaves open: results of branches and loops, all values in the
    body of a loop, and what follows from one."""
    return [frozenset(names) for names in _open(model.graph, known, opaque, 0, frozenset(), repeated=False)]


def _opaque(
    graph: GraphProto, known: Sequence[Mapping[str, Type]], at: int, outer: Set[str], versions: Mapping[str, int]
) -> list[set[str]]:
    """Of the graph, which is the one at place ``at``, and of those in it; ``outer``: such values around it, or entering it."""
    own, inner = set(outer), list[set[str]]()
    for node in graph.node:
        place, bodies = at + 1 + len(inner), list[tuple[GraphProto, set[str]]]()
        for _, body in subgraphs(node):
            results = _opaque_body(node, body, known, place, own, versions)
            bodies.append((body, results[0]))
            inner += results
            place += len(results)
        if _is_control(node):
            open_results = {
                name
                for body, names in bodies
                for name, result in zip(node.output, body.output[node.op_type == "Loop" :], strict=False)
                if result.name in names
            }
        else:
            unknown = not _is_inferred(node, versions) or not own.isdisjoint(node_reads(node))
            open_results = set(node.output) if unknown else set()
        own |= {name for name in open_results if not is_complete(known[at].get(name, UNKNOWN))}
    return [own, *inner]


def _opaque_body(
    node: NodeProto,
    body: GraphProto,
    known: Sequence[Mapping[str, Type]],
    at: int,
    outer: Set[str],
    versions: Mapping[str, int],
) -> list[set[str]]:
    """Of the body of a node; what an iteration hands on enters the next one."""
    operands = [*node.input] if node.op_type != "If" else []
    entering = {value.name for value, name in zip(body.input, operands, strict=False) if name in outer}
    carried = list(_carried(node, body))
    results = _opaque(body, known, at, outer | entering, versions)
    for _ in range(_ROUNDS):
        more = {name for name, handed_on in carried if handed_on in results[0]} - entering
        if not more:
            break
        entering |= more
        results = _opaque(body, known, at, outer | entering, versions)
    return results


def _carried(node: NodeProto, body: GraphProto) -> Iterator[tuple[str, str]]:
    """What enters a body, with what an iteration puts in its place."""
    skipped, count = (2, 1), len(node.input) - 2
    if node.op_type == "Scan":
        skipped, count = (0, 0), len(node.input) - sum(a.i for a in node.attribute if a.name == "num_scan_inputs")
    elif node.op_type != "Loop":
        return
    pairs = list(zip(body.input[skipped[0] :], body.output[skipped[1] :], strict=False))
    yield from ((value.name, result.name) for value, result in pairs[: max(count, 0)])


def _open(
    graph: GraphProto,
    known: Sequence[Mapping[str, Type]],
    opaque: Sequence[Set[str]],
    at: int,
    outer: Set[str],
    *,
    repeated: bool,
) -> list[set[str]]:
    """Of the graph at place ``at`` and of those in it. ``repeated``: whether it is, or stands in, the body of a loop."""
    own, inner = set(outer), list[set[str]]()
    if at:
        own |= {value.name for value in graph.output} - opaque[at]
    if repeated:
        own |= {value.name for value in graph.input} - opaque[at]
    for node in graph.node:
        for _, body in subgraphs(node):
            place = at + 1 + len(inner)
            inner += _open(body, known, opaque, place, own, repeated=repeated or node.op_type != "If")
        if repeated or _is_control(node) or not own.isdisjoint(node_reads(node)):
            open_results = {name for name in node.output if not is_complete(known[at].get(name, UNKNOWN))}
            own |= open_results - opaque[at]
    return [own, *inner]


def _is_control(node: NodeProto) -> bool:
    return node.op_type in _CONTROL and node.domain in ("", "ai.onnx")


def _is_inferred(node: NodeProto, versions: Mapping[str, int]) -> bool:
    """Whether onnx infers the results of the node, and of those in its graphs. Of the longer caches that an Attention makes it
    does so where all sizes are numbers."""
    if node.op_type == "Attention" and any(node.input[4:6]):
        return False
    try:
        definition = schema(node.op_type, versions.get(node.domain, 0), node.domain)
    except defs.SchemaError:
        return False
    inner = (other for _, graph in subgraphs(node) for each in graphs(graph) for other in each.node)
    return definition.has_type_and_shape_inference_function and all(_is_inferred(other, versions) for other in inner)
