"""INV14 and INV15: topologies and meshes."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from typing import TypeAlias

from ir.core.module import Mesh
from ir.core.ranges import LARGEST, MOST_MEMORY, SMALLEST, is_amount
from ir.core.topology import Device, DeviceType, Host, Link, Route, Switch, Topology
from ir.verifier.findings import Findings, Part

Fault: TypeAlias = tuple[Part | None, str]
"""What is wrong, and with which part of the topology (None: with it as a whole)."""
MOST_CORES = 1 << 20
"""Of one host."""
LEAST_EFFICIENCY = 1e-9
"""Of a class of ops; a smaller fraction of the peak is a slip."""
_ABOVE = f"from {SMALLEST:g} to {LARGEST:g}"
PROVIDER = re.compile(r"[A-Za-z][A-Za-z0-9]*ExecutionProvider")
"""How ONNX Runtime spells the names of its execution providers."""
MOST_DEVICE_ID = 1 << 16
OPTION = re.compile(r"[^/\\]*")
"""A value of a provider's option: no path, for some options name a library to load or a file to write, and a topology may come
from anywhere."""
MOST_SHARE = 1000
"""Shares are small: an order of as many turns as their sum is kept for each axis."""


def check_machines(findings: Findings) -> None:
    """Every topology and mesh of the module."""
    for topology in findings.module.of_type(Topology):
        for part, fault in (
            *_name_faults(topology),
            *_number_faults(topology),
            *_provider_faults(topology),
            *_link_faults(topology),
        ):
            findings.add("INV14", f"in {topology.name}: {fault}", topology, part=part)
    for mesh in findings.module.of_type(Mesh):
        for fault in _mesh_faults(mesh, findings.topology):
            findings.add("INV15", f"in {mesh.name}: {fault}", mesh)
            findings.unsound.add(mesh.name)


def _name_faults(topology: Topology) -> Iterable[Fault]:
    points: tuple[Device | Host | Switch, ...] = (*topology.devices, *topology.hosts, *topology.switches)
    named: list[tuple[str, tuple[DeviceType | Device | Host | Switch | Link, ...]]]
    named = [("device type", topology.types), ("point", points), ("link", topology.links)]
    for kind, parts in named:
        seen: set[str] = set()
        for part in parts:
            if part.name in seen:
                hint = " (devices, hosts and switches have distinct names)" if kind == "point" else ""
                yield part, f"{kind} '{part.name}' is defined twice{hint}"
            seen.add(part.name)
    types = {type_.name for type_ in topology.types}
    hosts = {host.name for host in topology.hosts}
    for device in topology.devices:
        if device.type not in types:
            yield device, f"device '{device.name}' is of type '{device.type}', which is not defined"
        if device.host not in hosts:
            yield device, f"device '{device.name}' is on host '{device.host}', which is not defined"


def _number_faults(topology: Topology) -> Iterable[Fault]:
    for type_ in topology.types:
        for dtype, rate in type_.rates:
            if not (rate > 0 and is_amount(rate)):
                yield type_, f"the {dtype} rate of '{type_.name}' is {rate}, not {_ABOVE} flop/s"
        for kind, fraction in type_.efficiency:
            if not LEAST_EFFICIENCY <= fraction <= 1:
                expected = f"at least {LEAST_EFFICIENCY:g} and at most 1"
                yield type_, f"the efficiency of '{type_.name}' for {kind} is {fraction}, not {expected}"
        for what, value in (
            ("memory bandwidth", type_.memory_bandwidth),
            ("overhead", type_.overhead),
            ("handover", type_.handover),
            ("unit bandwidth", type_.unit_bandwidth),
            ("store bandwidth", type_.store_bandwidth),
            ("cache bandwidth", type_.cache_bandwidth),
            ("step", type_.step),
            ("split", type_.split),
            ("launch", type_.launch),
            ("scalar rate", type_.scalar_rate),
        ):
            if not is_amount(value):
                yield type_, f"the {what} of '{type_.name}' is {value}, not 0 or {_ABOVE}"
        if type_.overlap is not None and not 0 <= type_.overlap <= 1:
            yield type_, f"the overlap of '{type_.name}' is {type_.overlap}, not from 0 to 1"
        if not 0 <= type_.reserved < MOST_MEMORY:
            yield type_, f"the reserved memory of '{type_.name}' is {type_.reserved} bytes, not from 0 to {MOST_MEMORY - 1}"
        if not 1 <= type_.cores <= MOST_CORES:
            yield type_, f"device type '{type_.name}' has {type_.cores} cores, not from 1 to {MOST_CORES}"
        if not (0 <= type_.balance <= 1 and 0 <= type_.units < MOST_CORES and 0 <= type_.cache < MOST_MEMORY):
            yield type_, f"the units, cache or balance of '{type_.name}' are out of range; balance is from 0 to 1"
    owners: list[DeviceType | Device | Host] = [*topology.types, *topology.devices, *topology.hosts]
    for owner in owners:
        if owner.memory is not None and not 0 <= owner.memory < MOST_MEMORY:
            yield owner, f"the memory of '{owner.name}' is {owner.memory} bytes, not from 0 to {MOST_MEMORY - 1}"
    for host in topology.hosts:
        if host.cores is not None and not 1 <= host.cores <= MOST_CORES:
            yield host, f"host '{host.name}' has {host.cores} cores, not from 1 to {MOST_CORES}"


def _provider_faults(topology: Topology) -> Iterable[Fault]:
    providers = {type_.name: type_.provider for type_ in topology.types}
    for type_ in topology.types:
        if type_.provider and not PROVIDER.fullmatch(type_.provider):
            yield type_, f"the provider of '{type_.name}' is '{type_.provider}', not a name such as CUDAExecutionProvider"
        if type_.provider_options and not type_.provider:
            yield type_, f"type '{type_.name}' has provider options and no provider"
        for key in _twice(key for key, _ in type_.provider_options):
            yield type_, f"the provider option '{key}' of '{type_.name}' is given twice"
        for key, value in type_.provider_options:
            if not OPTION.fullmatch(value):
                yield type_, f"the provider option '{key}' of '{type_.name}' is a path, '{value}'; an option names no file"
        if "device_id" in dict(type_.provider_options):
            yield type_, f"type '{type_.name}' has the provider option 'device_id', which each device states for itself"
    for device in topology.devices:
        if device.device_id is None:
            continue
        if not 0 <= device.device_id <= MOST_DEVICE_ID:
            yield device, f"the device_id of '{device.name}' is {device.device_id}, not from 0 to {MOST_DEVICE_ID}"
        if device.type in providers and not providers[device.type]:
            yield device, f"device '{device.name}' has a device_id, and its type '{device.type}' names no provider"


def _link_faults(topology: Topology) -> Iterable[Fault]:
    points = {device.name for device in topology.devices}
    points |= {host.name for host in topology.hosts} | {switch.name for switch in topology.switches}
    links = {link.name: link for link in topology.links}
    for link in topology.links:
        for end in link.ends:
            if end not in points:
                yield link, f"link '{link.name}' ends at '{end}', which is no device, host or switch"
        if len(link.ends) < 2 or len(set(link.ends)) < len(link.ends):
            yield link, f"link '{link.name}' needs two or more distinct ends"
        if not (link.bandwidth > 0 and is_amount(link.bandwidth)):
            yield link, f"the bandwidth of link '{link.name}' is {link.bandwidth}, not {_ABOVE} bytes/s"
        if not is_amount(link.latency):
            yield link, f"the latency of link '{link.name}' is {link.latency}, not 0 or {_ABOVE} seconds"
        for field in ("start", "small", "switch", "training_bandwidth", "training_latency", "training_start"):
            if not is_amount(getattr(link, field)):
                yield link, f"{field} of link '{link.name}' is {getattr(link, field)}, not 0 or {_ABOVE}"
        if link.duplex not in ("full", "half"):
            yield link, f"link '{link.name}' is '{link.duplex}' duplex; expected full or half"
    seen: set[tuple[str, str]] = set()
    for route in topology.routes:
        for fault in _route_faults(route, points, links):
            yield route, fault
        if (route.source, route.target) in seen:
            yield route, f"the route from '{route.source}' to '{route.target}' is given twice"
        seen.add((route.source, route.target))


def _route_faults(route: Route, points: set[str], links: dict[str, Link]) -> Iterable[str]:
    name = f"the route from '{route.source}' to '{route.target}'"
    for end in (route.source, route.target):
        if end not in points:
            yield f"{name} has the end '{end}', which is no device, host or switch"
            return
    reached = {route.source}
    for link_name in route.links:
        link = links.get(link_name)
        if link is None:
            yield f"{name} crosses link '{link_name}', which is not defined"
            return
        if not reached & set(link.ends):
            yield f"{name} cannot cross link '{link_name}': it does not touch {' or '.join(sorted(reached))}"
            return
        reached = set(link.ends) - reached if len(link.ends) == 2 else set(link.ends)
    if route.target not in reached:
        yield f"{name} ends at {' or '.join(sorted(reached))}"


def _twice(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def _counted(count: str, noun: str) -> str:
    return f"{count} {noun}" if count == "1" else f"{count} {noun}s"


def _mesh_faults(mesh: Mesh, topology: Topology | None) -> Iterable[str]:
    for axis in _twice(axis for axis, _ in mesh.axes):
        yield f"axis '{axis}' is defined twice"
    for axis, size in mesh.axes:
        if size < 1:
            yield f"axis '{axis}' has size {size}"
    places = math.prod(size for _, size in mesh.axes)
    if places != len(mesh.devices):
        count = str(places) if places < MOST_MEMORY else "too many"  # Python prints no number of thousands of digits
        yield f"its axes have {_counted(count, 'place')} for {_counted(str(len(mesh.devices)), 'device')}"
    for (axis, _), shares in zip(mesh.axes, mesh.shares, strict=False):
        if not all(1 <= share <= MOST_SHARE for share in shares):
            yield f"axis '{axis}' has shares {list(shares)}, integers from 1 to {MOST_SHARE} expected"
        elif math.gcd(*shares) > 1:
            yield f"axis '{axis}' has shares {list(shares)}, which {[share // math.gcd(*shares) for share in shares]} says too"
    if mesh.shares and [len(shares) for shares in mesh.shares] != [size for _, size in mesh.axes]:
        yield f"its shares {list(map(list, mesh.shares))} are not one for each member along each axis"
    for device in _twice(mesh.devices):
        yield f"device '{device}' stands twice"
    known = {device.name for device in topology.devices} if topology else set(mesh.devices)
    for device in mesh.devices:
        if device not in known:
            yield f"'{device}' is not a device of the topology"
