"""A sharded plan told: what each layer costs, what one block does op by op, and what other plans would cost.

All is read from a module with the decisions of ``shard`` in it (``written`` says how they stand there) and priced anew by
``price``; nothing is remembered from the search. A *layer* is a copy of a repeated part of the function, named after the scope
that its ops share, or what lies between two of these, by scope.

A collective is told at the op that makes the value it works on; one on a weight at the first op that reads the weight. So a sum
that a layer leaves to the next is the layer's own. Bytes are those of the formulas of ``mesh``: the tensor as the other axes
leave it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

from ir.facets import SEPARATOR, WHOLE, ShardRule, StageSet
from ir.layout_rules import rules
from ir.module import Func, Mesh, Module, Plan, PlanStage
from ir.ops import Op
from ir.topology import Topology
from ir.types import Replicate, TensorType, Type
from passes.model.folding import Folding, folding
from passes.model.graph import reads
from passes.model.network import network
from passes.model.spmd.cross_mesh import parties
from passes.model.spmd.footprint import footprint
from passes.model.spmd.layouts import Placements
from passes.model.spmd.mesh import AXIS_NAMES, DeviceMesh, mesh_of, mesh_over
from passes.model.spmd.price import Bill, Collective, Decisions, price
from passes.model.spmd.reshard_ops import bare_value, keeps, without_reshards
from passes.model.spmd.staged import Staged
from passes.model.spmd.synced import synced_in
from passes.model.spmd.undecided import undecided
from passes.shard.mesh.named import STRATEGIES, UnfitError, named_plan
from passes.shard.plan.decide import decisions_of
from passes.shard.problem.build import build
from passes.shard.solver.search import NoPlanError, solve

_NUMBERED = re.compile(r"(?:^|[./])(\d+)(?=[./]|$)")
"""A part of a scope that is a number: layers are called by what stands up to it."""


class _Options(TypedDict):
    """Of ``build`` and ``price``."""

    uneven: bool
    microbatches: int


@dataclass(frozen=True, slots=True)
class OpRow:
    """One op: its strategy's name per axis, the layouts in which it reads and makes values, how its weights are kept, seconds
    of compute, and what is told at it of collectives."""

    op: Op
    strategies: tuple[str, ...]
    operands: tuple[tuple[str, Placements], ...]
    results: tuple[tuple[str, Placements], ...]
    kept: tuple[tuple[str, Placements], ...]
    compute: float
    collectives: tuple[Collective, ...]


@dataclass(frozen=True, slots=True)
class Layer:
    """Ops of one layer on one stage, in order. ``block``: the number of the repeated part that it is a copy of, -1 for none."""

    name: str
    stage: int
    block: int
    rows: tuple[OpRow, ...]

    @property
    def compute(self) -> float:
        return sum(row.compute for row in self.rows)

    @property
    def collectives(self) -> tuple[Collective, ...]:
        return tuple(one for row in self.rows for one in row.collectives)

    @property
    def communication(self) -> float:
        return sum(one.seconds for one in self.collectives)

    def totals(self) -> dict[str, tuple[int, float, float]]:
        """By kind of collective: how many, bytes, seconds."""
        found: dict[str, tuple[int, float, float]] = {}
        for one in self.collectives:
            count, size, seconds = found.get(one.kind, (0, 0.0, 0.0))
            found[one.kind] = (count + 1, size + one.size, seconds + one.seconds)
        return dict(sorted(found.items()))


@dataclass(frozen=True, slots=True)
class StagePart:
    """A stage as a function of its own, with what was decided for it."""

    index: int
    func: Func
    mesh: DeviceMesh
    decisions: Decisions


@dataclass(frozen=True, slots=True)
class Alternative:
    """A plan to compare with: seconds per sample or training step, of them compute and collectives, bytes per device, weights
    and activations, and whether these fit; ``missing``: why there is none."""

    name: str
    seconds: float = 0.0
    compute: float = 0.0
    communication: float = 0.0
    memory: float = 0.0
    fits: bool = True
    missing: str = ""


def layers(module: Module) -> tuple[Layer, ...]:
    """The layers of a sharded module, stage by stage, in order; in training in stages, of one microbatch. Raises ValueError
    where the module has no sharded plan."""
    plan, options = _plan(module), _options(module)
    bare = undecided(module, copies=True)
    found = folding(bare.entry, bare)
    training = plan.minimises.trains
    told: list[Layer] = []
    for part in stage_parts(module):
        bill = price(bare, part.func, part.mesh, part.decisions, training=training, **options)
        rows = _rows(bare, part, bill)
        held = {op.id for op in part.func.ops}
        for name, block, ops in _groups(bare.entry, found):
            mine = tuple(rows[op.id] for op in ops if op.id in held)
            if mine:
                told.append(Layer(name, part.index, block, mine))
    return tuple(told)


def typical_block(told: Sequence[Layer]) -> Layer | None:
    """The layer to show in full: of the repeated part that takes most time the middle copy, of those that no stage ends in;
    None where nothing repeats."""
    seconds: Counter[int] = Counter()
    for layer in told:
        if layer.block >= 0:
            seconds[layer.block] += int(1e12 * (layer.compute + layer.communication))
    if not seconds:
        return None
    block = max(seconds, key=lambda number: (seconds[number], -number))
    copies = [layer for layer in told if layer.block == block]
    whole = max(len(layer.rows) for layer in copies)
    copies = [layer for layer in copies if len(layer.rows) == whole]
    return copies[len(copies) // 2]


def alternatives(module: Module, *, time_limit: float = 10.0) -> tuple[Alternative, ...]:
    """Plans by name on the mesh of a sharded module of one stage, else on one axis of all its devices; without regard to
    memory, which each tells. Of a module whose plan is one by name, the one found is among them (``found``); of one whose
    members get unequal parts, the one found for equal parts (``equal``). Seconds are those of the plan's objective, per step
    where its steps have microbatches."""
    plan, options = _plan(module), _options(module)
    topology = module.first(Topology)
    assert topology is not None
    bare = undecided(module)
    net = network(topology)
    meshes = [part.mesh for part in stage_parts(module)]
    mesh = meshes[0] if len(meshes) == 1 else mesh_of(topology, net, (sum(len(mesh.devices) for mesh in meshes),))
    training = plan.minimises.trains
    memory = next((int(str(a.value)) for key, a in module.entry.attributes if key == "shard.memory"), 0)
    mesh = mesh.limited(memory)
    repeats = folding(bare.entry, bare)
    given = build(bare, bare.entry, mesh, repeats, training=training, **options)
    inputs = dict.fromkeys(STRATEGIES, given)
    if mesh.shares:
        alike = mesh_over(topology, net, Mesh("", tuple((axis.name, axis.size) for axis in mesh.axes), mesh.devices))
        alike = alike.limited(memory)
        inputs = {"equal": build(bare, bare.entry, alike, repeats, training=training, **options), **inputs}
    if any(key == "strategy" for key, _ in plan.certificate):
        inputs = {"found": given, **inputs}
    told = []
    for name, here in inputs.items():
        try:
            if name in STRATEGIES:
                other = named_plan(bare, here, name, uneven=options["uneven"], seconds=time_limit)
            else:
                other = solve(here.problem, seconds=time_limit)
        except (UnfitError, NoPlanError) as error:
            told.append(Alternative(name, missing=str(error)))
            continue
        decisions = decisions_of(here, other.choices)
        bill = price(bare, bare.entry, here.mesh, decisions, training=training, **options)
        types = {name: resource.type for name, resource in bare.resources.items()}
        needs = footprint(bare.entry, types, Staged(tuple(range(len(bare.entry.ops))), here.mesh, decisions, bill)).total
        fits = mesh.memory is None or needs <= mesh.memory
        times = options["microbatches"]
        spent = (times * bill.overlapped, times * bill.compute, times * (bill.communication - bill.hidden))
        told.append(Alternative(name, *spent, memory=needs, fits=fits))
    return tuple(told)


# -- what a module says ------------------------------------------------------------------------------------------------


def stage_parts(module: Module) -> Iterator[StagePart]:
    """Each stage of a sharded module, without layouts in its types, and its decisions."""
    reader = _Stages(module)
    for stage in _plan(module).stages:
        yield reader.part(stage)


class _Stages:
    """Stages of a module, read one by one."""

    def __init__(self, module: Module) -> None:
        self.module, self.plan, self.told = module, _plan(module), without_reshards(module.entry)
        self.func = self.told.func
        self.meshes = {mesh.name: mesh for mesh in module.of_type(Mesh)}
        self.resources = module.resources
        self.sides = parties(self.plan, self.meshes)
        self.bare = {op.id: op for op in undecided(module, copies=True).entry.ops}
        self.values = {value.name: value for op in self.func.ops for value in op.results}
        self.home: dict[str, int] = {}
        self.readers: dict[str, set[int]] = {}
        for op in self.func.ops:
            index = _stage_of(op)
            self.home.update((value.name, index) for value in op.results)
            for name in reads(op):
                self.readers.setdefault(name, set()).add(index)

    def part(self, stage: PlanStage) -> StagePart:
        ops = [op for op in self.func.ops if _stage_of(op) == stage.index]
        named = self.meshes.get(stage.mesh)
        mesh = self.mesh(stage)
        whole: Placements = (Replicate(),) * len(mesh.axes)
        wanted = dict.fromkeys(name for op in ops for name in reads(op))
        entering = {name: whole for name in wanted if self.home.get(name, stage.index) != stage.index}
        for name in entering:
            if self.sides[self.home[name]].matches(self.sides[stage.index]):
                entering[name] = self.lies(name, whole)
        given = {arg.name: arg for arg in self.func.args} | {name: bare_value(self.values[name]) for name in entering}
        part = replace(
            self.func,
            args=tuple(value for name, value in given.items() if name in wanted),
            results=tuple(bare_value(value) for value in self.func.results if self.home.get(value.name) == stage.index),
            ops=tuple(self.bare[op.id] for op in ops),
            attributes=(),
        )
        strategies = {}
        for op in ops:
            facet = op.facet(ShardRule)
            strategies[op.id] = tuple(facet.rule.split(SEPARATOR)) if facet else (WHOLE,) * len(mesh.axes)
        held = [name for name in wanted if name in self.resources]
        types = {name: resource.type for name, resource in self.resources.items()}
        kept = keeps(self.told, types, stage.index, named) if named else dict.fromkeys(held, whole)
        mine = [value.name for op in ops for value in op.results]
        leaving = {}
        for name in mine:
            others = self.readers.get(name, set()) - {stage.index}
            if others:
                leaving[name] = self.lies(name, whole) if all(self.alike(stage.index, o) for o in others) else whole
        learning = frozenset(stage.learning)
        synced = synced_in(self.resources, wanted)
        decisions = Decisions(strategies, kept, self.outputs(part, whole), entering, leaving, learning, synced)
        return StagePart(stage.index, part, mesh, decisions)

    def mesh(self, stage: PlanStage) -> DeviceMesh:
        topology = self.module.first(Topology)
        assert topology is not None
        named = self.meshes.get(stage.mesh) or Mesh("", ((AXIS_NAMES[0], 1),), stage.devices[:1])
        return mesh_over(topology, network(topology), named)

    def alike(self, one: int, other: int) -> bool:
        return one == other or self.sides[one].matches(self.sides[other])

    def lies(self, name: str, whole: Placements) -> Placements:
        """How a value is made."""
        return self.placed(self.values[name].type, whole)

    def placed(self, type_: Type, whole: Placements) -> Placements:
        return type_.layout.placements if isinstance(type_, TensorType) and type_.layout is not None else whole

    def outputs(self, part: Func, whole: Placements) -> dict[str, Placements]:
        """How results of the model leave."""
        types = {value.name: value.type for value in self.func.results} | dict(self.told.outputs)
        return {value.name: self.placed(types[value.name], whole) for value in part.results}


def _options(module: Module) -> _Options:
    """What the plan was priced under."""
    uneven = any(key == "shard.uneven" and attribute.value for key, attribute in module.entry.attributes)
    return {"uneven": uneven, "microbatches": _plan(module).microbatches}


def _stage_of(op: Op) -> int:
    return op.facet(StageSet, StageSet((0,))).stages[0]


def _plan(module: Module) -> Plan:
    plan = module.first(Plan)
    if plan is None or not all(stage.devices for stage in plan.stages):
        raise ValueError("the module has no sharded plan")
    return plan


# -- rows and groups ---------------------------------------------------------------------------------------------------


def _rows(module: Module, part: StagePart, bill: Bill) -> dict[str, OpRow]:
    """A row for each op of a stage."""
    count = len(part.mesh.axes)
    whole: Placements = (Replicate(),) * count
    first: dict[str, str] = {}
    for op in part.func.ops:
        for name in reads(op):
            if name in bill.lies:
                first.setdefault(name, op.id)
        first.update((value.name, op.id) for value in op.results)
    # A value of another stage is converted where it is read first.
    told: dict[str, list[Collective]] = {}
    for one in bill.collectives:
        told.setdefault(first[one.value], []).append(one)
    rows = {}
    for op, rule in rules(module, part.func):
        names = part.decisions.strategies[op.id]
        operands: list[Placements] = [whole] * len(op.operands)
        results: list[Placements] = [whole] * len(op.results)
        if rule is not None:
            taken = [
                next(s for s in rule.strategies(axis.size) if s.name == name)
                for name, axis in zip(names, part.mesh.axes, strict=True)
            ]
            operands = [tuple(s.operands[i] for s in taken) for i in range(len(op.operands))]
            results = [tuple(s.results[i] for s in taken) for i in range(len(op.results))]
        rows[op.id] = OpRow(
            op,
            names,
            tuple(zip(op.operands, operands, strict=True)),
            tuple((value.name, lies) for value, lies in zip(op.results, results, strict=True)),
            tuple((name, bill.lies[name]) for name in op.operands if name in part.decisions.kept and name in bill.lies),
            bill.work.get(op.id, 0.0),
            tuple(told.get(op.id, ())),
        )
    return rows


def _groups(func: Func, found: Folding) -> list[tuple[str, int, list[Op]]]:
    """The ops of a function by layer: name, block (-1: none), ops in order. Layers are in the order of their first ops."""
    of: dict[int, tuple[int, int]] = {}
    for number, block in enumerate(found.blocks):
        for copy in sorted({copy for chain in block.chains for copy in chain.copies}):
            if block.copies[copy].parent is None:
                of.update(dict.fromkeys(block.copies[copy].ops, (number, copy)))
    members: dict[tuple[int, int, str], list[Op]] = {}
    for position, op in enumerate(func.ops):
        key = (*of[position], "") if position in of else (-1, 0, _head(op))
        members.setdefault(key, []).append(op)
    groups = []
    for (number, copy, head), ops in members.items():
        common = head or Counter(map(_layer, ops)).most_common(1)[0][0]
        groups.append((common or f"block {number}, copy {copy}", number, ops))
    return groups


def _layer(op: Op) -> str:
    """The scope up to its first number, empty where it has none."""
    scope = op.location.scope or op.location.node.strip("/").replace("/", ".")
    match = _NUMBERED.search(scope)
    return scope[: match.end()] if match else ""


def _head(op: Op) -> str:
    """The name of an op that is in no copy: its layer, or the first part of its scope."""
    scope = op.location.scope or op.location.node.strip("/").rpartition("/")[0].replace("/", ".")
    return _layer(op) or scope.split(".")[0] or "model"


__all__ = ["Alternative", "Layer", "OpRow", "StagePart", "alternatives", "layers", "stage_parts", "typical_block"]
