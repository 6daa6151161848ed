"""The programs of a mesh's members, cut into segments at their collectives.

The *level* of an op is the largest number of collectives on a path to it; a segment is all ops of a level, one ONNX model, and
a collective follows the segment of its operand's level. The level of a collective is the largest that it has in any program of
its stage, so all members run the collectives in the same order whatever else they do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dnnc.build.collective import Collective
from dnnc.build.collective_faults import collective_faults
from dnnc.build.members import Local, MemberProgram, Part, Segment
from dnnc.build.plan_json import bare
from dnnc.engines.onnxruntime.faults import ValueNotExchanged
from ir.core.diagnostics import InvalidInput
from ir.core.module import Func, Mesh, Module, Stage
from ir.core.names import unique
from ir.core.ops import Op, Value
from ir.core.types import TensorType, Type
from ir.ops.boxes import members_along
from ir.ops.opdefs import COLLECTIVES, is_collective
from ir.ops.operators import RANDOM, has
from passes.model.graph import cuts_of, reads
from passes.model.spmd import LocalProgram, local_programs
from passes.model.spmd import Part as LocalPart


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A segment of member ``member`` as a function, before it is an ONNX model."""

    member: int
    level: int
    func: Func


@dataclass(frozen=True, slots=True)
class MeshStage:
    """A stage on a mesh, cut: the members' programs (their segments name models in ``stages/``), their models, the collectives
    in order, and of each member the parts of the resources that it holds."""

    axes: tuple[tuple[str, int], ...]
    members: tuple[MemberProgram, ...]
    collectives: tuple[Collective, ...]
    models: tuple[LocalModel, ...]
    held: tuple[tuple[LocalPart, ...], ...]

    def to_json(self) -> dict[str, Any]:
        """What the manifest says of the stage besides what it says of any."""
        return {
            "axes": self.axes,
            "collectives": [collective.to_json() for collective in self.collectives],
            "members": [member.to_json() for member in self.members],
        }


def cut_stage(module: Module, stage: Stage, mesh: Mesh) -> MeshStage:
    """Cuts the programs of a stage into segments. Raises InvalidInput for a value that cannot cross between members."""
    tensors = {channel: bare(cut.name) for channel, cut in enumerate(cuts_of(module.entry))}
    programs = list(map(_held_as_values, local_programs(module, stage)))
    levels = collective_levels(programs)
    members, models = [], []
    for program in programs:
        segments = []
        for level, func in _segments(program, levels):
            models.append(LocalModel(program.member, level, func))
            made = tuple(_local(value.name, value.type) for value in func.results)
            read = tuple(bare(value.name) for value in func.args)
            segments.append(Segment(level, f"stages/{model_name(stage, program.member, level)}", read, made))
        members.append(
            MemberProgram(
                program.device,
                tuple(bare(value.name) for value in program.args),
                tuple(segments),
                tuple(_part(part, tensors[part.channel]) for part in program.receives),
                tuple(_part(part, tensors[part.channel]) for part in program.sends),
                tuple(_part(part, bare(part.name)) for part in program.outputs),
            )
        )
    collectives = _collectives(programs, levels, mesh)
    for collective in collectives:
        for fault in collective_faults(collective, len(programs)):
            raise InvalidInput(ValueNotExchanged(fault), where=f"stage {stage.index}, value '{collective.operand}'")
    return MeshStage(mesh.axes, tuple(members), collectives, tuple(models), tuple(program.parts for program in programs))


def model_name(stage: Stage, member: int, level: int) -> str:
    """File of a segment. It lies beside the weights: external data lies in a model's own folder or below it."""
    return f"stage{stage.index}.member{member}.segment{level}.onnx"


def collective_levels(programs: Sequence[LocalProgram]) -> dict[int, int]:
    """Of each channel of a collective, the level of its operand, over all programs of a stage."""
    levels: dict[int, int] = {}
    of_values: list[dict[str, int]] = [{} for _ in programs]
    for pieces in zip(*(_up_to_collectives(program.ops) for program in programs), strict=True):
        for (ops, _), of_value in zip(pieces, of_values, strict=True):
            for op in ops:
                level = max((of_value.get(name, 0) for name in reads(op)), default=0)
                of_value.update((value.name, level) for value in op.results)
        for (_, collective), of_value in zip(pieces, of_values, strict=True):
            channel = collective.get("channel")
            levels[channel] = max(levels.get(channel, 0), of_value.get(collective.operands[0], 0))
        for (_, collective), of_value in zip(pieces, of_values, strict=True):
            of_value[collective.results[0].name] = levels[collective.get("channel")] + 1
    return levels


def _up_to_collectives(ops: Sequence[Op]) -> Iterator[tuple[list[Op], Op]]:
    """Each collective with the ops between it and the one before."""
    before: list[Op] = []
    for op in ops:
        if is_collective(op):
            yield before, op
            before = []
        else:
            before.append(op)


def _held_as_values(program: LocalProgram) -> LocalProgram:
    """The program with resources that leave it, or go into a collective, as they are handed through an Identity."""
    leaving = [*program.results, *(op.operands[0] for op in program.ops if is_collective(op))]
    held = [name for name in dict.fromkeys(leaving) if name[:1] == "@"]
    if not held:
        return program
    taken = {value.name for op in program.ops for value in op.results} | {value.name for value in program.args}
    taken |= {part.name for part in program.receives}
    names = {name: unique(f"%{name[1:]}", taken) for name in held}
    types = {part.name: part.type for part in program.parts}
    ops = [Op("onnx.Identity", (name,), (Value(names[name], types[name]),)) for name in held]

    def called(part: LocalPart) -> LocalPart:
        return replace(part, name=names.get(part.name, part.name))

    return replace(
        program,
        ops=(*ops, *(_reading(op, names) if is_collective(op) else op for op in program.ops)),
        outputs=tuple(map(called, program.outputs)),
        sends=tuple(map(called, program.sends)),
    )


def _reading(op: Op, names: Mapping[str, str]) -> Op:
    return replace(op, operands=tuple(names.get(name, name) for name in op.operands))


def _segments(program: LocalProgram, levels: Mapping[int, int]) -> Iterator[tuple[int, Func]]:
    """Level and function of each segment of a member that has ops. Its arguments are what it reads of other segments,
    collectives and the stage's border, its results what those read of it. An op that depends on weights alone stands in every
    segment that reads what it makes."""
    types: dict[str, Type] = {value.name: value.type for value in program.args}
    types |= {part.name: part.type for part in program.receives}
    of_value = dict.fromkeys(types, 0)
    at: dict[int, list[Op]] = {}
    maker: dict[str, int] = {}
    readers: dict[str, set[int]] = {}
    for op in program.ops:
        level = max((of_value.get(name, 0) for name in reads(op)), default=0)
        if is_collective(op):
            level = levels[op.get("channel")] + 1
            readers.setdefault(op.operands[0], set()).add(-1)
        else:
            at.setdefault(level, []).append(op)
            maker.update((value.name, level) for value in op.results)
            for name in reads(op):
                readers.setdefault(name, set()).add(level)
        for value in op.results:
            of_value[value.name], types[value.name] = level, value.type
    for name in program.results:
        readers.setdefault(name, set()).add(-1)
    fixed = _of_weights_alone(program)
    for level, of_level in sorted(at.items()):
        own = [op for op in of_level if not any(value.name in fixed for value in op.results)]
        leaving = {name for name in fixed if -1 in readers.get(name, ()) and level == 0}
        ops = [*_makers(fixed, {name for op in own for name in reads(op)} | leaving), *own]
        made = {value.name for op in ops for value in op.results}
        read = dict.fromkeys(name for op in ops for name in reads(op) if name[0] != "@" and name not in made)
        left = [value for op in ops for value in op.results if value.name in leaving]
        left += [value for op in own for value in op.results if readers.get(value.name, set()) - {level}]
        if left:
            name = f"@stage{program.stage}.member{program.member}.segment{level}"
            yield level, Func(name, tuple(Value(n, types[n]) for n in read), tuple(left), tuple(ops))


def _of_weights_alone(program: LocalProgram) -> dict[str, Op]:
    """Ops that depend on constants and weights alone and draw no random numbers, by what they make, in order."""
    makers: dict[str, Op] = {}
    for op in program.ops:
        if not is_collective(op) and not has(op, RANDOM) and all(name[0] == "@" or name in makers for name in reads(op)):
            makers.update((value.name, op) for value in op.results)
    return makers


def _makers(fixed: Mapping[str, Op], wanted: set[str]) -> list[Op]:
    """Those of the ops ``fixed`` that make what is ``wanted``, and what they read themselves, in order."""
    makers: dict[str, Op] = {}
    for name, op in reversed(list(fixed.items())):
        if name in wanted:
            makers[op.id] = op
            wanted |= set(reads(op))
    return list(makers.values())[::-1]


def _local(name: str, type_: Type) -> Local:
    if not isinstance(type_, TensorType):
        return Local(bare(name), "", None)
    numbers = tuple(dim for dim in type_.shape or () if isinstance(dim, int))
    known = type_.shape is not None and len(numbers) == len(type_.shape)
    return Local(bare(name), type_.dtype.numpy_name, numbers if known else None)


def _part(part: LocalPart, tensor: str) -> Part:
    return Part(tensor, bare(part.name), part.box, part.reduction, part.delivers, part.channel, part.term)


def _collectives(programs: Sequence[LocalProgram], levels: Mapping[int, int], mesh: Mesh) -> tuple[Collective, ...]:
    """The collectives of a stage, by level and channel."""
    types = [_types(program) for program in programs]
    found = []
    for of_members in zip(*((op for op in program.ops if is_collective(op)) for program in programs), strict=True):
        op: Op = of_members[0]
        operand, result, kind = op.operands[0], op.results[0].name, op.name.removeprefix("comm.")
        step = COLLECTIVES[kind]
        groups = (members_along(mesh, member, op.get("axis")) for member in range(len(programs)))
        found.append(
            Collective(
                kind,
                op.get("channel"),
                levels[op.get("channel")],
                bare(operand),
                bare(result),
                _tensor(types[0][operand]).dtype.onnx_number,
                tuple(dict.fromkeys(groups)),
                tuple(_shape(_tensor(own[operand])) for own in types),
                tuple(_shape(_tensor(own[result])) for own in types),
                reduction=op.get("reduction", "sum") if step.reduces else "",
                split=op.get(step.split) if step.split else -1,
                join=op.get(step.join) if step.join else -1,
            )
        )
    return tuple(sorted(found, key=lambda collective: (collective.level, collective.channel)))


def _types(program: LocalProgram) -> dict[str, Type]:
    """Local types of all values of a program."""
    types = {value.name: value.type for op in program.ops for value in op.results}
    types |= {value.name: value.type for value in program.args}
    return types | {part.name: part.type for part in program.receives}


def _tensor(type_: Type) -> TensorType:
    assert isinstance(type_, TensorType)
    return type_


def _shape(type_: TensorType) -> tuple[int, ...]:
    return tuple(dim for dim in type_.shape or () if isinstance(dim, int))


__all__ = [
    "LocalModel",
    "MeshStage",
    "collective_levels",
    "cut_stage",
    "model_name",
]
