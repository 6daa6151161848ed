"""A workload as its file states it: nodes with measured times, edges, machines; and its lowering into IR.

What the formats share. A reader (``device_placement``, ``pipedream``) fills a ``Profile``; ``lower`` checks what concerns the
whole graph and gives a module with one ``dnnc.work`` op per node and a topology.

Invariants of the module: ops stand in a topological order, ties by their order in the file; an op's result is the one message
that the node sends, whatever the number of its readers; every number is the file's, with milliseconds turned into seconds.
Both formats are in milliseconds: PipeDream says so, and the device-placement files were measured so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from dnnc.data.workloads.faults import BackwardLeftOut, BandwidthNeedsBytes, CyclicEdges, TooManyBytesTogether
from ir.core.diagnostics import Diagnostic, DiagnosticSink, Fault, InvalidInput, Span
from ir.core.facets import BackwardTime, Color, Direction, Facet, Time, Transfer
from ir.core.module import Module
from ir.core.names import unique
from ir.core.ops import Location
from ir.core.topology import Device, DeviceType, Host, Link, Topology
from ir.core.types import BytesType
from ir.ops.builder import Builder
from passes.graph.graph import topological

ACCELERATOR, CPU = "accelerator", "cpu"
"""Names of the two device types; devices are ``acc0``, ``acc1``... and ``cpu0``..."""
UNIT = "ms"
PER_SECOND = 1000.0
"""Units of the file in a second."""
MOST_DEVICES = 65536
MOST_BYTES = 2**62
"""Half of what a signed number of 64 bits holds: no machine has as much, and sums of sizes stay below it."""
LEAST, MOST = 1e-100, 1e100
NUMBERS = f"0 or from {LEAST:g} to {MOST:g}"
_MOST_FAULTS = 20
_HOST = "host0"


@dataclass(frozen=True, slots=True)
class Node:
    """One node. Times in milliseconds, None where that device type cannot run it; ``transfer``: milliseconds of its message,
    None where it sends none or only its bytes (``message``) are known. ``size``: bytes that a device needs for it;
    ``weight``: bytes of parameters besides. ``place``: what the profile's ``locate`` finds it by."""

    id: int | str
    name: str
    accelerator: float | None
    cpu: float | None = None
    accelerator_backward: float | None = None
    size: int = 0
    weight: int = 0
    message: int = 0
    transfer: float | None = None
    color: Hashable | None = None
    backward: bool = False
    place: Hashable = None


@dataclass(frozen=True, slots=True)
class Machines:
    """What the machines are; None: not stated. ``memory``: bytes of each accelerator; ``bandwidth``: bytes per second between
    an accelerator and the memory of the host."""

    accelerators: int | None = None
    cpus: int | None = None
    memory: int | None = None
    bandwidth: float | None = None

    def over(self, other: Machines) -> Machines:
        """These, and what they leave open from ``other``."""
        return Machines(
            other.accelerators if self.accelerators is None else self.accelerators,
            other.cpus if self.cpus is None else self.cpus,
            other.memory if self.memory is None else self.memory,
            other.bandwidth if self.bandwidth is None else self.bandwidth,
        )


@dataclass(slots=True)
class Profile:
    """A file as read. ``edges``: (source, reader) by node number, each once. ``locate`` gives the place of a node in the text;
    ``machines`` is what the file says of them."""

    format: str
    where: str
    nodes: list[Node]
    edges: list[tuple[int, int]]
    machines: Machines
    locate: Callable[[Node], Span | None]

    @property
    def has_backward_nodes(self) -> bool:
        return any(node.backward for node in self.nodes)


@dataclass(slots=True)
class Faults:
    """Faults of a file, collected; ``check`` raises those found so far."""

    where: str
    found: list[Diagnostic] = field(default_factory=list)

    def add(self, fault: Fault, span: Span | None = None) -> None:
        self.found.append(fault.at(self.where, span))
        if len(self.found) >= _MOST_FAULTS:
            self.check()

    def check(self) -> None:
        if self.found:
            raise InvalidInput(self.found)


def lower(profile: Profile, machines: Machines, *, backward: bool, sink: DiagnosticSink) -> Module:
    """The module of a profile. ``machines`` stand over the file's. ``backward``: with backward nodes and times, or inference
    alone. There is a topology where the number of accelerators is known. Raises InvalidInput for a graph that has a cycle,
    and for bytes that are needed and not there."""
    machines = machines.over(profile.machines)
    _check_sum(profile)
    order = _topological(profile)
    planned = [v for v in order if backward or not profile.nodes[v].backward]
    if not backward and (dropped := len(profile.nodes) - len(planned)):
        sink.warn(BackwardLeftOut(dropped), where=profile.where)
    inside = set(planned)
    rank = {v: i for i, v in enumerate(order)}
    operands: dict[int, list[int]] = {v: [] for v in planned}
    read: set[int] = set()
    for source, reader in profile.edges:
        if source in inside and reader in inside:
            operands[reader].append(source)
            read.add(source)
    stated = machines.bandwidth is None
    explicit = profile.has_backward_nodes
    if not stated:
        _check_bytes(profile, sorted(read))

    builder = Builder("@workload", producer=profile.format, unit=UNIT)
    names = _names(profile.nodes)
    colors: dict[Hashable, int] = {}
    for node in profile.nodes:
        if node.color is not None:
            colors.setdefault(node.color, len(colors))
    with builder.func("main") as func:
        for v in planned:
            node = profile.nodes[v]
            facets: list[Facet] = [Time(_times({ACCELERATOR: node.accelerator, CPU: node.cpu}))]
            if backward and node.accelerator_backward is not None:
                facets.append(BackwardTime(_times({ACCELERATOR: node.accelerator_backward})))
            if stated and node.transfer is not None:
                facets.append(Transfer((_seconds(node.transfer),)))
            if node.color is not None:
                facets.append(Color(colors[node.color]))
            if backward and explicit:
                facets.append(Direction("bw" if node.backward else "fw"))
            func.op(
                "dnnc.work",
                [names[u] for u in sorted(operands[v], key=rank.__getitem__)],
                BytesType(node.message),
                name=names[v],
                attrs={"id": node.id} | {k: b for k, b in (("size", node.size), ("weight", node.weight)) if b},
                facets=tuple(facets),
                location=Location("main", node.name),
            )
    if machines.accelerators is not None:
        builder.add(topology(machines))
    return builder.build()


def topology(machines: Machines) -> Topology:
    """K accelerators and L CPUs of one host. Without a bandwidth there are no links: the ops state their transfers. Memory that
    no machine has is no limit."""
    count, cpus = machines.accelerators or 0, machines.cpus or 0
    types = []
    if count:
        memory = None if machines.memory is None or machines.memory >= MOST_BYTES else machines.memory
        types.append(DeviceType(ACCELERATOR, kind=ACCELERATOR, memory=memory))
    if cpus:
        types.append(DeviceType(CPU, kind=CPU, free_transfers=True))
    devices = [Device(f"acc{i}", ACCELERATOR, _HOST) for i in range(count)]
    devices += [Device(f"cpu{i}", CPU, _HOST) for i in range(cpus)]
    links = []
    if machines.bandwidth is not None:
        links = [Link(f"{device.name}.link", (device.name, _HOST), machines.bandwidth) for device in devices]
    return Topology("@machines", tuple(types), (Host(_HOST),), tuple(devices), links=tuple(links))


def in_unit(seconds: float) -> float:
    """Seconds in the file's unit, without the last digit that the way there and back may have touched."""
    return float(f"{seconds * PER_SECOND:.15g}")


def _seconds(value: float) -> float:
    return value / PER_SECOND


def _times(values: Mapping[str, float | None]) -> tuple[tuple[str, float], ...]:
    return tuple(sorted((f"@{name}", _seconds(value)) for name, value in values.items() if value is not None))


def _names(nodes: Sequence[Node]) -> list[str]:
    """A value name per node, from its id: ``%node7``, or ``%n7`` for a number."""
    taken: set[str] = set()
    return [unique(f"%n{node.id}" if isinstance(node.id, int) else f"%{node.id}", taken) for node in nodes]


def _check_sum(profile: Profile) -> None:
    """Raises InvalidInput where all nodes together have more bytes than can be counted."""
    total = sum(node.size + node.weight + node.message for node in profile.nodes)
    if total >= MOST_BYTES:
        raise InvalidInput(TooManyBytesTogether(total), where=profile.where)


def _check_bytes(profile: Profile, senders: Sequence[int]) -> None:
    """Raises InvalidInput where a transfer costs time and nobody says how many bytes it has."""
    faults = Faults(profile.where)
    for v in senders:
        node = profile.nodes[v]
        if node.transfer and not node.message:
            faults.add(BandwidthNeedsBytes(str(node.id)), profile.locate(node))
    faults.check()


def _topological(profile: Profile) -> list[int]:
    """All nodes, each after those it reads, ties by their order in the file. Raises InvalidInput for a cycle."""
    following: list[list[int]] = [[] for _ in profile.nodes]
    for source, reader in profile.edges:
        following[source].append(reader)
    order = topological(following)
    if len(order) < len(profile.nodes):
        done = set(order)
        cycle = _cycle(following, [v not in done for v in range(len(following))])
        ids = " -> ".join(str(profile.nodes[v].id) for v in [*cycle, cycle[0]][:12]) + (" ..." if len(cycle) > 11 else "")
        span = profile.locate(profile.nodes[cycle[0]])
        raise InvalidInput(CyclicEdges(ids), where=profile.where, span=span)
    return order


def _cycle(following: Sequence[Sequence[int]], left: Sequence[bool]) -> list[int]:
    """A cycle among the nodes of ``left``, from its least node. Each has a predecessor there: walk back until one repeats."""
    before = {reader: v for v, readers in enumerate(following) if left[v] for reader in readers}
    v = left.index(True)
    seen: dict[int, int] = {}
    while v not in seen:
        seen[v] = len(seen)
        v = before[v]
    cycle = [u for u, at in seen.items() if at >= seen[v]][::-1]
    start = cycle.index(min(cycle))
    return cycle[start:] + cycle[:start]


def is_number(value: float) -> bool:
    """Whether a time or a size can be ``value``: sums, ratios and products of such numbers are finite."""
    return value == 0 or LEAST <= value <= MOST


def whole_bytes(value: float) -> int:
    """Bytes as a whole number, a part of one counted as one."""
    return math.ceil(value)
