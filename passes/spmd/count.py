"""What the collectives of lowered stages cost, counted from the ops alone: the oracle of what a plan was charged.

It reads the ops of each stage with their types, the mesh and the topology, and nothing of the search, the layout rules or the
decisions. Axes get their speed from the routes between the members that collectives really join: an axis is as fast as the
slowest hop of any of its rings.

Bytes of a collective are those of the tensor as the other axes leave it; of n members (rings: Thakur, Rabenseifner, Gropp
2005) each sends ``(n-1)/n`` of that for an all-gather or reduce-scatter, twice as much for an all-reduce, ``(n-1)/n^2`` for an
all-to-all, in ``n-1`` steps (twice as many for an all-reduce) that each take the latency.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ir.diagnostics import InvalidInput
from ir.module import Mesh, Module, Stage
from ir.ops import Op
from ir.topology import Topology
from ir.types import Shard, TensorType
from passes.analyses.network import Network, Unreachable, network
from passes.spmd.boxes import axis_number, members_along, placements_of

KINDS = ("all_gather", "all_reduce", "all_to_all", "reduce_scatter")


@dataclass(frozen=True, slots=True)
class Counted:
    """One collective of a stage. ``value``: what it makes; ``size``: bytes of the tensor as the other axes leave it; ``sent``:
    bytes that each member sends."""

    stage: int
    channel: int
    kind: str
    axis: str
    value: str
    size: float
    sent: float
    seconds: float


def count(module: Module) -> tuple[Counted, ...]:
    """Every collective of every lowered stage, by stage, then by place. Raises InvalidInput for a module that is not lowered
    or without a topology, and where members cannot reach each other."""
    topology = module.first(Topology)
    if topology is None:
        raise InvalidInput("the module has no topology", where=module.name, hint="give one with -t")
    if module.first(Stage) is None:
        raise InvalidInput("the module has no stages", where=module.name, hint="run 'lower'")
    meshes = {mesh.name: mesh for mesh in module.of_type(Mesh)}
    net = network(topology)
    found: list[Counted] = []
    for stage in module.of_type(Stage):
        mesh = meshes.get(stage.mesh)
        if mesh is not None:
            speeds = {axis: _speed(topology, net, mesh, axis) for axis, _ in mesh.axes}
            found += _of_stage(stage, mesh, speeds)
    return tuple(found)


def _of_stage(stage: Stage, mesh: Mesh, speeds: dict[str, tuple[float, float]]) -> list[Counted]:
    found = []
    for op in stage.ops:
        kind = op.name.removeprefix("comm.")
        if op.dialect == "comm" and kind in KINDS:
            axis = op.get("axis")
            members = dict(mesh.axes)[axis]
            size = _size(op, mesh, axis)
            bandwidth, latency = speeds[axis]
            rounds = 2 if kind == "all_reduce" else 1
            sent = rounds * (members - 1) * size / (members**2 if kind == "all_to_all" else members)
            steps = rounds * (members - 1)
            seconds = sent / bandwidth + steps * latency
            found.append(Counted(stage.index, op.get("channel"), kind, axis, op.results[0].name, size, sent, seconds))
    return found


def _size(op: Op, mesh: Mesh, axis: str) -> float:
    """Bytes of what the collective makes, as it would be without its axis. A collective leaves the other axes as they are, so
    the layout of its result tells."""
    type_ = op.results[0].type
    if not isinstance(type_, TensorType) or type_.nbytes is None:
        raise InvalidInput(f"{op.results[0].name} has no size", where=op.id)
    number = axis_number(mesh, axis)
    size = float(type_.nbytes)
    for other, (placement, (_, members)) in enumerate(zip(placements_of(type_, mesh), mesh.axes, strict=True)):
        if other != number and isinstance(placement, Shard):
            size /= members
    return size


def _speed(topology: Topology, net: Network, mesh: Mesh, axis: str) -> tuple[float, float]:
    """Bytes per second and seconds of the slowest hop of a ring along the axis."""
    free = {type_.name for type_ in topology.types if type_.free_transfers}
    types = {device.name: device.type for device in topology.devices}
    bandwidth, latency = math.inf, 0.0
    for member in range(len(mesh.devices)):
        group = members_along(mesh, member, axis)
        source, target = mesh.devices[member], mesh.devices[group[(group.index(member) + 1) % len(group)]]
        if source == target or (types[source] in free and types[target] in free):
            continue
        try:
            path = net.path(source, target)
        except Unreachable as error:
            raise InvalidInput(f"no mesh axis {axis}: {error}", where=mesh.name) from error
        bandwidth, latency = min(bandwidth, path.bandwidth), max(latency, path.latency)
    return bandwidth, latency


__all__ = ["Counted", "count"]
