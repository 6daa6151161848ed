"""Cuts the programs of a mesh's members into segments at their collectives.

The *level* of an op is the largest number of collectives on a path to it. A *segment* is one ONNX model with all ops of a
level. A collective has the level of its operand, the largest over all members of the stage, and runs after the segment of that
level. So all members run the collectives in the same order, by level and channel.
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
    """The segment of level ``level`` of a member, as a function that is to be written as an ONNX model."""

    member: int
    level: int
    func: Func


@dataclass(frozen=True, slots=True)
class MeshStage:
    """A stage on a mesh, cut into segments. ``axes``: name and size of each axis of the mesh. ``members``: their programs,
    whose segments name models in ``stages/``; ``models``: these models. ``collectives``: in the order in which all members run
    them. ``parts``: for each member, the parts of the resources that it reads."""

    axes: tuple[tuple[str, int], ...]
    members: tuple[MemberProgram, ...]
    collectives: tuple[Collective, ...]
    models: tuple[LocalModel, ...]
    parts: tuple[tuple[LocalPart, ...], ...]

    def to_json(self) -> dict[str, Any]:
        """The entries that the manifest has only for stages on meshes."""
        return {
            "axes": self.axes,
            "collectives": [collective.to_json() for collective in self.collectives],
            "members": [member.to_json() for member in self.members],
        }


def cut_stage(module: Module, stage: Stage, mesh: Mesh) -> MeshStage:
    """Cuts the programs of a stage into segments. Raises InvalidInput for a value that members cannot exchange."""
    tensors = {channel: bare(cut.name) for channel, cut in enumerate(cuts_of(module.entry))}
    programs = list(map(_with_resources_as_values, local_programs(module, stage)))
    levels = collective_levels(programs)
    members, models = [], []
    for program in programs:
        segments = []
        for level, func in _segments(program, levels):
            models.append(LocalModel(program.member, level, func))
            inputs = tuple(bare(value.name) for value in func.args)
            outputs = tuple(_local(value.name, value.type) for value in func.results)
            segments.append(Segment(level, f"stages/{model_name(stage, program.member, level)}", inputs, outputs))
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
    """File name of a segment in ``stages/``, beside the weights: ONNX asks that external data is in the folder of the model."""
    return f"stage{stage.index}.member{member}.segment{level}.onnx"


def collective_levels(programs: Sequence[LocalProgram]) -> dict[int, int]:
    """By channel, the level of each collective of a stage: the largest level of its operand in any member's program."""
    levels: dict[int, int] = {}
    level_of: list[dict[str, int]] = [{} for _ in programs]  # by member and value
    for pieces in zip(*(_up_to_collectives(program.ops) for program in programs), strict=True):
        for (ops, _), own_level_of in zip(pieces, level_of, strict=True):
            for op in ops:
                level = max((own_level_of.get(name, 0) for name in reads(op)), default=0)
                own_level_of.update((value.name, level) for value in op.results)
        for (_, collective), own_level_of in zip(pieces, level_of, strict=True):
            channel = collective.get("channel")
            levels[channel] = max(levels.get(channel, 0), own_level_of.get(collective.operands[0], 0))
        for (_, collective), own_level_of in zip(pieces, level_of, strict=True):
            own_level_of[collective.results[0].name] = levels[collective.get("channel")] + 1
    return levels


def _up_to_collectives(ops: Sequence[Op]) -> Iterator[tuple[list[Op], Op]]:
    """Each collective, with the ops between it and the collective before."""
    before: list[Op] = []
    for op in ops:
        if is_collective(op):
            yield before, op
            before = []
        else:
            before.append(op)


def _with_resources_as_values(program: LocalProgram) -> LocalProgram:
    """The program with an Identity for each resource that is itself a result or the operand of a collective: these are
    values."""
    leaving = [*program.results, *(op.operands[0] for op in program.ops if is_collective(op))]
    resources = [name for name in dict.fromkeys(leaving) if name[:1] == "@"]
    if not resources:
        return program
    taken = {value.name for op in program.ops for value in op.results} | {value.name for value in program.args}
    taken |= {part.name for part in program.receives}
    names = {name: unique(f"%{name[1:]}", taken) for name in resources}
    types = {part.name: part.type for part in program.parts}
    ops = [Op("onnx.Identity", (name,), (Value(names[name], types[name]),)) for name in resources]

    def renamed(part: LocalPart) -> LocalPart:
        return replace(part, name=names.get(part.name, part.name))

    return replace(
        program,
        ops=(*ops, *(_renamed_operands(op, names) if is_collective(op) else op for op in program.ops)),
        outputs=tuple(map(renamed, program.outputs)),
        sends=tuple(map(renamed, program.sends)),
    )


def _renamed_operands(op: Op, names: Mapping[str, str]) -> Op:
    return replace(op, operands=tuple(names.get(name, name) for name in op.operands))


def _segments(program: LocalProgram, levels: Mapping[int, int]) -> Iterator[tuple[int, Func]]:
    """Level and function of each segment of a member. The arguments are values of earlier segments, of collectives, and inputs
    of the stage; the results are the values that later segments, collectives and other stages read. An op that depends on
    weights only is repeated in each segment that reads its results, so these are never handed from segment to segment."""
    types: dict[str, Type] = {value.name: value.type for value in program.args}
    types |= {part.name: part.type for part in program.receives}
    level_of = dict.fromkeys(types, 0)
    ops_at: dict[int, list[Op]] = {}
    reading_levels: dict[str, set[int]] = {}  # -1: a collective or another stage
    for op in program.ops:
        level = max((level_of.get(name, 0) for name in reads(op)), default=0)
        if is_collective(op):
            level = levels[op.get("channel")] + 1
            reading_levels.setdefault(op.operands[0], set()).add(-1)
        else:
            ops_at.setdefault(level, []).append(op)
            for name in reads(op):
                reading_levels.setdefault(name, set()).add(level)
        for value in op.results:
            level_of[value.name], types[value.name] = level, value.type
    for name in program.results:
        reading_levels.setdefault(name, set()).add(-1)
    constant = _constant_ops(program)
    for level, ops_of_level in sorted(ops_at.items()):
        varying = [op for op in ops_of_level if not any(value.name in constant for value in op.results)]
        leaving = {name for name in constant if -1 in reading_levels.get(name, ()) and level == 0}
        ops = [*_needed(constant, {name for op in varying for name in reads(op)} | leaving), *varying]
        defined = {value.name for op in ops for value in op.results}
        args = dict.fromkeys(name for op in ops for name in reads(op) if name[0] != "@" and name not in defined)
        results = [value for op in ops for value in op.results if value.name in leaving]
        results += [value for op in varying for value in op.results if reading_levels.get(value.name, set()) - {level}]
        if results:
            name = f"@stage{program.stage}.member{program.member}.segment{level}"
            yield level, Func(name, tuple(Value(arg, types[arg]) for arg in args), tuple(results), tuple(ops))


def _constant_ops(program: LocalProgram) -> dict[str, Op]:
    """Ops that depend on constants and weights only and draw no random numbers, by the names of their results, in order."""
    makers: dict[str, Op] = {}
    for op in program.ops:
        if not is_collective(op) and not has(op, RANDOM) and all(name[0] == "@" or name in makers for name in reads(op)):
            makers.update((value.name, op) for value in op.results)
    return makers


def _needed(constant: Mapping[str, Op], values: set[str]) -> list[Op]:
    """The ops among ``constant`` that ``values`` depend on, in order."""
    needed: dict[str, Op] = {}
    wanted = set(values)
    for name, op in reversed(list(constant.items())):
        if name in wanted:
            needed[op.id] = op
            wanted |= set(reads(op))
    return list(needed.values())[::-1]


def _local(name: str, type_: Type) -> Local:
    if not isinstance(type_, TensorType):
        return Local(bare(name), "", None)
    numbers = tuple(dim for dim in type_.shape or () if isinstance(dim, int))
    known = type_.shape is not None and len(numbers) == len(type_.shape)
    return Local(bare(name), type_.dtype.numpy_name, numbers if known else None)


def _part(part: LocalPart, tensor: str) -> Part:
    return Part(tensor, bare(part.name), part.box, part.reduction, part.delivers, part.channel, part.term)


def _collectives(programs: Sequence[LocalProgram], levels: Mapping[int, int], mesh: Mesh) -> tuple[Collective, ...]:
    """The collectives of a stage, in order of level and channel."""
    types = [_types(program) for program in programs]
    collectives = []
    for of_members in zip(*((op for op in program.ops if is_collective(op)) for program in programs), strict=True):
        op: Op = of_members[0]
        operand, result, kind = op.operands[0], op.results[0].name, op.name.removeprefix("comm.")
        step = COLLECTIVES[kind]
        groups = (members_along(mesh, member, op.get("axis")) for member in range(len(programs)))
        collectives.append(
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
    return tuple(sorted(collectives, key=lambda collective: (collective.level, collective.channel)))


def _types(program: LocalProgram) -> dict[str, Type]:
    """The types of all values of a program: those of the member's parts."""
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
