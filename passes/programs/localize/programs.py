"""The programs of a stage: one for all members of its mesh that run the same text.

What members run for each op is its kind (``kinds``). Members whose texts are alike in all kinds share a program, in which each
op of the stage is written with its own names. Ops with a strategy run on the member's part (``ir.layout_rules.localise``), ops
without one as they are. ``comm.slice`` becomes a Slice with constants; ``comm.term`` the value itself, or zeros on the members
that hold none of a sum. Collectives stay, with the local type of what the member gets. Parts come from layouts, local types of
ops from the cuts of their factors; both must agree, and do, since lowering refuses strategies that cut elsewhere than their
layouts say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ir.core.attributes import attributes
from ir.core.facets import DECISIONS, SEPARATOR, WHOLE, BackwardTime, Cost, Measured, ShardRule, Time, Transfer
from ir.core.module import Mesh, Module, Program, Resource, Stage
from ir.core.names import unique
from ir.core.ops import Op, Value
from ir.core.types import Replicate, without_layout
from ir.layout_rules import Surroundings
from ir.ops.boxes import Placements, placements_of
from ir.ops.opdefs import RESHARD, RESHARD_STEPS, module_opsets
from passes.graph.graph import reads, renamed
from passes.meshes.decided import bare_results
from passes.meshes.reshard_ops import laid
from passes.programs.localize.kinds import Kind, Kinds

_OF_WHOLE = (Cost, Measured, Time, BackwardTime, Transfer, *DECISIONS)
"""Facets that speak of the whole op, or of what was decided for it."""


def members_of(module: Module, stage: Stage) -> Mesh:
    """The mesh of ``stage``; one without axes, whose replicas run one program, for a stage without a mesh."""
    return next((mesh for mesh in module.of_type(Mesh) if mesh.name == stage.mesh), Mesh("", (), ()))


def stage_programs(module: Module, stage: Stage) -> tuple[Program, ...]:
    """The programs of ``stage``, in the order of the first member of each; one for all replicas of a stage without a mesh."""
    return tuple(_Stage(module, stage, members_of(module, stage)).programs())


class _Stage:
    """A stage while its programs are written. ``types``: of whole tensors; ``lies``: the placements of each value."""

    def __init__(self, module: Module, stage: Stage, mesh: Mesh) -> None:
        self.stage, self.mesh = stage, mesh
        self.kinds = Kinds(mesh, module_opsets(module).get("onnx"))
        resources = {resource.name: resource for resource in module.of_type(Resource)}
        named = [name for op in stage.ops for name in reads(op)] + [value.name for value in stage.results]
        self.resources = list(dict.fromkeys(name for name in named if name in resources))
        self.around = Surroundings((resources[name] for name in self.resources), module_opsets(module))
        self.types, self.numbers = self.around.types, self.around.numbers
        self.types.update((name, without_layout(resources[name].type)) for name in self.resources)
        self.types.update((arg.name, arg.type) for arg in stage.args)
        whole: Placements = (Replicate(),) * len(mesh.axes)
        self.lies: dict[str, Placements] = {arg.name: whole for arg in stage.args}
        self.lies.update((name, placements_of(resources[name].type, mesh)) for name in self.resources)
        kept = [op for op in stage.ops if op.name == RESHARD]  # what it reads of a weight is how it keeps it
        self.lies.update((op.operands[0], placements_of(op.results[0].type, mesh)) for op in kept)
        names = {op.results[0].name: op.operands[0] for op in kept}
        ops = renamed((op for op in stage.ops if op.name != RESHARD), names) if kept else stage.ops
        self.names = {value.name for value in stage.args} | {value.name for op in ops for value in op.results}
        self.parts = self.parts_of_resources()
        self.lines = [self.line(op) for op in ops]

    def parts_of_resources(self) -> dict[str, tuple[Op, Kind]]:
        """Of each resource of which a member holds a part, the op that says which: its result is called like the resource."""
        found = {}
        for name in self.resources:
            whole = self.types[name]
            of = laid(whole, self.mesh, self.lies[name])
            if of != whole:
                called = unique(f"%{name[1:]}", self.names)
                op = Op("comm.part", (name,), (Value(called, of),), attributes(of=of))
                found[name] = op, self.kinds.kept(((whole, self.lies[name]),))
        return found

    # -- ops -----------------------------------------------------------------------------------------------------------

    def line(self, op: Op) -> tuple[Op, Kind]:
        """The next op of the stage as members run it, but for the types of its results, and its kind."""
        facet = op.facet(ShardRule)
        names = tuple(facet.rule.split(SEPARATOR)) if facet and self.mesh.axes else ()
        shown = bare_results(op)
        rule = self.around.rule(shown) if any(name != WHOLE for name in names) else None
        self.around.see(shown)
        self.lies.update((value.name, placements_of(value.type, self.mesh)) for value in op.results)
        if op.dialect == "comm" and op.operands and op.results and op.operands[0] in self.numbers:
            self.numbers[op.results[0].name] = self.numbers[op.operands[0]]  # the whole tensor's, as rules read them
        if op.name in ("comm.recv", "comm.send"):
            return self.border(op), self.kept(op)
        if op.dialect == "comm":
            return _undecided(op), self.conversion(op)
        if rule is None or {factor.name for factor in rule.shardable}.isdisjoint(names):
            return _undecided(op), self.kept(op)
        types = tuple([self.types.get(name) if name else None for name in op.operands])
        constants = tuple([self.numbers.get(name) for name in op.operands])
        own = _undecided(op)
        return own, self.kinds.shard(bare_results(own), types, constants, rule, names)

    def kept(self, op: Op) -> Kind:
        return self.kinds.kept(
            tuple(
                [
                    (without_layout(value.type), self.lies[value.name]) if value.name else (value.type, None)
                    for value in op.results
                ]
            )
        )

    def border(self, op: Op) -> Op:
        """A value that arrives or leaves, with the type of the whole one where that is another."""
        name = op.operands[0] if op.operands else op.results[0].name
        of = laid(self.types[name], self.mesh, self.lies[name])
        if of == without_layout(of):
            return op
        return replace(op, attributes=attributes(**{key: op.get(key) for key, _ in op.attributes}, of=of))

    def conversion(self, op: Op) -> Kind:
        """A conversion: a local op, or a collective with each member's side of it."""
        if op.get("mesh") != self.mesh.name:  # between the replicas of a stage
            return self.kinds.kept(tuple([(value.type, None) for value in op.results]))
        step = RESHARD_STEPS[op.name.removeprefix("comm.")]
        if step.moves:
            return self.kept(op)
        result = without_layout(op.results[0].type), self.lies[op.results[0].name]
        if step.split:
            return self.kinds.slice(op, (self.types[op.operands[0]], self.lies[op.operands[0]]), result)
        return self.kinds.term(op, result)

    # -- programs ------------------------------------------------------------------------------------------------------

    def programs(self) -> Iterator[Program]:
        every = dict.fromkeys([kind for _, kind in (*self.parts.values(), *self.lines)])
        alike: dict[tuple[int, ...], list[int]] = {}
        for member in self.kinds.members:
            alike.setdefault(tuple([kind.texts[member] for kind in every]), []).append(member)
        for members in alike.values():
            devices = tuple([self.mesh.devices[member] for member in members]) if self.mesh.axes else self.stage.devices
            ops = tuple(self.written(tuple(members)))
            yield Program("", self.stage.name, devices, self.stage.args, self.stage.results, ops)

    def written(self, members: tuple[int, ...]) -> Iterator[Op]:
        """The ops of these members, which run the same text."""
        taken = set(self.names)
        called = {name: op.results[0].name for name, (op, _) in self.parts.items()}
        for op, kind in self.parts.values():
            yield _with_types(op, kind, members[0])
        for op, kind in self.lines:
            if kind.types:
                own = _with_types(op, kind, members[0])
                yield own if called.keys().isdisjoint(reads(own)) else renamed([own], called)[0]
            else:
                yield from _with_names(op, kind.merged(members), called, taken)


def _with_types(op: Op, kind: Kind, member: int) -> Op:
    """An op of a kind with the results of a member."""
    types = kind.types[member]
    if all(value.type is type_ or value.type == type_ for value, type_ in zip(op.results, types, strict=True)):
        return op
    results = tuple([Value(value.name, type_) for value, type_ in zip(op.results, types, strict=True)])
    return Op(op.name, op.operands, results, op.attributes, op.regions, op.facets, op.location)


def _with_names(op: Op, ops: tuple[Op, ...], called: dict[str, str], taken: set[str]) -> Iterator[Op]:
    """What runs in place of ``op``: ``ops`` of its kind with its names and location. ``called``: parts of resources; ``taken``:
    names of the program, which then holds those of added values too."""
    names = {"": ""}
    names.update((f"%{place}", called.get(name, name)) for place, name in enumerate(op.operands))
    names.update((f"%.{place}", value.name) for place, value in enumerate(op.results))
    for one in ops:
        for value in one.results:
            if value.name not in names:
                base, slash, rest = value.name.partition("/")
                names[value.name] = unique(f"{names[base]}{slash}{rest}", taken)
    for one in ops:
        results = tuple([Value(names[value.name], value.type) for value in one.results])
        operands = tuple([names[name] for name in one.operands])
        yield Op(one.name, operands, results, one.attributes, one.regions, one.facets, op.location)


def _undecided(op: Op) -> Op:
    """The op without facets that speak of the whole op or of stages and strategies."""
    facets = tuple([facet for facet in op.facets if not isinstance(facet, _OF_WHOLE)])
    return op if facets == op.facets else Op(op.name, op.operands, op.results, op.attributes, op.regions, facets, op.location)
