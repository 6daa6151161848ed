"""What one member of a stage's mesh runs, as a ``Program`` of its device alone.

Ops with a strategy run on the member's part (``ir.layout_rules.localise``), ops without one as they are. ``comm.slice`` becomes
a Slice with constants; ``comm.term`` the value itself, or zeros on the members that hold none of a sum. Collectives stay, with
the local type of what the member gets. Parts come from layouts, local types of ops from the cuts of their factors; both must
agree, and do, since lowering refuses strategies that cut elsewhere than their layouts say.
"""

from __future__ import annotations

import math

from ir.core.attributes import Attribute, Attributes, AttrKind, Dense, attributes
from ir.core.facets import (
    DECISIONS,
    SEPARATOR,
    WHOLE,
    BackwardTime,
    Cost,
    Measured,
    ShardRule,
    Time,
    Transfer,
    in_phase,
    phase_of,
)
from ir.core.module import Mesh, Module, Program, Resource, Stage
from ir.core.names import unique
from ir.core.ops import Op, Value
from ir.core.shares import Shares, nested_cut
from ir.core.types import DType, Replicate, TensorType, Type, without_layout
from ir.layout_rules import Cut, LayoutRule, Surroundings, localise
from ir.ops.boxes import Box, Placements, axis_number, box, coordinates, placements_of, shape_of
from ir.ops.opdefs import RESHARD, RESHARD_STEPS, module_opsets
from ir.text.dense import dense_data
from passes.model.graph import reads, renamed
from passes.model.spmd.decided import bare_results
from passes.model.spmd.reshard_ops import laid

_OF_WHOLE = (Cost, Measured, Time, BackwardTime, Transfer, *DECISIONS)
"""Facets that speak of the whole op, or of what was decided for it."""
_FILLS_SHAPES = 9
"""The opset from which there is a ConstantOfShape."""
_SLICE_TAKES_INPUTS = 10
"""The opset from which a Slice's starts and ends are operands."""


def member_programs(module: Module, stage: Stage) -> tuple[Program, ...]:
    """A program for each member of ``stage``, in order; one for all replicas of a stage without a mesh."""
    mesh = next((mesh for mesh in module.of_type(Mesh) if mesh.name == stage.mesh), Mesh("", (), ()))
    known = _Known(module, stage, mesh)
    return tuple([_Member(known, member).program() for member in range(max(1, len(mesh.devices)))])


class _Known:
    """What the members of a stage share: types of whole tensors, layouts, rules."""

    def __init__(self, module: Module, stage: Stage, mesh: Mesh) -> None:
        self.stage, self.mesh = stage, mesh
        self.opset = module_opsets(module).get("onnx", _SLICE_TAKES_INPUTS)
        resources = {resource.name: resource for resource in module.of_type(Resource)}
        named = [name for op in stage.ops for name in reads(op)] + [value.name for value in stage.results]
        self.resources = list(dict.fromkeys(name for name in named if name in resources))
        around = Surroundings((resources[name] for name in self.resources), module_opsets(module))
        self.types = around.types
        self.types.update((name, without_layout(resources[name].type)) for name in self.resources)
        self.types.update((arg.name, arg.type) for arg in stage.args)
        whole: Placements = (Replicate(),) * len(mesh.axes)
        self.lies: dict[str, Placements] = {arg.name: whole for arg in stage.args}
        self.lies.update((name, placements_of(resources[name].type, mesh)) for name in self.resources)
        kept = [op for op in stage.ops if op.name == RESHARD]  # what it reads of a weight is how it keeps it
        self.lies.update((op.operands[0], placements_of(op.results[0].type, mesh)) for op in kept)
        names = {op.results[0].name: op.operands[0] for op in kept}
        self.ops = renamed((op for op in stage.ops if op.name != RESHARD), names) if kept else stage.ops
        self.names = {value.name for value in stage.args} | {value.name for op in self.ops for value in op.results}
        self.parts = self.parts_of_resources()
        self.rules: list[tuple[LayoutRule | None, tuple[str, ...]]] = []
        self.numbers = around.numbers
        for op in self.ops:
            self.see(op, around)

    def parts_of_resources(self) -> dict[str, Op]:
        """Of each resource of which a member holds a part, the op that says which: its result is called like the resource."""
        found = {}
        for name in self.resources:
            of = laid(self.types[name], self.mesh, self.lies[name])
            if of != self.types[name]:
                called = unique(f"%{name[1:]}", self.names)
                self.names.add(called)
                found[name] = Op("comm.part", (name,), (Value(called, of),), attributes(of=of))
        return found

    def see(self, op: Op, around: Surroundings) -> None:
        facet = op.facet(ShardRule)
        names = tuple(facet.rule.split(SEPARATOR)) if facet and self.mesh.axes else ()
        split = any(name != WHOLE for name in names)
        shown = bare_results(op)
        self.rules.append((around.rule(shown) if split else None, names))
        around.see(shown)
        self.lies.update((value.name, placements_of(value.type, self.mesh)) for value in op.results)
        if op.dialect == "comm" and op.operands and op.results and op.operands[0] in self.numbers:
            self.numbers[op.results[0].name] = self.numbers[op.operands[0]]  # the whole tensor's, as rules read them


class _Member:
    """One member's program while it is put together."""

    def __init__(self, known: _Known, member: int) -> None:
        self.known, self.member, self.mesh = known, member, known.mesh
        self.places = coordinates(known.mesh, member)
        self.boxes: dict[tuple[Type, Placements], Box] = {}
        self.names = set(known.names)
        self.ops: list[Op] = []

    def program(self) -> Program:
        stage = self.known.stage
        for op, (rule, names) in zip(self.known.ops, self.known.rules, strict=True):
            if op.name in ("comm.recv", "comm.send"):
                self.border(op)
            elif op.dialect == "comm":
                self.convert(op)
            else:
                self.op(op, rule, names)
        parts = []
        for name, part in self.known.parts.items():
            whole = self.known.types[name]
            local = _sized(whole, self.box(whole, self.known.lies[name]))
            parts.append(Op(part.name, part.operands, (Value(part.results[0].name, local),), part.attributes))
        if parts:
            called = {name: part.results[0].name for name, part in self.known.parts.items()}
            self.ops = [*parts, *renamed(self.ops, called)]
        devices = (self.mesh.devices[self.member],) if self.mesh.axes else stage.devices
        return Program("", stage.name, devices, stage.args, stage.results, tuple(self.ops))

    # -- parts ---------------------------------------------------------------------------------------------------------

    def box(self, whole: Type, lies: Placements) -> Box:
        found = self.boxes.get((whole, lies))
        if found is None:
            found = self.boxes[whole, lies] = box(whole, lies, self.mesh, self.member)
        return found

    def local(self, value: Value) -> Value:
        """A value, by its type the whole one, with its local type."""
        whole = without_layout(value.type)
        return Value(value.name, _sized(whole, self.box(whole, self.known.lies[value.name])))

    def border(self, op: Op) -> None:
        """A value that arrives or leaves, with the type of the whole one where that is another."""
        name = op.operands[0] if op.operands else op.results[0].name
        of = laid(self.known.types[name], self.mesh, self.known.lies[name])
        told = (
            attributes(**{key: op.get(key) for key, _ in op.attributes}, of=of) if of != without_layout(of) else op.attributes
        )
        results = tuple([self.local(value) for value in op.results])
        self.ops.append(Op(op.name, op.operands, results, told, facets=op.facets, location=op.location))

    # -- ops -----------------------------------------------------------------------------------------------------------

    def op(self, op: Op, rule: LayoutRule | None, names: tuple[str, ...]) -> None:
        """An op on this member's parts."""
        cuts = self.cuts(rule, names)
        if cuts:
            types = [self.known.types.get(name) if name else None for name in op.operands]
            constants = [self.known.numbers.get(name) for name in op.operands]
            made = localise(bare_results(op), types, cuts, constants)
            own = {value.name for value in op.results}
            added = [value.name for one in made for value in one.results if value.name not in own]
            taken = {name: unique(name, self.names) for name in added if name in self.names}
            self.names.update(added)
            self.ops += [_undecided(one) for one in (renamed(made, taken) if taken else made)]
        else:
            results = tuple([self.local(value) if value.name else value for value in op.results])
            self.ops.append(_undecided(op, results))

    def cuts(self, rule: LayoutRule | None, names: tuple[str, ...]) -> list[Cut]:
        """This member's range of each factor that a strategy shards."""
        splits: dict[str, list[tuple[Shares, int]]] = {}
        if rule is not None:
            factors = {factor.name for factor in rule.shardable}
            for name, shares, place in zip(names, self.mesh.cuts, self.places, strict=True):
                if name in factors:
                    splits.setdefault(name, []).append((shares, place))
        found = []
        for name, places in splits.items():
            assert rule is not None
            factor = rule.factor(name)
            found.append(Cut(factor, *nested_cut(factor.size, places)))
        return found

    # -- conversions ---------------------------------------------------------------------------------------------------

    def convert(self, op: Op) -> None:
        """A conversion: a local op, or a collective with this member's side of it."""
        if op.get("mesh") != self.mesh.name:  # between the replicas of a stage
            self.ops.append(_undecided(op))
            return
        axis = axis_number(self.mesh, op.get("axis"))
        result = self.local(op.results[0])
        step = RESHARD_STEPS[op.name.removeprefix("comm.")]
        if step.moves:
            self.ops.append(_undecided(op, (result,)))
        elif step.split:
            self.slice(op, result)
        else:
            self.term(op, result, zero=op.get("reduction") == "sum" and self.places[axis] > 0)

    def slice(self, op: Op, result: Value) -> None:
        """The range of the part within what this member held before."""
        operand, dim = op.operands[0], op.get("dim")
        before = self.box(self.known.types[operand], self.known.lies[operand])[dim]
        start, length = self.box(without_layout(op.results[0].type), self.known.lies[result.name])[dim]
        first = start - before[0]
        if self.known.opset < _SLICE_TAKES_INPUTS:
            fields = attributes(axes=[dim], starts=[first], ends=[first + length])
            self.put(op, "onnx.Slice", (operand,), result, fields)
            return
        names = [
            self.integers(f"{result.name}/{what}", (number,), op)
            for what, number in (("start", first), ("end", first + length), ("axis", dim))
        ]
        self.put(op, "onnx.Slice", (operand, *names), result)

    def term(self, op: Op, result: Value, zero: bool) -> None:
        if not zero:
            self.put(op, "onnx.Identity", op.operands, result)
            return
        assert isinstance(result.type, TensorType)
        dtype, lengths = result.type.dtype, shape_of(result.type) or ()
        nothing = "0.0" if dtype.is_float else "0"
        if self.known.opset < _FILLS_SHAPES:
            full = Dense(TensorType(dtype, lengths), dense_data(dtype, [nothing] * math.prod(lengths)))
            self.put(op, "onnx.Constant", (), result, _tensor(full))
            return
        shape = self.integers(f"{result.name}/shape", lengths, op)
        value = Dense(TensorType(dtype, (1,)), dense_data(dtype, [nothing]))
        self.put(op, "onnx.ConstantOfShape", (shape,), result, _tensor(value))

    def put(self, of: Op, name: str, operands: tuple[str, ...], result: Value, fields: Attributes = ()) -> None:
        """Appends an op that stands for ``of``, in its phase."""
        self.ops.append(Op(name, operands, (result,), fields, facets=in_phase(phase_of(of.facets)), location=of.location))

    def integers(self, name: str, values: tuple[int, ...], op: Op) -> str:
        """A constant of the program; what it is called."""
        name = unique(name, self.names)
        type_ = TensorType(DType.I64, (len(values),))
        value = Dense(type_, dense_data(DType.I64, list(map(str, values))))
        self.put(op, "onnx.Constant", (), Value(name, type_), _tensor(value))
        return name


def _sized(whole: Type, here: Box) -> Type:
    """The type of a part."""
    if not isinstance(whole, TensorType) or not here:
        return whole
    shape = tuple([length for _, length in here])
    return whole if shape == whole.shape else TensorType(whole.dtype, shape, None, whole.sparse)


def _undecided(op: Op, results: tuple[Value, ...] | None = None) -> Op:
    """The op, with other results if given, without facets that speak of the whole op or of stages and strategies."""
    facets = tuple([facet for facet in op.facets if not isinstance(facet, _OF_WHOLE)])
    made = op.results if results is None else results
    if made == op.results and facets == op.facets:
        return op
    return Op(op.name, op.operands, made, op.attributes, op.regions, facets, op.location)


def _tensor(value: Dense) -> tuple[tuple[str, Attribute], ...]:
    return (("value", Attribute(AttrKind.TENSOR, value)),)


__all__ = ["member_programs"]
