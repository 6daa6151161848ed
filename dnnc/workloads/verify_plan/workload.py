"""A second, minimal reader of both formats of workloads, with exact numbers.

It verifies splits, not workloads: one that ``dnnc solve`` refuses may pass here, or be refused with a shorter message."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeAlias

from dnnc.workloads.verify_plan.numbers import Malformed, need, told

Id: TypeAlias = int | str
ACCELERATOR, CPU = "accelerator", "cpu"
"""Kinds of device of a file that states its own machines."""
_PIPEDREAM_BANDWIDTH = Fraction(10**10)
_MS = 1000


@dataclass(frozen=True, slots=True)
class Limits:
    """Machines that replace those of the file: counts, bytes, bytes per second; None: as the file states."""

    accelerators: int | None = None
    cpus: int | None = None
    memory: int | None = None
    bandwidth: float | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """A device: its ``kind``, bytes of memory (None: no limit), and whether its transfers are ``free``. ``port``: latency in
    milliseconds and bytes per millisecond (None: no limit) of a device of a topology; None if the file states the times of
    transfers."""

    kind: str
    memory: Fraction | None = None
    free: bool = False
    port: tuple[Fraction, Fraction | None] | None = None

    @property
    def unlimited(self) -> bool:
        """Whether it is a CPU of the placement papers."""
        return self.free and self.memory is None


@dataclass(frozen=True, slots=True)
class Node:
    """``seconds``: milliseconds by kind of device, without kinds that cannot run it; ``back``: those of its backward pass, None
    if it states none. ``size``: bytes, of which ``weight`` are parameters if the node states both."""

    seconds: Mapping[str, Fraction]
    size: Fraction
    color: object
    backward: bool
    back: Mapping[str, Fraction] | None = None
    weight: Fraction = Fraction(0)


@dataclass(slots=True)
class Workload:
    """By node, ``send``: milliseconds of its output over the link of an accelerator; ``output``: bytes of its output;
    ``stated``: milliseconds of its output that the workload states. ``bandwidth``: of a link, bytes per millisecond, None if
    not stated. For profiles, ``both``: milliseconds of both passes. On a topology, ``machines`` by name, and ``mates``: nodes
    on the same device as a node that no result lists."""

    nodes: dict[Id, Node]
    readers: dict[Id, set[Id]]
    send: dict[Id, Fraction]
    accelerators: int | None
    cpus: int
    memory: Fraction | None
    both: dict[Id, Fraction] = field(default_factory=dict)
    output: dict[Id, Fraction] = field(default_factory=dict)
    bandwidth: Fraction | None = None
    stated: dict[Id, Fraction] = field(default_factory=dict)
    machines: dict[str, Machine] = field(default_factory=dict)
    mates: dict[Id, tuple[Id, ...]] = field(default_factory=dict)

    def machine(self, kind: str, name: str) -> Machine:
        """The machine of a device in a result. Raises Malformed if the topology does not have it."""
        if not self.machines:
            return Machine(CPU, free=True) if kind == CPU else Machine(kind, self.memory)
        if name not in self.machines:
            raise Malformed(f"device {name} is none of the topology", result=True)
        return self.machines[name]

    def transfer(self, maker: Id, machine: Machine) -> Fraction:
        """Milliseconds that a device takes to send or to receive the output of a node."""
        if machine.free:
            return Fraction(0)
        if machine.port is None:
            return self.send.get(maker, Fraction(0))
        if maker in self.stated:
            return self.stated[maker]
        latency, bandwidth = machine.port
        return latency + (self.output.get(maker, Fraction(0)) / bandwidth if bandwidth else 0)


def read_workload(text: str, limits: Limits, *, format: str = "") -> Workload:
    """The workload, with the machines of ``limits``; ``format``: empty to detect it from the text. Raises Malformed."""
    chosen = format or ("device-placement" if text.lstrip("\ufeff \t\r\n").startswith("{") else "pipedream")
    return read_placement(text, limits) if chosen == "device-placement" else read_pipedream(text, limits)


def read_placement(text: str, limits: Limits) -> Workload:
    try:
        data = json.loads(text.removeprefix("\ufeff"))
        nodes = {
            node["id"]: Node(
                _times(node),
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
        stated = dict(send)
        if limits.bandwidth is not None:
            send = {id_: math.ceil(size[id_]) / Fraction(limits.bandwidth) * _MS for id_ in send}
        memory = None if data.get("maxSizePerFPGA") is None else need(data["maxSizePerFPGA"], "maxSizePerFPGA")
        accelerators, cpus = _count(data, "maxFPGAs"), _count(data, "maxCPUs") or 0
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise Malformed(f"not a device-placement workload: {type(error).__name__} {error}") from None
    bandwidth = None if limits.bandwidth is None else Fraction(limits.bandwidth) / _MS
    output = {id_: Fraction(math.ceil(bytes_)) for id_, bytes_ in size.items()}
    workload = Workload(nodes, readers, send, accelerators, cpus, memory, output=output, bandwidth=bandwidth, stated=stated)
    return _limited(workload, limits)


def _times(node: Mapping[str, Any]) -> dict[str, Fraction]:
    """Milliseconds by kind of device, without kinds that cannot run the node."""
    stated = {ACCELERATOR: node["fpgaLatency"] if node.get("supportedOnFpga", 1) else None, CPU: node.get("cpuLatency")}
    return {kind: need(value, f"a time of node {node['id']}") for kind, value in stated.items() if value is not None}


def _color(node: Mapping[str, Any]) -> int | str | None:
    color = node.get("colorClass")
    if color is not None and not isinstance(color, int | str):
        raise Malformed(f"colorClass of node {node['id']} is {told(color)}, expected a whole number")
    return color


def _count(data: Mapping[str, Any], key: str) -> int | None:
    """A number of devices, None if not stated."""
    if data.get(key) is None:
        return None
    count = need(data[key], key)
    if count < 0 or count.denominator != 1:
        raise Malformed(f"{key} is {told(data[key])}, expected a whole number")
    return int(count)


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
                back, parameters = {ACCELERATOR: _number(backward)}, _number(weight)
                nodes[id_] = Node({ACCELERATOR: _number(forward)}, parameters, None, False, back, parameters)
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
    """The decimal that a text means, by way of a float, so that '1e999999999' does not become a huge integer."""
    return need(float(text), f"'{text.strip()[:40]}'")


def _limited(workload: Workload, limits: Limits) -> Workload:
    """The workload with the machines of ``limits`` in place of its own."""
    if limits.accelerators is not None:
        workload.accelerators = limits.accelerators
    if limits.cpus is not None:
        workload.cpus = limits.cpus
    if limits.memory is not None:
        workload.memory = Fraction(limits.memory)
    return workload
