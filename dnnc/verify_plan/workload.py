"""Both formats of workloads, read a second time: a minimal reader of exact numbers.

A workload that the frontends would refuse may pass here or be refused with fewer words; the split is what is judged."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeAlias

from dnnc.verify_plan.numbers import Malformed, need, told
from ir.diagnostics import UsageError

Id: TypeAlias = int | str
_PIPEDREAM_BANDWIDTH = Fraction(10**10)
_MS = 1000


@dataclass(frozen=True, slots=True)
class Limits:
    """Machines that stand over the file's: counts, bytes, bytes per second; None: as the file says."""

    accelerators: int | None = None
    cpus: int | None = None
    memory: int | None = None
    bandwidth: float | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """Times in milliseconds, None where it cannot run."""

    accelerator: Fraction | None
    cpu: Fraction | None
    size: Fraction
    color: object
    backward: bool


@dataclass(slots=True)
class Workload:
    """``send``: milliseconds of a node's output over an accelerator's link; ``bandwidth`` of that: bytes per millisecond, None
    when nobody states it. Of profiles only: ``both``: milliseconds of both passes, ``output``: bytes."""

    nodes: dict[Id, Node]
    readers: dict[Id, set[Id]]
    send: dict[Id, Fraction]
    accelerators: int | None
    cpus: int
    memory: Fraction | None
    both: dict[Id, Fraction] = field(default_factory=dict)
    output: dict[Id, Fraction] = field(default_factory=dict)
    bandwidth: Fraction | None = None


def read_workload(text: str, limits: Limits, *, format: str = "") -> Workload:
    """The workload with the machines of ``limits``; ``format`` empty: told by the text. Raises Malformed."""
    chosen = format or ("device-placement" if text.lstrip("\ufeff \t\r\n").startswith("{") else "pipedream")
    return read_placement(text, limits) if chosen == "device-placement" else read_pipedream(text, limits)


def read_placement(text: str, limits: Limits) -> Workload:
    try:
        data = json.loads(text.removeprefix("\ufeff"))
        nodes = {
            node["id"]: Node(
                _time(node["fpgaLatency"], node) if node.get("supportedOnFpga", 1) else None,
                _time(node.get("cpuLatency"), node),
                need(node.get("size") or 0, f"size of node {node['id']}"),
                _color(node),
                bool(node.get("isBackwardNode", 0)),
            )
            for node in data["nodes"]
        }
        readers: dict[Id, set[Id]] = {id_: set() for id_ in nodes}
        send: dict[Id, Fraction] = {}
        size: dict[Id, Fraction] = {}
        for edge in data["edges"]:
            source = edge["sourceId"]
            readers[source].add(edge["destId"])
            send.setdefault(source, need(edge["cost"], f"cost of an edge out of node {source}"))
            size[source] = max(size.get(source, Fraction(0)), need(edge.get("size") or 0, "size of an edge"))
        if limits.bandwidth is not None:
            send = {id_: math.ceil(size[id_]) / Fraction(limits.bandwidth) * _MS for id_ in send}
        memory = None if data.get("maxSizePerFPGA") is None else need(data["maxSizePerFPGA"], "maxSizePerFPGA")
        accelerators, cpus = _count(data, "maxFPGAs"), _count(data, "maxCPUs") or 0
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise Malformed(f"not a device-placement workload: {type(error).__name__} {error}") from None
    bandwidth = None if limits.bandwidth is None else Fraction(limits.bandwidth) / _MS
    return _limited(Workload(nodes, readers, send, accelerators, cpus, memory, bandwidth=bandwidth), limits)


def _time(value: object, node: Mapping[str, Any]) -> Fraction | None:
    """Milliseconds, None where the node does not run on such a device."""
    return None if value is None else need(value, f"a time of node {node['id']}")


def _color(node: Mapping[str, Any]) -> int | str | None:
    color = node.get("colorClass")
    if color is not None and not isinstance(color, int | str):
        raise Malformed(f"colorClass of node {node['id']} is {told(color)}, expected a whole number")
    return color


def _count(data: Mapping[str, Any], key: str) -> int | None:
    """A number of devices, None where none is stated."""
    if data.get(key) is None:
        return None
    found = need(data[key], key)
    if found < 0 or found.denominator != 1:
        raise Malformed(f"{key} is {told(data[key])}, expected a whole number")
    return int(found)


_PROFILE_NODE = re.compile(r"(\S+) -- (.*)\Z")
_PROFILE_NUMBERS = re.compile(
    r"([^,]+), *backward_compute_time=([^,]+), *activation_size=(\[[^\]]*\]|[^,]+), *parameter_size=(\S+)"
)


def read_pipedream(text: str, limits: Limits) -> Workload:
    nodes: dict[Id, Node] = {}
    readers: dict[Id, set[Id]] = {}
    size: dict[Id, Fraction] = {}
    both: dict[Id, Fraction] = {}
    about: dict[Id, str] = {}
    try:
        for line in text.splitlines():
            if line[:1].isspace() and line.strip():
                source, target = line.strip().split(" -- ")
                readers.setdefault(source, set()).add(target)
            elif line.strip() and not line.startswith("#"):
                head, _, numbers = line.rpartition(" -- forward_compute_time=")
                named, match = _PROFILE_NODE.match(head), _PROFILE_NUMBERS.match(numbers)
                if named is None or match is None:
                    raise Malformed(f"not a PipeDream profile: {line[:60]!r}")
                id_, desc = named.groups()
                forward, backward, activation, weight = match.groups()
                about[id_], both[id_] = desc, _number(forward) + _number(backward)
                nodes[id_] = Node(_number(forward), None, _number(weight), None, False)
                size[id_] = sum((_number(part) for part in activation.strip("[]").split(";")), Fraction(0))
    except ValueError as error:
        raise Malformed(f"not a PipeDream profile: {error}") from None
    gone = {id_ for id_ in nodes if about[id_].startswith("Input")}
    gone |= {id_ for id_ in nodes if about[id_].startswith("__getitem__") and not readers.get(id_, set()) - gone}
    bandwidth = _PIPEDREAM_BANDWIDTH if limits.bandwidth is None else Fraction(limits.bandwidth)
    kept = {id_: node for id_, node in nodes.items() if id_ not in gone}
    sent = {id_: readers.get(id_, set()) - gone for id_ in kept}
    send = {id_: math.ceil(size[id_]) / bandwidth * _MS for id_ in kept}
    output = {id_: Fraction(math.ceil(size[id_])) for id_ in kept}
    return _limited(Workload(kept, sent, send, None, 0, None, both, output, bandwidth / _MS), limits)


def _number(text: str) -> Fraction:
    """The decimal that a text means; as a float first, so that '1e999999999' is not written out."""
    return need(float(text), f"'{text.strip()[:40]}'")


def _limited(workload: Workload, limits: Limits) -> Workload:
    """The workload with the machines of ``limits``. Raises UsageError when nobody says how many accelerators there are."""
    if limits.accelerators is not None:
        workload.accelerators = limits.accelerators
    if limits.cpus is not None:
        workload.cpus = limits.cpus
    if limits.memory is not None:
        workload.memory = Fraction(limits.memory)
    if workload.accelerators is None:
        raise UsageError("the workload does not say how many accelerators there are", hint="add --accelerators N")
    return workload


__all__ = ["Id", "Limits", "Node", "Workload", "read_workload"]
