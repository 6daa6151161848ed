"""Changes of layout as ops: ``comm.reshard`` in the entry function, written from what was decided and taken out again.

``%v.1 = comm.reshard(%v) : type stage<k>`` brings a value to the layout of its result, on the members of stage k. With
``{once = 1}``, on a weight, it says how stage k keeps it: it is read so, and nothing is moved. What ``with_reshards`` writes:

1. Every operand has, on its stage's mesh, the layout that its op's strategy wants. Of one value there is one reshard per stage
   and layout, straight from the layout in which the stage has it, before the first op that reads it, in the phase of that op.
2. A value with a layout is read in a stage on another mesh by reshards alone: it crosses as it lies where the two meshes have
   equal sizes and shares, else a reshard behind its op makes it whole in the stage that made it.
3. A weight lies as its type says in the stages on that mesh; in any other stage it is whole where its type says so, and read
   through a ``once`` where it is kept in another way.
4. A result of the model that leaves in another layout than it is made in keeps its name: what its op makes is called ``%y.0``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ir.core.attributes import attributes
from ir.core.facets import StageSet, in_phase, phase_of
from ir.core.module import Func, Mesh, Module
from ir.core.ops import Op, Value, all_values
from ir.core.types import Layout, Replicate, TensorType, Type, without_layout
from ir.ops.boxes import Placements, placements_of
from ir.ops.opdefs import RESHARD
from passes.graph.graph import origins, reads, renamed

_ONCE = attributes(once=1)


@dataclass(frozen=True, slots=True)
class Decided:
    """What ``partition`` decided about ``func``, the entry function without reshards.

    ``members[i]``: the stages of op number i; ``meshes[stage]``: of no axes for a stage on a single device. ``wants[i]``: the
    placements of each operand of op i on its mesh, None where it runs whole. ``lies[value]``: how its maker makes it;
    ``outputs[value]``: how a result of the model leaves the stage that makes it; ``kept[stage][resource]``."""

    func: Func
    members: tuple[tuple[int, ...], ...]
    meshes: tuple[Mesh, ...]
    wants: tuple[tuple[Placements, ...] | None, ...]
    lies: Mapping[str, Placements]
    outputs: Mapping[str, Placements]
    kept: tuple[Mapping[str, Placements], ...]


def same_shape(one: Mesh, other: Mesh) -> bool:
    """Whether values cross between two meshes as they lie."""
    return one.cuts == other.cuts


def bare_value(value: Value) -> Value:
    """The value without a layout; the value itself where it has none."""
    type_ = without_layout(value.type)
    return value if type_ is value.type else Value(value.name, type_)


def laid(type_: Type, mesh: Mesh, lies: Placements) -> Type:
    """The bare type with a layout, where it is not whole on all of ``mesh``."""
    if not isinstance(type_, TensorType) or all(isinstance(p, Replicate) for p in lies):
        return type_
    return TensorType(type_.dtype, type_.shape, Layout(mesh.name, lies), type_.sparse)


# -- out ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plain:
    """A function without reshards. ``kept[stage][resource]``: the types that ``once`` gives; ``outputs[value]``: those of
    results that a reshard makes."""

    func: Func
    kept: Mapping[int, Mapping[str, Type]]
    outputs: Mapping[str, Type]


def without_reshards(func: Func) -> Plain:
    """``func`` as it was before ``with_reshards``."""
    if not any(op.name == RESHARD for op in func.ops):
        return Plain(func, {}, {})
    names = origins(func)
    kept: dict[int, dict[str, Type]] = {}
    outputs: dict[str, Type] = {}
    results = {value.name for value in func.results}
    for op in func.ops:
        if op.name == RESHARD and op.get("once"):
            for stage in op.facet(StageSet, StageSet((0,))).stages:
                kept.setdefault(stage, {})[names[op.results[0].name]] = op.results[0].type
        elif op.name == RESHARD and op.results[0].name in results:
            outputs[op.results[0].name] = op.results[0].type
    ops = renamed((op for op in func.ops if op.name != RESHARD), names)
    types = {value.name: value.type for op in ops for value in op.results}
    values = tuple(Value(value.name, types.get(value.name, value.type)) for value in func.results)
    return Plain(replace(func, ops=ops, results=values), kept, outputs)


def plain(module: Module) -> Module:
    """The module with an entry function without reshards."""
    return module.replace(module.entry, without_reshards(module.entry).func)


def keeps(plain: Plain, resources: Mapping[str, Type], index: int, mesh: Mesh) -> dict[str, Placements]:
    """How stage ``index``, which is on ``mesh``, keeps each resource that its ops read: as a ``once`` says, else as the type
    says where that is on this mesh, else whole. ``resources``: types by name."""
    own = [op for op in plain.func.ops if index in op.facet(StageSet, StageSet(())).stages]
    once = plain.kept.get(index, {})
    held = dict.fromkeys(name for op in own for name in reads(op) if name in resources)
    return {name: placements_of(once.get(name, resources[name]), mesh) for name in held}


# -- in ----------------------------------------------------------------------------------------------------------------


def with_reshards(module: Module, found: Decided) -> Module:
    """``module``, whose entry is ``found.func``, with the reshards that ``found`` needs."""
    return module.replace(module.entry, _Writer(module, found).func())


class _Writer:
    """The entry function while its reshards are written, op by op."""

    def __init__(self, module: Module, found: Decided) -> None:
        self.found = found
        self.resources = {resource.name: resource.type for resource in module.resources.values()}
        self.types: dict[str, Type] = {name: without_layout(type_) for name, type_ in self.resources.items()}
        self.types.update((arg.name, arg.type) for arg in found.func.args)
        self.names = {*self.types, *defined(found.func.ops)}
        self.home: dict[str, tuple[int, ...]] = {}
        self.known: dict[tuple[int, str, Placements], str] = {}
        self.keeping: dict[tuple[tuple[int, ...], str], str] = {}
        self.readers: dict[str, set[int]] = {}
        for op, stages in zip(found.func.ops, found.members, strict=True):
            for name in reads(op):
                self.readers.setdefault(name, set()).update(stages)
        self.ops: list[Op] = []

    def func(self) -> Func:
        func = self.found.func
        outputs = {value.name for value in func.results}
        for op, stages, wants in zip(func.ops, self.found.members, self.found.wants, strict=True):
            self.op(op, stages, wants, outputs)
        made = {value.name: value.type for op in self.ops for value in op.results}
        results = tuple(Value(value.name, made.get(value.name, value.type)) for value in func.results)
        return replace(func, ops=tuple(self.ops), results=results)

    def op(self, op: Op, stages: tuple[int, ...], wants: tuple[Placements, ...] | None, outputs: set[str]) -> None:
        """The op behind what brings its operands to it, then what its results leave by."""
        stage = stages[-1]
        if op.regions or wants is None:
            whole = self.whole(stage)
            brought = {name: self.bring(name, whole, stages, op) for name in reads(op)}
            here = renamed((op,), {name: new for name, new in brought.items() if new != name})[0]
        else:
            operands = tuple(
                [self.bring(name, want, stages, op) if name else name for name, want in zip(op.operands, wants, strict=True)]
            )
            here = op if operands == op.operands else replace(op, operands=operands)
        results = tuple([self.made(value, stages, outputs) for value in op.results])
        self.ops.append(here if results == op.results else replace(here, results=results))
        for value in op.results:
            if value.name:
                self.leave(value.name, stages, op, outputs)

    def made(self, value: Value, stages: tuple[int, ...], outputs: set[str]) -> Value:
        """A result as its op makes it."""
        name, lies = value.name, self.found.lies.get(value.name)
        if not name or lies is None:
            return value
        self.types[name], self.home[name] = without_layout(value.type), stages
        if name in outputs and self.found.outputs[name] != lies:
            value = Value(self.fresh(name, 0), value.type)
        for stage in stages:
            self.known[stage, name, lies] = value.name
        return value

    def leave(self, name: str, stages: tuple[int, ...], op: Op, outputs: set[str]) -> None:
        """A value as a result of the model, and whole for the stages that cannot take it as it lies."""
        stage, meshes = stages[0], self.found.meshes
        if name in outputs:
            self.bring(name, self.found.outputs[name], stages, op, final=name)
        others = self.readers.get(name, set()) - set(stages)
        if not all(same_shape(meshes[stage], meshes[other]) for other in others):
            self.bring(name, self.whole(stage), stages, op)

    def bring(self, name: str, target: Placements, stages: tuple[int, ...], op: Op, final: str = "") -> str:
        """What ``name`` is called in layout ``target`` in the stages of ``op`` (several only where all are on single devices);
        writes the reshard where nothing has yet, for ``op``."""
        stage = stages[-1]
        found = self.known.get((stage, name, target))
        if found is not None:
            return found
        current, lies, foreign = self.arrives(name, stages, op)
        if lies == target and not foreign:
            return current
        result = final or self.fresh(name)
        self.reshard(current, result, laid(self.types[name], self.found.meshes[stage], target), (stage,), op)
        self.known[stage, name, target] = result
        return result

    def arrives(self, name: str, stages: tuple[int, ...], op: Op) -> tuple[str, Placements, bool]:
        """What a value is called as a stage gets it, how it lies there, and whether its type has the layout of another mesh."""
        stage = stages[-1]
        whole = self.whole(stage)
        if name in self.resources:
            return self.keeps(name, stages, op)
        if name not in self.home:
            return name, whole, False
        maker = self.home[name][0]
        lies = self.found.lies[name]
        if stage in self.home[name]:
            return self.known[stage, name, lies], lies, False
        theirs = self.found.meshes[maker]
        if same_shape(theirs, self.found.meshes[stage]):
            return self.known[maker, name, lies], lies, any(not isinstance(p, Replicate) for p in lies)
        return self.known[maker, name, self.whole(maker)], whole, False

    def keeps(self, name: str, stages: tuple[int, ...], op: Op) -> tuple[str, Placements, bool]:
        """A resource as a stage keeps it."""
        stage = stages[-1]
        mesh, whole, type_ = self.found.meshes[stage], self.whole(stage), self.resources[name]
        layout = type_.layout if isinstance(type_, TensorType) else None
        if layout is not None and layout.mesh == mesh.name:
            return name, layout.placements, False
        kept = self.found.kept[stage].get(name, whole)
        if layout is None and kept == whole:
            return name, whole, False
        result = self.keeping.get((stages, name))
        if result is None:
            result = self.keeping[stages, name] = self.fresh(name)
            self.reshard(name, result, laid(self.types[name], mesh, kept), stages, op, once=True)
        return result, kept, False

    def reshard(self, operand: str, result: str, type_: Type, stages: tuple[int, ...], op: Op, *, once: bool = False) -> None:
        facets = (*in_phase(phase_of(op.facets)), StageSet(stages))
        fields = _ONCE if once else ()
        self.ops.append(Op(RESHARD, (operand,), (Value(result, type_),), fields, facets=facets, location=op.location))

    def whole(self, stage: int) -> Placements:
        return (Replicate(),) * len(self.found.meshes[stage].axes)

    def fresh(self, name: str, number: int = 1) -> str:
        """``%name.k``, the first from ``number`` on that nothing is called."""
        return fresh(name, self.names, number)


def fresh(name: str, taken: set[str], number: int = 1) -> str:
    """``%name.k``, the first from ``number`` on that is not in ``taken``, where it then is."""
    while f"%{name[1:]}.{number}" in taken:
        number += 1
    found = f"%{name[1:]}.{number}"
    taken.add(found)
    return found


def defined(ops: Sequence[Op]) -> set[str]:
    """Every name that the ops define, regions included."""
    return {value.name for value in all_values(ops)}
