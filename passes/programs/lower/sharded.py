"""Stages as SPMD programs: one ``stage`` for all members of a mesh, each reshard as the collectives that it is.

Types stay those of whole tensors, with layouts. Invariants of a stage on a mesh, beside those of ``passes.programs.lower``:

1. The ops of a stage stand in the order of the entry, but for sums of gradients (``buckets``). A ``comm.reshard`` is expanded
   where it stands into the cheapest chain of ``comm`` ops from its operand's layout to its result's
   (``passes.meshes.layouts``), which is what the plan was charged; the last one makes the result, what lies between is
   called ``%v.k``. One between equal layouts of two meshes is a name for the value that arrives.
2. ``comm.slice`` (R to S) and ``comm.term`` (R to P) move nothing. A term of a sum is the value itself on the first member of
   the axis and zero on the others; of a maximum it is the value on all.
3. Arguments of the model reach every member whole; small constants and what has no layout are whole as well. A reshard with
   ``once`` stays, in a stage on a mesh: it says how the stage keeps a weight.
4. A value is sent right behind the op that makes it, as it lies there, and received so, under the name that the model gives it.
   The collectives of a reshard have its phase.
5. Channels of collectives are numbered behind those between stages, in the order of stages and of ops, so the members of a
   group agree on their order.

A stage on a single device is on a mesh without axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ir.core.attributes import Attribute, AttrKind, attributes
from ir.core.diagnostics import InvalidInput
from ir.core.facets import UPDATE, in_phase, phase_of, sync_of
from ir.core.module import Mesh, Module, Stage
from ir.core.ops import Op, Value
from ir.core.topology import Topology
from ir.core.types import Type, type_bytes, without_layout
from ir.ops.boxes import Placements, placements_of
from ir.ops.opdefs import RESHARD, RESHARD_STEPS, is_collective
from ir.ops.optimizers import OPTIMIZERS
from passes.costs.network import network
from passes.graph.faults import NoTopology
from passes.graph.graph import Cut, describe, is_sharded, origins, reads, renamed, stage_members
from passes.meshes.decided import decided
from passes.meshes.layouts import Step, Ways, split
from passes.meshes.mesh import DeviceMesh, mesh_over
from passes.meshes.reshard_ops import defined, fresh, laid
from passes.programs.lower.borders import collectives_in, numbered, sends_of, stage_text
from passes.programs.lower.buckets import in_buckets
from passes.programs.lower.faults import NoReshard


def lower_stages(module: Module, cuts: Sequence[Cut]) -> tuple[Stage, ...]:
    """The programs of a module's stages, on the devices of their meshes; ``cuts`` are ``cuts_of`` its entry. Raises
    InvalidInput where the decisions of a sharded module do not fit together (``decided``)."""
    members = stage_members(module.entry)
    meshes: Sequence[Mesh] = [Mesh("", (), ())] * (1 + max(map(max, members), default=0))
    ways = [Ways(DeviceMesh(()))] * len(meshes)
    if is_sharded(module):
        topology = module.first(Topology)
        if topology is None:
            raise InvalidInput(NoTopology(), where=module.name)
        found, net = decided(module), network(topology)
        meshes = found.meshes
        ways = [Ways(mesh_over(topology, net, mesh) if mesh.axes else DeviceMesh(())) for mesh in meshes]
    names = defined(module.entry.ops) | {arg.name for arg in module.entry.args}
    channel = len(cuts)
    stages = []
    for index, mesh in enumerate(meshes):
        own = [op for op, held in zip(module.entry.ops, members, strict=True) if index in held]
        first = {
            value.name for op, held in zip(module.entry.ops, members, strict=True) for value in op.results if held[0] == index
        }
        stage = _Stage(module, members, index, mesh, ways[index], channel, set(names)).program(own, first, cuts)
        channel += collectives_in(stage.ops)
        stages.append(stage)
    return tuple(stages)


class _Stage:
    """One stage while its program is put together."""

    def __init__(
        self,
        module: Module,
        members: Sequence[Sequence[int]],
        index: int,
        mesh: Mesh,
        ways: Ways,
        channel: int,
        names: set[str],
    ) -> None:
        self.func, self.index, self.mesh, self.ways, self.channel = module.entry, index, mesh, ways, channel
        self.members = members
        self.names = names
        self.body: list[Op] = []
        self.called: dict[str, str] = {}
        self.types: dict[str, Type] = {resource.name: resource.type for resource in module.resources.values()}
        self.types.update((arg.name, arg.type) for arg in self.func.args)
        self.servers = _servers(module)

    def program(self, own: Sequence[Op], first: set[str], cuts: Sequence[Cut]) -> Stage:
        """The stage, under a name by its number. ``own``: its ops; ``first``: values that no stage before makes."""
        sends = sends_of(cuts, self.index)
        for item in stage_text(self.func, self.members, cuts, self.index):
            if isinstance(item, tuple):
                self.receive(*item)
                continue
            if item.name == RESHARD:
                self.reshard(item)
            else:
                op = numbered(item, self.channel) if is_collective(item) else item
                self.channel += is_collective(item)
                self.add(renamed((op,), self.called)[0] if self.called else op)
            for value in item.results:
                for send in sends.get(value.name, ()):
                    self.add(replace(send, operands=(self.called.get(value.name, value.name),), location=item.location))
        results = self.results(first)
        used = {name for op in own for name in reads(op)} | {value.name for value in results}
        args = tuple(arg for arg in self.func.args if arg.name in used)
        ops = in_buckets(self.body, self.bytes)
        return Stage(f"@stage{self.index}", self.index, self.mesh.devices, args, results, ops, mesh=self.mesh.name)

    def bytes(self, type_: Type) -> float:
        """Of a value on a member, the one with most of it."""
        placements = placements_of(type_, self.mesh)
        return (type_bytes(type_) or 0) * split(without_layout(type_), placements, self.ways.mesh)

    def results(self, first: set[str]) -> tuple[Value, ...]:
        """Outputs of the model that leave here: made here and in no stage before, or, from the first stage, handed on."""
        made = {value.name for op in self.func.ops for value in op.results}
        found = []
        for value in self.func.results:
            if value.name in first or (self.index == 0 and value.name not in made):
                lies = placements_of(self.types[value.name], self.mesh)
                found.append(Value(value.name, laid(without_layout(value.type), self.mesh, lies)))
        return tuple(found)

    def add(self, op: Op) -> None:
        self.types.update((value.name, value.type) for value in op.results)
        self.body.append(op)

    def receive(self, channel: int, cut: Cut) -> None:
        """A value as it comes: of a layout the mesh alone is another one."""
        value = cut.tensor
        layout = getattr(value.type, "layout", None)
        type_ = value.type if layout is None else laid(without_layout(value.type), self.mesh, layout.placements)
        if cut.name != value.name:
            self.called[value.name] = cut.name
        fields = attributes(channel=channel, peer=cut.source)
        self.add(Op("comm.recv", (), (Value(cut.name, type_),), fields, facets=in_phase(cut.read)))

    def reshard(self, op: Op) -> None:
        """The chain that a reshard is."""
        name, result = self.called.get(op.operands[0], op.operands[0]), op.results[0]
        if op.get("once") and self.mesh.axes:
            self.add(op)
            return
        source, target = placements_of(self.types[name], self.mesh), placements_of(result.type, self.mesh)
        if source == target:
            self.called[result.name] = name
            return
        type_ = without_layout(result.type)
        try:
            way = self.ways.way(type_, source, target, together=phase_of(op.facets) == UPDATE)
        except KeyError as error:
            raise InvalidInput(NoReshard(name, str(error.args[0])), where=describe(op)) from error
        current, lies = name, source
        for number, step in enumerate(way, 1):
            made = result.name if number == len(way) else fresh(result.name, self.names)
            self.add(self.step(current, made, type_, lies, step, op))
            current, lies = made, step.after

    def step(self, operand: str, result: str, type_: Type, lies: Placements, step: Step, reshard: Op) -> Op:
        """One op of the chain of ``reshard``, in its phase."""
        before, after = lies[step.axis], step.after[step.axis]
        definition = RESHARD_STEPS[step.kind]
        fields = {
            "mesh": Attribute(AttrKind.SYMBOL, self.mesh.name),
            "axis": Attribute(AttrKind.STRING, self.mesh.axes[step.axis][0]),
            **definition.attributes(before, after),
        }
        server = self.servers.get(reshard.results[0].name)
        if server is not None and definition.cuts_anew:
            fields["through"] = Attribute(AttrKind.INT, server % self.mesh.axes[step.axis][1])
        if definition.moves:
            fields["channel"] = Attribute(AttrKind.INT, self.channel)
            self.channel += 1
        value = Value(result, laid(type_, self.mesh, step.after))
        return Op(
            f"comm.{step.kind}",
            (operand,),
            (value,),
            tuple(sorted(fields.items())),
            (),
            in_phase(phase_of(reshard.facets)),
            reshard.location,
        )


def _servers(module: Module) -> dict[str, int]:
    """Of each gradient as an optimizer reads it, the place of the member that makes its sum; none where all members do."""
    synced = {name: sync_of(resource.facets) for name, resource in module.resources.items()}
    servers = {name: max(sync.server, 0) for name, sync in synced.items() if sync.method == "ps"}
    if not servers:
        return {}
    names = origins(module.entry)
    updates = [(names.get(op.operands[0], op.operands[0]), op) for op in module.entry.ops if op.name in OPTIMIZERS]
    return {op.operands[1]: servers[weight] for weight, op in updates if weight in servers}
