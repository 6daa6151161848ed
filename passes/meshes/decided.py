"""What ``partition`` decided, read from the module and checked: meshes of stages, how values lie, what each op wants.

The strategies are the decision; layouts on results and the reshards before operands follow from them and must agree, since a
person may have edited any of them.

Invariants of what is returned: an op on a mesh has exactly one stage; the layout of every value can be had by its type (no part
of a dimension is empty, terms are of one reduction); the parts that a strategy cuts, between whole units of a factor, are the
parts that its layouts say.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ir.core.diagnostics import Diagnostic, InvalidInput
from ir.core.facets import SEPARATOR, WHOLE, ShardRule
from ir.core.module import Func, Mesh, Module, Plan, Resource
from ir.core.ops import Op
from ir.core.shares import Shares, none_empty, proportional
from ir.core.types import DType, Partial, Replicate, Shard, TensorType, Type, without_layout
from ir.layout_rules import LayoutRule, Strategy, Surroundings
from ir.ops.boxes import Placements, placements_of, reduction_of, shape_of
from ir.ops.opdefs import RESHARD, module_opsets
from passes.graph.faults import DecisionFault, StageNotPlanned, StageOnNoMesh, StrategiesWithoutPlan
from passes.graph.graph import describe, reads, stage_members
from passes.meshes.layouts import UNCUT
from passes.meshes.reshard_ops import (
    Decided,
    Plain,
    bare_value,
    keeps,
    laid,
    same_shape,
    with_reshards,
    without_reshards,
)


def decided(module: Module) -> Decided:
    """What a module says that has its reshards. Raises InvalidInput, with every place, where the decisions do not fit together:
    an operand has another layout than its op's strategy wants, a value crosses otherwise than the meshes allow."""
    plain = without_reshards(module.entry)
    meshes = meshes_of(module)
    types = {resource.name: resource.type for resource in module.of_type(Resource)}
    kept = [keeps(plain, types, index, mesh) for index, mesh in enumerate(meshes)]
    reader = _read(module, plain.func, meshes, kept)
    outputs = reader.outputs(plain)
    if not reader.problems:
        reader.flows(module.entry, types)
    return reader.result_of(outputs, kept)


def odd_reshard(module: Module) -> str:
    """The first op of the entry that would be another if its reshards were written anew; empty where all are as they would be.
    Raises InvalidInput as ``decided``."""
    found = decided(module)
    anew = with_reshards(module.replace(module.entry, found.func), found).entry
    both = zip(module.entry.ops, anew.ops, strict=False)
    told = (f"{describe(here)} is not {describe(there)}" for here, there in both if here != there)
    return next(told, "" if module.entry.ops == anew.ops else f"{len(module.entry.ops)} ops instead of {len(anew.ops)}")


def _read(module: Module, func: Func, meshes: Sequence[Mesh], kept: Sequence[Mapping[str, Placements]]) -> _Reader:
    reader = _Reader(module, func, meshes)
    for arg in func.args:
        if isinstance(arg.type, TensorType) and arg.type.layout is not None:
            reader.fault(f"argument {arg.name} has the layout {arg.type.layout}", func.name, "arguments arrive whole: drop it")
    for mesh, layouts in zip(meshes, kept, strict=True):
        for name, lies in layouts.items():
            reader.check(name, reader.around.types[name], lies, mesh, name, term=False)
    return reader


def meshes_of(module: Module) -> tuple[Mesh, ...]:
    """Of each stage that ops are in, as the plan says. Raises InvalidInput."""
    plan = module.first(Plan)
    if plan is None:
        raise InvalidInput(StrategiesWithoutPlan(module.entry.name), where=module.name)
    members = stage_members(module.entry)
    known = {mesh.name: mesh for mesh in module.of_type(Mesh)}
    planned = {stage.index: stage for stage in plan.stages}
    found, problems = [], []
    for index in range(1 + max((stage for stages in members for stage in stages), default=0)):
        stage = planned.get(index)
        if stage is None:
            problems.append(StageNotPlanned(plan.name, index).at(plan.name))
        elif stage.mesh and stage.mesh not in known:
            problems.append(StageOnNoMesh(index, stage.mesh).at(plan.name))
        elif stage.mesh:
            found.append(known[stage.mesh])
        else:
            found.append(Mesh("", (), stage.devices[:1]))
    if problems:
        raise InvalidInput(problems)
    return tuple(found)


class _Reader:
    """Reads the ops of ``func``, the entry without reshards, in order."""

    def __init__(self, module: Module, func: Func, meshes: Sequence[Mesh]) -> None:
        resources = list(module.of_type(Resource))
        self.around = Surroundings(resources, module_opsets(module))
        self.around.types.update((r.name, without_layout(r.type)) for r in resources)
        self.around.types.update((arg.name, arg.type) for arg in func.args)
        self.func, self.meshes = func, meshes
        self.lies: dict[str, Placements] = {}
        self.makers: dict[str, Mesh] = {}
        self.problems: list[Diagnostic] = []
        self.known: dict[tuple[int, int], tuple[LayoutRule, dict[str, Strategy]]] = {}  # the rule too: its identity stays its
        self.members = stage_members(func)
        self.wants = tuple([self.op(op, stages) for op, stages in zip(func.ops, self.members, strict=True)])

    def fault(self, message: str, where: str, hint: str = "") -> None:
        self.problems.append(DecisionFault(message, hint).at(where))

    def op(self, op: Op, stages: tuple[int, ...]) -> tuple[Placements, ...] | None:
        """What it wants of its operands; notes how its results lie."""
        whole = bare_results(op)
        rule = self.around.rule(whole)
        self.around.see(whole)
        mesh = self.meshes[stages[0]]
        if len(stages) > 1 and any(self.meshes[stage].axes for stage in stages):
            self.fault(f"the op is in {len(stages)} stages, and one of them is on a mesh", describe(op))
        known = len(self.problems)
        strategies = self.strategies(op, rule, mesh)
        wants = None
        results: list[Placements] = [(Replicate(),) * len(mesh.axes)] * len(op.results)
        if len(self.problems) > known:
            results = [placements_of(value.type, mesh) for value in op.results]  # what follows from the fault is no other one
        elif strategies is not None:
            wants = tuple(tuple(s.operands[i] for s in strategies) for i in range(len(op.operands)))
            results = [tuple(s.results[i] for s in strategies) for i in range(len(op.results))]
            self.units(op, strategies, wants, results, mesh)
        for value, type_, lies in zip(op.results, whole.results, results, strict=True):
            if value.name:
                self.result(op, value.name, value.type, type_.type, lies, mesh)
        return wants

    def strategies(self, op: Op, rule: LayoutRule | None, mesh: Mesh) -> list[Strategy] | None:
        """The strategy of each axis; None where the op runs whole."""
        facet = op.facet(ShardRule)
        names = facet.rule.split(SEPARATOR) if facet else []
        if not mesh.axes and facet is None:
            return None
        if len(names) != len(mesh.axes):
            axes = f"{mesh.name} has {len(mesh.axes)} axes" if mesh.axes else "its stage is on a single device"
            says = f'shard<"{facet.rule}">' if facet else "no strategy"
            self.fault(f"the op has {says}, but {axes}", describe(op), "one strategy for each axis of the stage's mesh")
            return None
        if all(name == WHOLE for name in names):
            return None
        found = []
        for name, (axis, size) in zip(names, mesh.axes, strict=True):
            options = self.options(rule, size)
            strategy = options.get(name)
            if strategy is None:
                known = ", ".join(f"'{option}'" for option in options or (WHOLE,))
                self.fault(f"{op.name} has no strategy '{name}' on axis {axis} of {size}; it has {known}", describe(op))
            else:
                found.append(strategy)
        return found if len(found) == len(names) else None

    def options(self, rule: LayoutRule | None, size: int) -> dict[str, Strategy]:
        """The strategies of a rule by name; equal ops have the same rule, so they are made once."""
        if rule is None:
            return {}
        found = self.known.get((id(rule), size))
        if found is None:
            found = rule, {strategy.name: strategy for strategy in rule.strategies(size)}
            self.known[id(rule), size] = found
        return found[1]

    def units(
        self, op: Op, strategies: Sequence[Strategy], wants: Sequence[Placements], results: Sequence[Placements], mesh: Mesh
    ) -> None:
        """Factors are cut between units: parts of unequal length, or several axes, must cut the tensors at the same places."""
        cuts: dict[str, list[Shares]] = {}
        for strategy, shares in zip(strategies, mesh.cuts, strict=True):
            if strategy.factor is not None:
                cuts.setdefault(strategy.name, []).append(shares)
        types = [self.around.types.get(name) for name in op.operands] + [value.type for value in op.results]
        for strategy in strategies:
            factor = strategy.factor
            if factor is None:
                continue
            axes = cuts[strategy.name]
            parts = _parts_text(axes)
            if not none_empty(factor.size, axes):
                self.fault(f"factor '{factor.name}' of {factor.size} is cut into {parts}, of which one is empty", describe(op))
            elif not proportional(factor.size, axes):
                for type_, dim in zip(types, (*factor.operands, *factor.results), strict=True):
                    shape = shape_of(type_) if type_ is not None else None
                    if shape is not None and dim is not None and shape[dim] != factor.size:
                        self.fault(
                            f"factor '{factor.name}' of {factor.size} units cannot be cut into {parts} like the {shape[dim]} "
                            f"elements of {type_}",
                            describe(op),
                            f"shard it by shares whose sum divides {factor.size}",
                        )
                        break
        for lies, name in zip((*wants, *results), (*op.operands, *(value.name for value in op.results)), strict=True):
            if len({p.reduction for p in lies if isinstance(p, Partial)}) > 1:
                self.fault(f"{name or 'an operand'} would be terms of a sum and of a maximum at once", describe(op))

    def result(self, op: Op, name: str, declared: Type, type_: Type, lies: Placements, mesh: Mesh) -> None:
        self.lies[name] = lies
        self.makers[name] = mesh
        expected = laid(type_, mesh, lies)
        if declared != expected:
            says = declared.layout if isinstance(declared, TensorType) and declared.layout else "no layout"
            wanted = expected.layout if isinstance(expected, TensorType) and expected.layout else "no layout"
            self.fault(f"{name} has {says}, but its op's strategy makes it {wanted}", describe(op))
        else:
            self.check(name, type_, lies, mesh, describe(op))

    def check(self, name: str, type_: Type, lies: Placements, mesh: Mesh, where: str, *, term: bool = True) -> None:
        """Whether a value of this type can lie so."""
        if len(lies) != len(mesh.axes):
            self.fault(f"{name} has {len(lies)} placements for the {len(mesh.axes)} axes of {mesh.name or 'its stage'}", where)
            return
        if reduction_of(lies) and isinstance(type_, TensorType) and type_.dtype in (DType.BOOL, DType.STRING):
            self.fault(f"{name} of {type_} cannot lie as terms of a {reduction_of(lies)}", where)
        elif isinstance(type_, TensorType) and type_.dtype in UNCUT and name[:1] == "%" and any(p != Replicate() for p in lies):
            self.fault(f"{name} of {type_} cannot lie in parts: values of {type_.dtype.value} are whole on each member", where)
        elif not term and reduction_of(lies):
            self.fault(f"{name} cannot be kept as terms of a {reduction_of(lies)}", where)
        shape = shape_of(type_)
        dims = {p.dim for p in lies if isinstance(p, Shard)}
        for dim in sorted(dims):
            axes = [shares for p, shares in zip(lies, mesh.cuts, strict=True) if p == Shard(dim)]
            if shape is None or dim >= len(shape):
                self.fault(f"{name} of {type_} has no dimension {dim} to be sharded", where)
            elif not none_empty(shape[dim], axes) and math.prod(map(len, axes)) > 1:
                self.fault(f"dimension {dim} of {name}, of {shape[dim]}, is cut into {_parts_text(axes)}: one is empty", where)

    def outputs(self, plain: Plain) -> dict[str, Placements]:
        """How results leave: as they are made, or as a reshard makes them."""
        found = {value.name: self.lies[value.name] for value in plain.func.results if value.name in self.lies}
        for name, type_ in plain.outputs.items():
            if name in found:
                found[name] = placements_of(type_, self.makers[name])
                self.check(name, self.around.types[name], found[name], self.makers[name], name, term=False)
        for name, lies in found.items():
            if reduction_of(lies) and name not in plain.outputs:
                hint = "a comm.reshard says how it leaves"
                self.fault(f"result {name} is made as terms of a {reduction_of(lies)}", self.func.name, hint)
        return found

    def flows(self, entry: Func, resources: Mapping[str, Type]) -> None:
        """Whether every op of the entry, which has the reshards, gets its operands as it wants them."""
        types: dict[str, Type] = {**resources, **{arg.name: arg.type for arg in entry.args}}
        home: dict[str, tuple[int, ...]] = {}
        wanted = iter(self.wants)
        for op, stages in zip(entry.ops, stage_members(entry), strict=True):
            mesh = self.meshes[stages[-1]]
            if op.name == RESHARD:
                self.reshard(op, stages, types, home)
            else:
                wants = next(wanted)
                whole: Placements = (Replicate(),) * len(mesh.axes)
                every = [(name, whole) for name in reads(op)] if wants is None else zip(op.operands, wants, strict=True)
                for name, want in every:
                    if name:
                        self.operand(op, name, types[name], want, mesh)
            types.update((value.name, value.type) for value in op.results)
            home.update((value.name, stages) for value in op.results)

    def operand(self, op: Op, name: str, type_: Type, want: Placements, mesh: Mesh) -> None:
        layout = type_.layout if isinstance(type_, TensorType) else None
        if placements_of(type_, mesh) == want and (layout is None or layout.mesh == mesh.name):
            return
        wanted = f"[{', '.join(map(str, want))}] on {mesh.name}" if mesh.axes else "whole"
        message = f"{op.name} reads {name} {layout or 'whole'}, but its strategy wants it {wanted}"
        self.fault(message, describe(op), "a comm.reshard before it brings a value to a layout; or choose another strategy")

    def reshard(self, op: Op, stages: tuple[int, ...], types: Mapping[str, Type], home: Mapping[str, tuple[int, ...]]) -> None:
        """Whether the members of its stage can have its operand, and what it makes of it."""
        name, result, mesh = op.operands[0], op.results[0], self.meshes[stages[-1]]
        given = types[name]
        if without_layout(given) != without_layout(result.type):
            self.fault(f"comm.reshard makes {result.type} of {given}; only the layout may change", describe(op))
            return
        if not isinstance(given, TensorType) or not isinstance(result.type, TensorType):
            self.fault(f"comm.reshard takes a tensor, not {given}", describe(op))
            return
        for value, layout in ((name, given.layout), (result.name, result.type.layout)):
            if layout is None or layout.mesh == mesh.name or (value == name and op.get("once")):
                continue
            maker = home.get(name, stages)
            if value == result.name or maker == stages or not same_shape(self.meshes[maker[0]], mesh):
                on = mesh.name or "a single device"
                message = f"{value} lies {layout}, but the stage of its comm.reshard is on {on}"
                self.fault(message, describe(op), "between meshes of other sizes or shares values cross whole")
                return
        self.check(
            result.name,
            without_layout(result.type),
            placements_of(result.type, mesh),
            mesh,
            describe(op),
            term=not op.get("once"),
        )
        maker = home.get(name, stages)
        if maker != stages and any(value.name == result.name for value in self.func.results):
            message = f"result {result.name} leaves stage {stages[0]}, but stage {maker[0]} makes it"
            self.fault(message, describe(op), "the stage that makes a result brings it to the layout in which it leaves")
        if op.get("once") and (name in home or name not in self.around.types or not name.startswith("@")):
            self.fault(f"only a resource is kept: {name} is none", describe(op), "drop 'once'")

    def result_of(self, outputs: Mapping[str, Placements], kept: Sequence[Mapping[str, Placements]]) -> Decided:
        """All together. Raises InvalidInput where there were faults."""
        if self.problems:
            raise InvalidInput(self.problems)
        return Decided(self.func, self.members, tuple(self.meshes), self.wants, self.lies, outputs, tuple(kept))


def _parts_text(axes: Sequence[Shares]) -> str:
    """``4 parts``, with their proportion where they are not equal."""
    every = [math.prod(place) for place in itertools.product(*axes)]
    return f"{len(every)} parts" + (f" in proportion {':'.join(map(str, every))}" if max(every) > 1 else "")


def bare_results(op: Op) -> Op:
    """The op with results that have no layouts; the op itself where none has."""
    if not any(isinstance(value.type, TensorType) and value.type.layout is not None for value in op.results):
        return op
    return replace(op, results=tuple(map(bare_value, op.results)))
