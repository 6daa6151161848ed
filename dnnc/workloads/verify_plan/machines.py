"""Puts a workload on the devices of a topology.

The topology is the one that the command has read (``dnnc topology show`` prints it); costs of transfers and the seconds of each
device are derived anew. A route between two devices is the one that the topology states, else the one of least latency (in
whole femtoseconds), and among these the one with the widest bottleneck. The *port* of a device has the least latency and the
greatest bandwidth of all routes from and to it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from dnnc.workloads.verify_plan.numbers import Malformed
from dnnc.workloads.verify_plan.workload import ACCELERATOR, CPU, Id, Machine, Node, Workload
from ir.core.topology import Link, Topology

_MS = 1000
_FS = 10**15


def on_topology(workload: Workload, topology: Topology, *, by_bytes: bool) -> Workload:
    """The workload on the devices of a topology; ``by_bytes``: transfers count by their bytes, even if they state seconds.
    Raises Malformed if no device has seconds, or a transfer has no bytes."""
    ports = ports_of(topology)
    machines: dict[str, Machine] = {}
    for device in topology.devices:
        type_ = topology.type(device.type)
        limit = type_.memory if device.memory is None else device.memory
        memory = None if limit is None else Fraction(max(0, limit - type_.reserved))
        port = (Fraction(0), None) if type_.free_transfers else ports[device.name]
        machines[device.name] = Machine(device.type, memory, type_.free_transfers, port)
    for maker, milliseconds in workload.stated.items() if by_bytes else ():
        if milliseconds and workload.readers.get(maker) and not workload.output.get(maker):
            raise Malformed(f"--bytes: the transfer of node {maker!r} states no bytes")
    seconds_of = _seconds_of(workload, topology)
    nodes = {id_: _renamed(node, seconds_of) for id_, node in workload.nodes.items()}
    return replace(workload, nodes=nodes, machines=machines, stated={} if by_bytes else workload.stated)


def with_backward_nodes(workload: Workload) -> Workload:
    """The workload with a backward node for each node that states both of its passes. The backward node is on the same device,
    and sends a gradient to the backward node of each node that the forward one reads, of the size of the tensor read. It holds
    the bytes of the parameters and of one output. The two are ``mates``."""
    both = {id_: node for id_, node in workload.nodes.items() if node.back is not None}
    if not both:
        return workload
    nodes, readers = dict(workload.nodes), {id_: set(ids) for id_, ids in workload.readers.items()}
    output, stated = dict(workload.output), dict(workload.stated)
    mates: dict[Id, tuple[Id, ...]] = {}
    makers: dict[Id, list[Id]] = {id_: [] for id_ in both}
    for maker in both:
        for reader in workload.readers.get(maker, set()) & both.keys():
            makers[reader].append(maker)
    for id_, node in both.items():
        color = ("both passes", id_) if node.color is None else node.color
        backward = _passed(id_)
        size = output.get(id_, Fraction(0)) + node.weight
        nodes[id_] = replace(node, color=color)
        nodes[backward] = Node(node.back or {}, size, color, backward=True)
        readers[id_].add(backward)
        readers[backward] = set()
        # One gradient per node that is read, each a message of its own.
        for maker in makers[id_]:
            gradient = f"{backward} to {maker!r}"
            nodes[gradient] = Node(dict.fromkeys(node.back or {}, Fraction(0)), Fraction(0), color, backward=True)
            readers[backward].add(gradient)
            readers[gradient] = {_passed(maker)}
            output[gradient] = output.get(maker, Fraction(0))
            if maker in stated:
                stated[gradient] = stated[maker]
        mates[id_] = (backward, *(f"{backward} to {maker!r}" for maker in makers[id_]))
    return replace(workload, nodes=nodes, readers=readers, output=output, stated=stated, mates=mates)


def _passed(id_: Id) -> str:
    return f"the backward pass of {id_!r}"


def _renamed(node: Node, seconds_of: Mapping[str, str]) -> Node:
    def of_types(seconds: Mapping[str, Fraction]) -> dict[str, Fraction]:
        return {kind: seconds[name] for kind, name in seconds_of.items() if name in seconds}

    return replace(node, seconds=of_types(node.seconds), back=None if node.back is None else of_types(node.back))


def _seconds_of(workload: Workload, topology: Topology) -> dict[str, str]:
    """For each device type the name in the workload whose seconds it uses: its own name, if the workload has any of the types;
    else ``accelerator`` for types other than CPUs (if all are CPUs, for those that pay for transfers), ``cpu`` for others."""
    used = {device.type for device in topology.devices}
    stated = {name for node in workload.nodes.values() for name in node.seconds}
    if used & stated:
        return {name: name for name in used & stated}
    types = [topology.type(name) for name in sorted(used)]
    fast = {type_.name for type_ in types if type_.kind != CPU} or {type_.name for type_ in types if not type_.free_transfers}
    names = {name: ACCELERATOR if name in fast else CPU for name in used}
    if not stated & set(names.values()):
        raise Malformed(f"the workload states seconds of {', '.join(sorted(stated)) or 'no device'}, none of the topology's")
    return names


def ports_of(topology: Topology) -> dict[str, tuple[Fraction, Fraction | None]]:
    """Latency in milliseconds and bytes per millisecond (None: no limit) of each device's port. A device without a route has no
    latency and no limit."""
    links = {link.name: link for link in topology.links}
    at: dict[str, list[Link]] = {}
    for link in topology.links:
        for end in link.ends:
            at.setdefault(end, []).append(link)
    stated = {(route.source, route.target): [links[name] for name in route.links] for route in topology.routes}
    devices = [device.name for device in topology.devices]
    best: dict[str, tuple[int, float]] = {name: (-1, 0.0) for name in devices}

    def take(name: str, latency: int, width: float) -> None:
        least, most = best[name]
        best[name] = (latency if least < 0 else min(least, latency), max(most, width))

    for source in devices:
        reached = _reached(source, at) if links else {}
        for target in devices:
            if source == target:
                continue
            route = stated.get((source, target))
            if route:
                latency, width = sum(round(link.latency * _FS) for link in route), min(link.bandwidth for link in route)
            elif target in reached:
                latency, width = reached[target]
            else:
                continue
            take(source, latency, width)
            take(target, latency, width)
    return {
        name: (Fraction(0), None) if latency < 0 else (Fraction(latency * _MS, _FS), Fraction(width) / _MS)
        for name, (latency, width) in best.items()
    }


def _reached(source: str, at: Mapping[str, Sequence[Link]]) -> dict[str, tuple[int, float]]:
    """Latency in femtoseconds and bottleneck of the best route from a point to each other."""
    found: dict[str, tuple[int, float]] = {}
    heap: list[tuple[int, float, str]] = [(0, -math.inf, source)]
    while heap:
        latency, narrow, point = heapq.heappop(heap)
        if point in found:
            continue
        found[point] = (latency, -narrow)
        for link in at.get(point, ()):
            for end in link.ends:
                if end not in found:
                    heapq.heappush(heap, (latency + round(link.latency * _FS), max(narrow, -link.bandwidth), end))
    return found
