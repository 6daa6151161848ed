"""What passes between stages that are meshes: who sends what to whom, and what it costs.

A stage with a mesh is one program on all its devices; each sample is work of all of them. A value that crosses from a stage to
another of the same mesh shape and shares goes as it lies: member i sends its part to member i. Between stages of different
shape (a single device is one of its own) it goes whole: member i of the reader gets it from member ``i mod n`` of the n of the
maker, which brings it to all its members first.

Cost, as everywhere (``place``): bytes over the bandwidth of the route plus its latency, at both ends; a member that sends to
several members of one stage pays the bytes for each and the longest latency once; a device with free transfers pays
nothing. A stage is as slow as its slowest member.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from ir.diagnostics import InvalidInput
from ir.facets import StageSet
from ir.module import Mesh, Module, Plan, Resource
from ir.names import quote_symbol
from ir.shares import Shares, equal, largest
from ir.topology import Topology
from ir.types import Partial, Placement, Replicate, Shard, TensorType, Type, type_bytes
from passes.model.graph import cuts_of, reads
from passes.model.liveness import SLOTS
from passes.model.network import Network, network
from passes.simulate import Wire, Workload

SEPARATOR = "; "
"""Between the names of strategies in ``shard<..>``, one per axis."""
_PLACEMENT = re.compile(r"S\((\d{1,4})\)|R|P\((sum|max)\)")


@dataclass(frozen=True, slots=True)
class Party:
    """The devices of a stage and the sizes of its mesh's axes (none for a single device); ``shares`` along each, none where all
    are equal."""

    devices: tuple[str, ...]
    sizes: tuple[int, ...] = ()
    shares: tuple[Shares, ...] = ()

    def matches(self, other: Party) -> bool:
        """Whether values cross to ``other`` as they lie."""
        return (self.sizes, self.shares) == (other.sizes, other.shares)


def pairs(maker: Party, reader: Party) -> tuple[tuple[int, int], ...]:
    """Which member of the maker sends to which of the reader, in the reader's order."""
    count = len(maker.devices)
    return tuple((member % count, member) for member in range(len(reader.devices)))


def part_bytes(type_: Type, party: Party) -> int:
    """Bytes of the largest part of a value that lies as its type says on the mesh of ``party``."""
    size = type_bytes(type_) or 0
    if not isinstance(type_, TensorType) or type_.layout is None or type_.shape is None:
        return size
    cuts: dict[int, list[Shares]] = {}
    for placement, shares in zip(type_.layout.placements, party.shares or map(equal, party.sizes), strict=True):
        if isinstance(placement, Shard):
            cuts.setdefault(placement.dim, []).append(shares)
    for dim, axes in cuts.items():
        length = type_.shape[dim]
        if isinstance(length, int) and length:
            size = size // length * largest(length, axes)
    return size


def message_bytes(type_: Type, maker: Party, reader: Party) -> int:
    """Bytes of one message of a value between two parties."""
    return part_bytes(type_, maker) if maker.matches(reader) else type_bytes(type_) or 0


class Crossing:
    """Seconds of values between parties of one topology."""

    def __init__(self, topology: Topology, net: Network) -> None:
        self.net = net
        free = {type_.name for type_ in topology.types if type_.free_transfers}
        self.free = {device.name for device in topology.devices if device.type in free}

    def send(self, size: float, maker: Party, reader: Party) -> float:
        """Of the slowest member of ``maker``, for a value of which each message has ``size`` bytes."""
        slowest = 0.0
        targets: dict[int, list[int]] = {}
        for source, target in pairs(maker, reader):
            targets.setdefault(source, []).append(target)
        for source, members in targets.items():
            device = maker.devices[source]
            if device not in self.free:
                paths = [self.net.path(device, reader.devices[member]) for member in members]
                latency = max(path.latency for path in paths)
                slowest = max(slowest, latency + math.fsum(size / path.bandwidth for path in paths))
        return slowest

    def receive(self, size: float, maker: Party, reader: Party) -> float:
        """Of the slowest member of ``reader``."""
        ends = [(maker.devices[a], reader.devices[b]) for a, b in pairs(maker, reader)]
        return max((self.net.seconds(a, b, size) for a, b in ends if b not in self.free), default=0.0)

    def media(self, size: float, maker: Party, reader: Party, *, back: bool = False) -> tuple[tuple[str, float], ...]:
        """Links that transfers share, with the seconds that all members' messages occupy them, or (``back``) the gradients that
        are returned; a direction of a full-duplex link is a medium of its own (``Network.busy``)."""
        found: dict[str, float] = {}
        for source, target in pairs(maker, reader):
            one, two = maker.devices[source], reader.devices[target]
            for name, entered, _ in self.net.path(*((two, one) if back else (one, two))).hops:
                link = self.net.links[name]
                if link.shared or link.duplex != "full":
                    one_way = link.duplex == "full" and len(link.ends) == 2
                    key = f"{name} from {entered}" if one_way else name
                    found[key] = found.get(key, 0.0) + size / link.bandwidth
        return tuple(sorted(found.items()))

    def wire(self, type_: Type, maker: tuple[int, Party], reader: tuple[int, Party], learning: bool) -> Wire:
        """The channel of a value between two stages, each its number and party; ``learning``: its gradient comes back."""
        (source, one), (target, two) = maker, reader
        size = message_bytes(type_, one, two)
        media, back = self.media(size, one, two), self.media(size, one, two, back=True) if learning else ()
        return Wire(
            source,
            target,
            self.send(size, one, two),
            self.receive(size, one, two),
            (media,),
            learning,
            (back,) if learning else (),
        )


def kept_layouts(module: Module, index: int, mesh: Mesh) -> dict[str, tuple[Placement, ...]]:
    """How stage ``index``, which is on ``mesh``, keeps each resource that its ops read: as its type says where that is on the
    same mesh, else as the function's attribute ``shard.kept`` says, else whole. Raises InvalidInput for a text that is not
    ``"k @resource @mesh[placements]"``."""
    func, types = module.entry, {resource.name: resource.type for resource in module.of_type(Resource)}
    own = [op for op in func.ops if index in op.facet(StageSet, StageSet(())).stages]
    whole: tuple[Placement, ...] = (Replicate(),) * len(mesh.axes)
    found = dict.fromkeys((name for op in own for name in reads(op) if name in types), whole)
    for name in found:
        type_ = types[name]
        if isinstance(type_, TensorType) and type_.layout is not None and type_.layout.mesh == mesh.name:
            found[name] = type_.layout.placements
    attribute = dict(func.attributes).get("shard.kept")
    if attribute is not None and not isinstance(attribute.value, tuple):
        raise InvalidInput(f"{attribute.value!r} found, a list of texts expected", where="shard.kept")
    for text in attribute.value if attribute else ():
        number, _, rest = str(text).partition(" ")
        name, _, placements = rest.rpartition(f" {quote_symbol(mesh.name)}[")
        if number == str(index):
            if name not in types or not placements.endswith("]"):
                raise InvalidInput(f"'{text}' found, 'STAGE @resource {mesh.name}[..]' expected", where="shard.kept")
            found[name] = read_placements(placements[:-1])
    return found


def read_placements(text: str) -> tuple[Placement, ...]:
    """``S(0), R, P(sum)``. Raises InvalidInput."""
    found: list[Placement] = []
    for part in text.split(","):
        match = _PLACEMENT.fullmatch(part.strip())
        if match is None:
            raise InvalidInput(f"'{part.strip()}' is no placement; S(dim), R or P(sum) expected", where=text)
        dim, reduction = match.groups()
        found.append(Shard(int(dim)) if dim else Partial(reduction) if reduction else Replicate())
    return tuple(found)


def parties(plan: Plan, meshes: dict[str, Mesh]) -> list[Party]:
    """Of each stage of a plan."""
    on = [meshes.get(stage.mesh, Mesh("", (), ())) for stage in plan.stages]
    return [
        Party(stage.devices, tuple(size for _, size in mesh.axes), mesh.shares)
        for stage, mesh in zip(plan.stages, on, strict=True)
    ]


def sharded_workload(module: Module, plan: Plan, topology: Topology) -> Workload:
    """What the simulator runs of a plan in which stages are meshes, or of a training step (``place.workload`` for any)."""
    sides = parties(plan, {mesh.name: mesh for mesh in module.of_type(Mesh)})
    crossing = Crossing(topology, network(topology))
    training = plan.objective == "training"
    later = [stage.backward + stage.sync / plan.microbatches for stage in plan.stages]
    return Workload(
        compute=tuple(max(0.0, stage.working - behind) for stage, behind in zip(plan.stages, later, strict=True)),
        replicas=tuple(stage.devices for stage in plan.stages),
        wires=tuple(
            crossing.wire(
                cut.tensor.type,
                (cut.source, sides[cut.source]),
                (cut.target, sides[cut.target]),
                cut.tensor.name in plan.stages[cut.target].learning,
            )
            for cut in cuts_of(module.entry)
        ),
        comm=plan.comm,
        slots=SLOTS,
        together=frozenset(stage.index for stage in plan.stages if stage.mesh),
        backward=tuple(stage.backward for stage in plan.stages) if training else (),
        sync=tuple(stage.sync for stage in plan.stages) if training else (),
    )


__all__ = [
    "SEPARATOR",
    "Crossing",
    "Party",
    "kept_layouts",
    "message_bytes",
    "pairs",
    "part_bytes",
    "parties",
    "read_placements",
    "sharded_workload",
]
