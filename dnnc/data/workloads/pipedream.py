"""PipeDream's profile text (``graph.txt``): one line per node, one per edge.

    node7 -- Conv2d(3, 64, kernel_size=(3, 3)) -- forward_compute_time=1.2, backward_compute_time=2.4, activation_size=64.0,
    parameter_size=8.0 [-- stage_id=0]
    <TAB>node7 -- node8

Times are milliseconds of a minibatch, sizes bytes; ``activation_size=[a; b]`` lists the outputs of a node. As PipeDream does:
nodes whose description starts with ``Input`` are dropped with their edges (their time is data loading), so are sinks whose
description starts with ``__getitem__``, and an edge that stands twice counts once. A stage is what others decided and not read.
Lines that start with ``#`` are comments.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from dnnc.data.workloads.faults import (
    EdgeOfUndefinedNode,
    IndentedLineNoEdge,
    KeysMissing,
    KeyTwice,
    NegativeNumber,
    NodeReadsItself,
    NodeTwice,
    NotAField,
    NotALine,
    NotAPlainNumber,
    UnknownKey,
)
from dnnc.data.workloads.profile import NUMBERS, Faults, Machines, Node, Profile, is_number, whole_bytes
from ir.core.diagnostics import Span

FORMAT = "pipedream"
BANDWIDTH = 10e9
"""Bytes per second where nobody states another: what PipeDream's planner is run with."""
_FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
_EDGE = re.compile(r"\s+(?P<source>\S+) -- (?P<target>\S+)\s*\Z")
_FIELDS_BEGIN = re.compile(r"[a-z_]+\s*=")
_STAGE_ID = re.compile(r"stage_id=-?[0-9]+\Z")
_EXAMPLE = (
    "node1 -- Conv2d(3, 64) -- forward_compute_time=1.0, backward_compute_time=2.0, activation_size=64.0, parameter_size=8.0"
)


def looks_like(text: str) -> bool:
    """Whether the text is such a profile, by its first line that is no comment."""
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            return " -- " in line
    return False


def read(text: str, where: str) -> Profile:
    """The profile of a text. Raises InvalidInput with every fault and its line."""
    faults = Faults(where)
    nodes: dict[str, tuple[Node, str]] = {}
    edges: dict[tuple[str, str], Span] = {}
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        whole = Span(number, 1, max(1, len(line)), line)
        if line[0].isspace():
            edge = _EDGE.match(line)
            if edge is None:
                faults.add(IndentedLineNoEdge(), whole)
            else:
                edges.setdefault((edge["source"], edge["target"]), whole)
            continue
        parts = _parts(line)
        if parts is None:
            faults.add(NotALine(_EXAMPLE), whole)
            continue
        values = _values(parts, number, line, faults)
        if parts.id in nodes:
            first = nodes[parts.id][0].place
            assert isinstance(first, int)
            faults.add(NodeTwice(parts.id, first), Span(number, 1, len(parts.id), line))
            continue
        forward, backward, activation, weight = values
        node = Node(
            id=parts.id,
            name=parts.desc,
            accelerator=forward,
            accelerator_backward=backward,
            weight=whole_bytes(weight),
            message=whole_bytes(activation),
            place=number,
        )
        nodes[parts.id] = (node, parts.desc)
    for (source, target), span in edges.items():
        for end in dict.fromkeys((source, target)):
            if end not in nodes:
                column = span.source_line.index(end) + 1
                place = Span(span.line, column, len(end), span.source_line)
                faults.add(EdgeOfUndefinedNode(end), place)
        if source == target:
            faults.add(NodeReadsItself(source), span)
    faults.check()
    kept, pairs = _kept(nodes, list(edges))

    def locate(node: Node) -> Span | None:
        assert isinstance(node.place, int)
        return Span(node.place, 1, len(str(node.id)), lines[node.place - 1])

    index = {name: i for i, name in enumerate(kept)}
    return Profile(
        FORMAT,
        where,
        [nodes[name][0] for name in kept],
        [(index[a], index[b]) for a, b in pairs],
        Machines(cpus=0, bandwidth=BANDWIDTH),
        locate,
    )


def _kept(nodes: dict[str, tuple[Node, str]], edges: list[tuple[str, str]]) -> tuple[list[str], list[tuple[str, str]]]:
    """Nodes and edges without inputs and without ``__getitem__`` sinks (found in one pass, as PipeDream does)."""
    dropped = {name for name, (_, desc) in nodes.items() if desc.startswith("Input")}
    edges = [(a, b) for a, b in edges if a not in dropped and b not in dropped]
    senders = {a for a, _ in edges}
    dropped |= {name for name, (_, desc) in nodes.items() if desc.startswith("__getitem__") and name not in senders}
    return [name for name in nodes if name not in dropped], [(a, b) for a, b in edges if b not in dropped]


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of a node's line; ``start``: where ``fields`` begins in it."""

    id: str
    desc: str
    fields: str
    start: int


def _parts(line: str) -> _Parts | None:
    """A node's line cut at its `` -- ``; None for a line that is none. A description may hold `` -- `` itself."""
    parts = line.rstrip().split(" -- ")
    number = next((i for i in range(2, len(parts)) if _FIELDS_BEGIN.match(parts[i])), 0)
    if not number or not parts[0] or any(map(str.isspace, parts[0])):
        return None
    end = len(parts) - 1 if number < len(parts) - 1 and _STAGE_ID.match(parts[-1]) else len(parts)
    start = sum(len(part) + 4 for part in parts[:number])
    return _Parts(parts[0], " -- ".join(parts[1:number]), " -- ".join(parts[number:end]), start)


@dataclass(frozen=True, slots=True)
class _Field:
    """``key=value`` of a node: where the key begins, the value ends and the next field begins."""

    key: str
    value: str
    start: int
    end: int
    following: int


def _field(text: str, at: int) -> _Field | None:
    """The field that begins at ``at``, its value a number or a list in brackets; None where there is none."""
    equals = text.find("=", at)
    key = text[at:equals].strip() if equals >= 0 else ""
    if not key or "," in key or any(map(str.isspace, key)):
        return None
    rest = len(text) - len(text[equals + 1 :].lstrip())
    closes = text.find("]", rest) + 1 if text.startswith("[", rest) else rest
    comma = text.find(",", closes)
    end = comma if comma >= 0 else len(text)
    value = text[rest:end].strip()
    wrong = value[:-1].count("]") or not closes if value.startswith("[") else "[" in value
    start = equals - len(text[at:equals].lstrip())
    return None if wrong else _Field(key, value, start, rest + len(value), end + 1)


def _values(parts: _Parts, number: int, line: str, faults: Faults) -> tuple[float, float, float, float]:
    """The four numbers of a node; 0 for one that is missing or wrong."""
    text, start = parts.fields, parts.start
    numbers: dict[str, float] = {}
    at = 0
    while at < len(text):
        item = _field(text, at)
        if item is None:
            place = Span(number, start + at + 1, len(text) - at, line)
            faults.add(NotAField(_FIELDS), place)
            break
        key, value = item.key, item.value
        place = Span(number, start + item.start + 1, max(1, item.end - item.start), line)
        if key not in _FIELDS:
            faults.add(UnknownKey(key, _FIELDS), place)
        elif key in numbers:
            faults.add(KeyTwice(key), place)
        else:
            numbers[key] = _number(key, value, place, faults)
        at = item.following
    missing = [key for key in _FIELDS if key not in numbers]
    if missing and at >= len(text):
        place = Span(number, 1, len(parts.id), line)
        faults.add(KeysMissing(parts.id, tuple(missing), _FIELDS), place)
    forward, backward, activation, weight = (numbers.get(key, 0.0) for key in _FIELDS)
    return forward, backward, activation, weight


def _number(key: str, text: str, place: Span, faults: Faults) -> float:
    """A number that is finite and at least 0, or a list of sizes as their sum."""
    unit = "a number of milliseconds" if key.endswith("time") else "a number of bytes"
    inner = text.strip()
    parts = [inner]
    if inner.startswith("[") and key == "activation_size":
        parts = inner.strip("[]").split(";")
    total = 0.0
    for part in parts:
        try:
            value = float(part)
        except ValueError:
            value = math.nan
        if "_" in part or not is_number(value):
            texts = (key, part.strip()[:80], unit, NUMBERS)
            faults.add(NegativeNumber(*texts) if value < 0 else NotAPlainNumber(*texts), place)
            return 0.0
        total += value
    return total
