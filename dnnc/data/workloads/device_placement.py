"""The device-placement JSON of Tarnawski et al. (NeurIPS 2020; msr-fiddle/dnn-partitioning): a graph and the machines in one.

``maxSizePerFPGA`` (bytes), ``maxFPGAs``, ``maxCPUs``; ``nodes``: ``id``, ``supportedOnFpga``, ``cpuLatency``, ``fpgaLatency``,
``isBackwardNode``, ``colorClass`` (optional), ``size`` (bytes), ``name``; ``edges``: ``sourceId``, ``destId``, ``cost`` (one
number for all edges out of a node), ``size`` (bytes, optional). "FPGA" stands for any accelerator. Keys that are not listed are
ignored, as the reference does. An edge that stands twice counts once. A part of a byte counts as one. Times without a unit are
taken as milliseconds.

Costs are compared with the reference's tolerance of 1e-6; the first one counts.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

from dnnc.data.workloads.faults import (
    ColorRefused,
    CostsDiffer,
    EdgeFromBackwardToForward,
    EdgeOfUnknownNode,
    EdgeToItself,
    EdgeWithoutCost,
    EdgeWithoutEnd,
    IdRefused,
    IdTaken,
    ListMissing,
    NodeWithoutId,
    NodeWithoutTime,
    NotACount,
    NotAFlag,
    NotAnObject,
    NotANumber,
    NotAProfileObject,
    NumberOutOfRange,
    SizesRounded,
    TooManyBytes,
)
from dnnc.data.workloads.profile import (
    MOST,
    MOST_BYTES,
    MOST_DEVICES,
    NUMBERS,
    Faults,
    Machines,
    Node,
    Profile,
    is_number,
    whole_bytes,
)
from ir.core.diagnostics import DiagnosticSink, Fault, InvalidInput, Span
from ir.text.json_text import parse_json
from ir.text.positions import Path, Positions, positions

FORMAT = "device-placement"
SAME_COST = 1e-6
_REQUIRED = ("nodes", "edges")


def looks_like(text: str) -> bool:
    """Whether the text is JSON, by its first character."""
    return text.lstrip("\ufeff \t\r\n")[:1] == "{"


def read(text: str, where: str, sink: DiagnosticSink) -> Profile:
    """The profile of a text. Raises InvalidInput with every fault and its place; warns where bytes are rounded."""
    return _Reader(text, where, sink).read()


class _Reader:
    def __init__(self, text: str, where: str, sink: DiagnosticSink) -> None:
        self.text, self.where, self.sink = text.removeprefix("\ufeff"), where, sink
        self.faults = Faults(where)
        self.rounded = 0
        self._places: Positions | None = None

    def span(self, path: Path) -> Span:
        if self._places is None:  # found only when something is wrong
            self._places = positions(self.text, "json")
        return self._places.value(path)

    def fault(self, path: Path, fault: Fault) -> None:
        self.faults.add(fault, self.span(path))

    def read(self) -> Profile:
        data = self._parse()
        for key in _REQUIRED:
            if not isinstance(data.get(key), list):
                fault = ListMissing(key, _shown(data[key]) if key in data else "none")
                self.faults.add(fault, self.span((key,)) if key in data else None)
        self.faults.check()
        memory = self.number(("maxSizePerFPGA",), data, None, "bytes")
        machines = Machines(
            self.count(("maxFPGAs",), data),
            self.count(("maxCPUs",), data) or 0,
            None if memory is None else math.floor(memory),
        )
        nodes = self._nodes(data["nodes"])
        messages, edges = self._edges(data["edges"], nodes)
        self.faults.check()
        nodes = [_with_message(node, messages.get(i)) for i, node in enumerate(nodes)]
        if self.rounded:
            self.sink.warn(SizesRounded(self.rounded), where=self.where)
        return Profile(FORMAT, self.where, nodes, edges, machines, lambda node: self.span(("nodes", _position(node))))

    def _parse(self) -> dict[str, Any]:
        data = parse_json(self.text, self.where)
        if not isinstance(data, dict):
            raise InvalidInput(NotAProfileObject(_shown(data)), where=self.where)
        return data

    # values

    def number(self, path: Path, holder: dict[str, Any], default: float | None, unit: str) -> float | None:
        """A finite number that is at least 0; ``default`` when absent."""
        key = str(path[-1])
        if key not in holder or holder[key] is None:
            return default
        value = holder[key]
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fault(path, NotANumber(key, _shown(value), unit))
        elif not is_number(value):
            self.fault(path, NumberOutOfRange(key, _shown(value), unit, NUMBERS))
        else:
            return float(value)
        return default

    def count(self, path: Path, holder: dict[str, Any]) -> int | None:
        key = str(path[-1])
        value = holder.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not (0 <= value <= MOST_DEVICES) or value % 1:
            self.fault(path, NotACount(key, _shown(value), MOST_DEVICES))
            return 0
        return int(value)

    def bytes(self, path: Path, holder: dict[str, Any]) -> int:
        value = self.number(path, holder, 0.0, "bytes") or 0.0
        if value >= MOST_BYTES:
            self.fault(path, TooManyBytes(str(path[-1]), value))
            return 0
        return whole_bytes(value)

    def flag(self, path: Path, holder: dict[str, Any], default: bool) -> bool:
        value = holder.get(str(path[-1]), default)
        if value not in (0, 1):
            self.fault(path, NotAFlag(str(path[-1]), _shown(value)))
            return default
        return bool(value)

    # nodes and edges

    def _nodes(self, items: list[Any]) -> list[Node]:
        nodes: list[Node] = []
        first: dict[int | str, int] = {}
        for number, item in enumerate(items):
            path: Path = ("nodes", number)
            if not isinstance(item, dict):
                self.fault(path, NotAnObject("node", number, _shown(item)))
                continue
            id_ = item.get("id")
            if isinstance(id_, bool) or not isinstance(id_, int | str) or (isinstance(id_, int) and abs(id_) > MOST_BYTES):
                self.fault(path, IdRefused(number, _shown(id_)) if "id" in item else NodeWithoutId(number))
                continue
            if id_ in first:
                self.fault((*path, "id"), IdTaken(str(id_), first[id_]))
                continue
            first[id_] = number
            on_accelerator = self.flag((*path, "supportedOnFpga"), item, True)
            accelerator = self.number((*path, "fpgaLatency"), item, None, "time")
            cpu = self.number((*path, "cpuLatency"), item, None, "time")
            if on_accelerator and accelerator is None and "fpgaLatency" not in item:
                self.fault(path, NodeWithoutTime(str(id_)))
            color = item.get("colorClass")
            if color is not None and (isinstance(color, bool) or not isinstance(color, int | str)):
                self.fault((*path, "colorClass"), ColorRefused(_shown(color)))
                color = None
            size = self.bytes((*path, "size"), item)
            if size != (item.get("size") or 0):
                self.rounded += 1
            node = Node(
                id=id_,
                name=str(item.get("name", id_)),
                accelerator=accelerator if on_accelerator else None,
                cpu=cpu,
                size=size,
                color=color,
                backward=self.flag((*path, "isBackwardNode"), item, False),
                place=number,
            )
            nodes.append(node)
        return nodes

    def _edges(self, items: list[Any], nodes: list[Node]) -> tuple[dict[int, tuple[float, int]], list[tuple[int, int]]]:
        """Per sender the cost and the bytes of its message; and the edges, each once."""
        index = {node.id: i for i, node in enumerate(nodes)}
        messages: dict[int, tuple[float, int]] = {}
        stated: dict[int, int] = {}
        edges: dict[tuple[int, int], None] = {}
        for number, item in enumerate(items):
            path: Path = ("edges", number)
            if not isinstance(item, dict):
                self.fault(path, NotAnObject("edge", number, _shown(item)))
                continue
            ends = []
            for key in ("sourceId", "destId"):
                end = item.get(key)
                if isinstance(end, bool) or not isinstance(end, int | str) or end not in index:
                    unknown = key in item
                    fault = EdgeOfUnknownNode(number, _shown(end)) if unknown else EdgeWithoutEnd(number, key)
                    self.fault((*path, key), fault)
                else:
                    ends.append(index[end])
            cost = self.number((*path, "cost"), item, None, "time")
            if item.get("cost") is None:
                self.fault(path, EdgeWithoutCost(number))
            size = self.bytes((*path, "size"), item)
            if len(ends) < 2:
                continue
            source, reader = ends
            if source == reader:
                self.fault(path, EdgeToItself(number, str(item["sourceId"])))
                continue
            if nodes[source].backward and not nodes[reader].backward:
                self.fault(path, EdgeFromBackwardToForward(number, str(item["sourceId"]), str(item["destId"])))
            known = messages.get(source)
            if known is not None and cost is not None and abs(known[0] - cost) > SAME_COST:
                self.fault((*path, "cost"), CostsDiffer(cost, known[0], stated[source], str(item["sourceId"])))
            stated.setdefault(source, number)
            messages[source] = (cost or 0.0, size) if known is None else (known[0], max(known[1], size))
            edges.setdefault((source, reader))
        return messages, list(edges)


def _with_message(node: Node, message: tuple[float, int] | None) -> Node:
    return node if message is None else replace(node, transfer=message[0], message=message[1])


def _position(node: Node) -> int:
    assert isinstance(node.place, int)
    return node.place


def _shown(value: object) -> str:
    """A value as a message spells it."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, int) and abs(value) >= MOST:
        return "a number of too many digits"
    return json.dumps(value, ensure_ascii=False)[:60]
