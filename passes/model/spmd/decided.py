"""What ``shard`` decided, read from the module and checked: meshes of stages, how values lie, what each op wants.

The strategies are the decision; layouts on results follow from them and must agree, since a person may have edited either.

Invariants of what is returned: an op on a mesh has exactly one stage; the layout of every value can be had by its type (no
part of a dimension is empty, terms are of one reduction); the parts that a strategy cuts, between
whole units of a factor, are the parts that its layouts say.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ir.diagnostics import Diagnostic, InvalidInput
from ir.facets import ShardRule
from ir.layout_rules import LayoutRule, Strategy, Surroundings
from ir.module import Func, Mesh, Module, Plan, Resource
from ir.opdefs import module_opsets
from ir.ops import Op, Value
from ir.shares import Shares, none_empty, proportional
from ir.types import DType, Layout, Partial, Replicate, Shard, TensorType, Type
from passes.model.graph import describe, stage_members
from passes.model.spmd.boxes import Placements, placements_of, reduction_of, shape_of
from passes.model.spmd.notation import SEPARATOR, WHOLE, kept_layouts, read_placements


@dataclass(frozen=True, slots=True)
class Decided:
    """``members[i]``: the stages of op number i of the entry; ``meshes[stage]``: of no axes for a stage on a single device.
    ``wants[i]``: the placements of each operand of op i on its mesh, None where it runs whole. ``lies[value]``: how its maker
    makes it; ``outputs[value]``: how a result of the model leaves the stage that makes it; ``kept[stage][resource]``."""

    members: tuple[tuple[int, ...], ...]
    meshes: tuple[Mesh, ...]
    wants: tuple[tuple[Placements, ...] | None, ...]
    lies: dict[str, Placements]
    outputs: dict[str, Placements]
    kept: tuple[dict[str, Placements], ...]
    uneven: bool


def decided(module: Module) -> Decided:
    """Raises InvalidInput, with every place, where the decisions do not fit together."""
    func = module.entry
    members = stage_members(func)
    meshes = _meshes(module, members)
    reader = _Reader(module, meshes)
    wants = tuple([reader.op(op, stages) for op, stages in zip(func.ops, members, strict=True)])
    for arg in func.args:
        if isinstance(arg.type, TensorType) and arg.type.layout is not None:
            reader.fault(f"argument {arg.name} has the layout {arg.type.layout}", func.name, "arguments arrive whole: drop it")
    kept = []
    for index, mesh in enumerate(meshes):
        try:
            kept.append(kept_layouts(module, index, mesh))
        except InvalidInput as error:
            reader.problems += [told for told in error.diagnostics if told not in reader.problems]
            continue
        for name, lies in kept[-1].items():
            reader.check(name, reader.around.types[name], lies, mesh, name, term=False)
    outputs = reader.outputs(func)
    if reader.problems:
        raise InvalidInput(reader.problems)
    allowed = any(key == "shard.uneven" and attribute.value for key, attribute in func.attributes)
    return Decided(members, meshes, wants, reader.lies, outputs, tuple(kept), allowed or reader.uneven)


def _meshes(module: Module, members: Sequence[tuple[int, ...]]) -> tuple[Mesh, ...]:
    """Of each stage, as the plan says."""
    plan = module.first(Plan)
    if plan is None:
        message = f"{module.entry.name} has ops with strategies, but the module has no plan that names their mesh"
        raise InvalidInput(message, where=module.name, hint="run 'shard' (or replay a plan) before 'lower'")
    known = {mesh.name: mesh for mesh in module.of_type(Mesh)}
    planned = {stage.index: stage for stage in plan.stages}
    found, problems = [], []
    for index in range(1 + max((stage for stages in members for stage in stages), default=0)):
        stage = planned.get(index)
        if stage is None:
            problems.append(Diagnostic(f"{plan.name} has no stage {index}, which ops are in", where=plan.name))
        elif stage.mesh and stage.mesh not in known:
            message = f"stage {index} is on {stage.mesh}, which is not a mesh of the module"
            problems.append(Diagnostic(message, where=plan.name))
        elif stage.mesh:
            found.append(known[stage.mesh])
        else:
            found.append(Mesh("", (), stage.devices[:1]))
    if problems:
        raise InvalidInput(problems)
    return tuple(found)


class _Reader:
    """Reads the entry's ops in order."""

    def __init__(self, module: Module, meshes: Sequence[Mesh]) -> None:
        resources = list(module.of_type(Resource))
        self.around = Surroundings(resources, module_opsets(module))
        self.around.types.update((r.name, bare(r.type)) for r in resources)
        self.around.types.update((arg.name, arg.type) for arg in module.entry.args)
        self.meshes = meshes
        self.lies: dict[str, Placements] = {}
        self.makers: dict[str, Mesh] = {}
        self.problems: list[Diagnostic] = []
        self.uneven = False
        self.known: dict[tuple[int, int], tuple[LayoutRule, dict[str, Strategy]]] = {}  # the rule too: its identity stays its

    def fault(self, message: str, where: str, hint: str = "") -> None:
        self.problems.append(Diagnostic(message, where=where, hint=hint))

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
                self.uneven = True
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
            elif not proportional(shape[dim], axes):
                self.uneven = True

    def outputs(self, func: Func) -> dict[str, Placements]:
        """How results leave: as they are made, or as ``shard.outputs`` says."""
        found = {value.name: self.lies[value.name] for value in func.results if value.name in self.lies}
        attribute = dict(func.attributes).get("shard.outputs")
        if attribute is not None and not isinstance(attribute.value, tuple):
            self.fault(f"{attribute.value!r} found, a list of texts expected", "shard.outputs")
            return found
        for text in attribute.value if attribute else ():
            rest, _, placements = str(text).rpartition("[")
            name, _, mesh = rest.rpartition(" ")
            if name not in found or mesh != self.makers[name].name or not placements.endswith("]"):
                self.fault(f"'{text}' found, '%result @mesh[..]' of a result and its mesh expected", "shard.outputs")
                continue
            try:
                found[name] = read_placements(placements[:-1])
            except InvalidInput as error:
                self.problems += error.diagnostics
                continue
            self.check(name, self.around.types[name], found[name], self.makers[name], "shard.outputs", term=False)
        for name, lies in found.items():
            if reduction_of(lies) and not any(d.where == "shard.outputs" for d in self.problems):
                hint = "say in shard.outputs how it leaves"
                self.fault(f"result {name} is made as terms of a {reduction_of(lies)}", func.name, hint)
        return found


def _parts_text(axes: Sequence[Shares]) -> str:
    """``4 parts``, with their proportion where they are not equal."""
    every = [math.prod(place) for place in itertools.product(*axes)]
    return f"{len(every)} parts" + (f" in proportion {':'.join(map(str, every))}" if max(every) > 1 else "")


def bare(type_: Type) -> Type:
    """The type without a layout."""
    if isinstance(type_, TensorType) and type_.layout is not None:
        return TensorType(type_.dtype, type_.shape, None, type_.sparse)
    return type_


def bare_results(op: Op) -> Op:
    """The op with results that have no layouts; the op itself where none has."""
    if not any(isinstance(value.type, TensorType) and value.type.layout is not None for value in op.results):
        return op
    results = tuple([Value(value.name, bare(value.type)) for value in op.results])
    return replace(op, results=results)


def laid(type_: Type, mesh: Mesh, lies: Placements) -> Type:
    """The bare type with a layout, where it is not whole on all of ``mesh``."""
    if not isinstance(type_, TensorType) or all(isinstance(p, Replicate) for p in lies):
        return type_
    return TensorType(type_.dtype, type_.shape, Layout(mesh.name, lies), type_.sparse)


def same_shape(one: Mesh, other: Mesh) -> bool:
    """Whether values cross between two meshes as they lie."""
    return one.cuts == other.cuts


__all__ = ["Decided", "bare", "bare_results", "decided", "laid", "same_shape"]
