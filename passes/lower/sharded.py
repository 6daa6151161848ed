"""Sharded stages as SPMD programs: one ``stage`` for all members of a mesh, conversions between layouts explicit.

Types stay those of whole tensors, with layouts. Invariants of a stage on a mesh, beside those of ``passes.lower``:

1. Every operand has the layout that its op's strategy wants. Where that is not how the value was made, kept or received, a
   chain of ``comm`` ops before the first reader makes it: one chain per value and layout, straight from the first layout, the
   cheapest one (``passes.model.spmd.reshard``), which is what the plan was charged. ``%v.1``, ``%v.2``.. are what they make of
   ``%v``.
2. ``comm.slice`` (R to S) and ``comm.term`` (R to P) move nothing. A term of a sum is the value itself on the first member of
   the axis and zero on the others; of a maximum it is the value on all.
3. Arguments of the model reach every member whole; small constants and what has no layout are whole as well.
4. A result of the model has the entry's name and the layout in which it leaves. Where it is made in another, what its op makes
   is called ``%v.0`` and converted right behind.
5. A value for a stage of equal mesh shape and shares is sent and received in the layout in which it was made, terms too, and
   the reader converts it. For any other stage it is brought to R on all axes first, once, and arrives whole.
6. Channels of collectives are numbered behind those between stages, in the order of stages and of ops, so the members of a
   group agree on their order.

Every stage of a sharded module is lowered here; one on a single device is on a mesh without axes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ir.attributes import Attribute, AttrKind, attributes
from ir.diagnostics import InvalidInput
from ir.module import Module, Stage
from ir.ops import Location, Op, Value
from ir.topology import Topology
from ir.types import Partial, Replicate, Shard, Type
from passes.model.graph import Cut, describe, reads, renamed
from passes.model.network import network
from passes.model.spmd.boxes import Placements
from passes.model.spmd.decided import Decided, bare, decided, laid, same_shape
from passes.model.spmd.mesh import DeviceMesh, mesh_over
from passes.model.spmd.reshard import Step, Ways


def lower_sharded(module: Module, cuts: Sequence[Cut]) -> tuple[Stage, ...]:
    """The programs of a sharded module's stages, on the devices of their meshes; ``cuts`` are ``cuts_of`` its entry. Raises
    InvalidInput where the decisions do not fit together (``decided``)."""
    topology = module.first(Topology)
    if topology is None:
        raise InvalidInput("the module has meshes but no topology", where=module.name, hint="give one with -t")
    found = decided(module)
    net = network(topology)
    names = set(_names(module.entry.ops)) | {arg.name for arg in module.entry.args}
    channel = len(cuts)
    stages = []
    for index, mesh in enumerate(found.meshes):
        devices = mesh_over(topology, net, mesh) if mesh.axes else DeviceMesh(())
        stage = _Stage(module, found, cuts, index, Ways(devices, found.uneven), channel, names).program()
        channel += sum(
            op.dialect == "comm" and op.get("axis") is not None and op.get("channel") is not None for op in stage.ops
        )
        stages.append(stage)
    return tuple(stages)


def _names(ops: Iterable[Op]) -> Iterable[str]:
    """Every name that the ops define, regions included."""
    for op in ops:
        yield from (value.name for value in op.results)
        for _, region in op.regions:
            yield from (arg.name for arg in region.args)
            yield from _names(region.ops)


class _Stage:
    """One stage while its program is put together."""

    def __init__(
        self,
        module: Module,
        found: Decided,
        cuts: Sequence[Cut],
        index: int,
        ways: Ways,
        channel: int,
        names: set[str],
    ) -> None:
        self.func, self.found, self.index, self.ways, self.channel = module.entry, found, index, ways, channel
        self.mesh = found.meshes[index]
        self.names = set(names)
        self.first: dict[str, int] = {}
        for op, stages in zip(self.func.ops, found.members, strict=True):
            self.first.update((value.name, stages[0]) for value in op.results)
        self.whole: Placements = (Replicate(),) * len(self.mesh.axes)
        self.body: list[Op] = []
        self.types: dict[str, Type] = {r.name: bare(r.type) for r in module.resources.values()}
        self.types.update((arg.name, arg.type) for arg in self.func.args)
        self.lies: dict[str, Placements] = dict(found.kept[index])
        self.called: dict[tuple[str, Placements], str] = {}
        self.receives = [(c, cut) for c, cut in enumerate(cuts) if cut.target == index]
        self.sends: dict[str, list[tuple[int, Cut]]] = {}
        for c, cut in enumerate(cuts):
            if cut.source == index:
                self.sends.setdefault(cut.tensor.name, []).append((c, cut))

    def program(self) -> Stage:
        """The stage, under a name by its number."""
        own = [i for i, stages in enumerate(self.found.members) if self.index in stages]
        results = self.results()
        for channel, cut in self.receives:
            self.receive(channel, cut)
        outputs = {value.name for value in results if value.name in self.first}
        for i in own:
            self.op(self.func.ops[i], self.found.wants[i], outputs)
        used = {name for i in own for name in reads(self.func.ops[i])} | {value.name for value in results}
        args = tuple(arg for arg in self.func.args if arg.name in used)
        return Stage(f"@stage{self.index}", self.index, self.mesh.devices, args, results, tuple(self.body), mesh=self.mesh.name)

    def results(self) -> tuple[Value, ...]:
        """Outputs of the model that leave here: made here and in no stage before, or, from the first stage, handed on."""
        found = []
        for value in self.func.results:
            name = value.name
            if self.first.get(name) == self.index:
                found.append(Value(name, laid(bare(value.type), self.mesh, self.found.outputs[name])))
            elif self.index == 0 and name not in self.first:
                found.append(Value(name, laid(bare(value.type), self.mesh, self.lies.get(name, self.whole))))
        return tuple(found)

    def receive(self, channel: int, cut: Cut) -> None:
        value, peer = cut.tensor, self.found.meshes[cut.source]
        lies = self.found.lies[value.name] if same_shape(peer, self.mesh) else self.whole
        self.types[value.name], self.lies[value.name] = bare(value.type), lies
        result = Value(value.name, laid(bare(value.type), self.mesh, lies))
        self.body.append(Op("comm.recv", (), (result,), attributes(channel=channel, peer=cut.source)))

    def op(self, op: Op, wants: tuple[Placements, ...] | None, outputs: set[str]) -> None:
        """The op behind what brings its operands to it, then what its results leave by."""
        if op.regions:
            brought = {name: self.bring(name, self.whole, op) for name in reads(op)}
            here = renamed((op,), {name: new for name, new in brought.items() if new != name})[0]
        else:
            operands = [
                self.bring(name, self.whole if wants is None else wants[i], op) if name else name
                for i, name in enumerate(op.operands)
            ]
            here = op if tuple(operands) == op.operands else replace(op, operands=tuple(operands))
        results = tuple([self.made(value, outputs) for value in op.results])
        self.body.append(here if results == op.results else replace(here, results=results))
        for value in op.results:
            if value.name:
                self.leave(value.name, outputs, op)

    def made(self, value: Value, outputs: set[str]) -> Value:
        """A result as its op makes it here."""
        name, type_ = value.name, bare(value.type)
        lies = self.found.lies.get(name, self.whole)
        if name:
            self.types[name], self.lies[name] = type_, lies
            if name in outputs and self.found.outputs[name] != lies:
                value = Value(self.fresh(name, 0), value.type)
            self.called[name, lies] = value.name
        return value

    def leave(self, name: str, outputs: set[str], op: Op) -> None:
        """A value as an output of the model and for other stages."""
        if name in outputs:
            self.bring(name, self.found.outputs[name], op, final=name)
        for channel, cut in self.sends.get(name, ()):
            as_it_lies = same_shape(self.found.meshes[cut.target], self.mesh)
            sent = self.bring(name, self.lies[name] if as_it_lies else self.whole, op)
            fields = attributes(channel=channel, peer=cut.target)
            self.body.append(Op("comm.send", (sent,), attributes=fields, location=op.location))

    # -- conversions ---------------------------------------------------------------------------------------------------

    def bring(self, name: str, target: Placements, op: Op, final: str = "") -> str:
        """What ``name`` is called in layout ``target``; writes the ops that make it so where nothing has yet, for
        ``op``. ``final``: the name that it then has."""
        source = self.lies.get(name, self.whole)
        found = self.called.get((name, target))
        if found is not None:
            return found
        if source == target:
            return name
        current = self.called.get((name, source), name)
        try:
            way = self.ways.way(self.types[name], source, target)
        except KeyError as error:
            raise InvalidInput(f"{name} cannot be converted: {error.args[0]}", where=describe(op)) from error
        lies = source
        for number, step in enumerate(way, 1):
            last = number == len(way)
            result = final if final and last else self.fresh(name)
            self.body.append(self.step(current, result, self.types[name], lies, step, op.location))
            current, lies = result, step.after
        self.called[name, target] = current
        return current

    def step(self, operand: str, result: str, type_: Type, lies: Placements, step: Step, location: Location) -> Op:
        """One op of a chain."""
        before, after = lies[step.axis], step.after[step.axis]
        fields: dict[str, Attribute] = {
            "mesh": Attribute(AttrKind.SYMBOL, self.mesh.name),
            "axis": Attribute(AttrKind.STRING, self.mesh.axes[step.axis][0]),
        }
        if step.kind not in ("slice", "term"):
            fields["channel"] = Attribute(AttrKind.INT, self.channel)
            self.channel += 1
        match before, after:
            case Shard(one), Shard(other):
                fields["split_dim"] = Attribute(AttrKind.INT, other)
                fields["concat_dim"] = Attribute(AttrKind.INT, one)
            case (Shard(dim), _) | (_, Shard(dim)):
                fields["dim"] = Attribute(AttrKind.INT, dim)
        for placement in (before, after):
            if isinstance(placement, Partial):
                fields["reduction"] = Attribute(AttrKind.STRING, placement.reduction)
        value = Value(result, laid(type_, self.mesh, step.after))
        return Op(f"comm.{step.kind}", (operand,), (value,), tuple(sorted(fields.items())), location=location)

    def fresh(self, name: str, number: int = 1) -> str:
        """``%name.k``, the first from ``number`` on that nothing is called."""
        while f"%{name[1:]}.{number}" in self.names:
            number += 1
        found = f"%{name[1:]}.{number}"
        self.names.add(found)
        return found


__all__ = ["lower_sharded"]
