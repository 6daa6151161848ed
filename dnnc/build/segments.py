"""Cuts the programs of a lowered module into segments, for ``plan.ir`` and for the ONNX models of a build.

The *level* of an op is the largest number of collectives on a path to it. A *segment* is one ONNX model with all ops of a
level. A collective has the level of its operand, the largest over all members of the stage, and runs after the segment of that
level. So all members run the collectives in the same order, by level and channel. The program of a stage without a mesh is one
segment.

``plan.ir`` of a build holds the programs as they are cut: a ``dnnc.segment`` replaces the ops of a model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dnnc.build.members import collective_levels
from ir.core.attributes import attributes
from ir.core.module import Func, Module, Program, Stage
from ir.core.names import unique
from ir.core.ops import UNKNOWN_LOCATION, Op, Value
from ir.core.types import Type
from ir.ops.opdefs import SEGMENT, is_collective
from ir.ops.operators import RANDOM, has
from passes.graph.graph import reads
from passes.graph.symbols import insert_symbols
from passes.meshes import LocalProgram, local_programs
from passes.meshes import Part as LocalPart


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A segment of member ``member`` (0 in a stage without a mesh) as a function, before it is an ONNX model."""

    member: int
    level: int
    func: Func


@dataclass(frozen=True, slots=True)
class StageSegments:
    """A stage, cut: its ``programs`` with segments, the ``models`` that these stand for, and what each member runs."""

    stage: Stage
    programs: tuple[Program, ...]
    models: tuple[LocalModel, ...]
    members: tuple[LocalProgram, ...]


def cut_stages(module: Module) -> tuple[StageSegments, ...]:
    """The stages of a module that ``localize`` wrote, cut."""
    return tuple(_cut(module, stage) for stage in module.of_type(Stage))


def with_segments(module: Module, stages: Sequence[StageSegments]) -> Module:
    """The module with the programs of its stages as they were cut."""
    return insert_symbols(module.without(Program), [program for stage in stages for program in stage.programs])


def _cut(module: Module, stage: Stage) -> StageSegments:
    members = local_programs(module, stage)
    if stage.mesh:
        members = tuple(map(_with_resources_as_values, members))
    levels = collective_levels(members)
    segments = [
        list(_segments(member, levels, module.states)) if stage.mesh else [(0, _whole(member, stage))] for member in members
    ]
    models = tuple(LocalModel(n, level, func) for n, of_member in enumerate(segments) for level, func in of_member)
    number = {member.device: n for n, member in enumerate(members)}
    programs = []
    for program in (program for program in module.of_type(Program) if program.stage == stage.name):
        first = number[program.devices[0]]
        programs.append(_in_segments(program, members[first], segments[first], levels))
    return StageSegments(stage, tuple(programs), models, members)


def _in_segments(
    program: Program, local: LocalProgram, segments: Sequence[tuple[int, Func]], levels: Mapping[int, int]
) -> Program:
    """``program`` with a ``dnnc.segment`` for each of ``segments``. ``local``: what its first device runs; ``levels``: of its
    collectives, by channel. A resource that leaves the program is called as a value, which its segment makes."""
    inputs = {value.name for value in program.args} | {part.name for part in local.receives}
    taken = inputs | {value.name for _, func in segments for value in func.results}
    names = {name: unique(f"%{name[1:]}", taken) for name in local.results if name[:1] == "@"}
    steps = [(levels[op.get("channel")], op.get("channel"), op) for op in local.ops if is_collective(op)]
    for level, func in segments:
        operands = tuple(value.name for value in func.args)
        results = tuple(replace(v, name=names.get(v.name, v.name)) for v in func.results if v.name not in inputs)
        steps.append((level, -1, Op(SEGMENT, operands, results, attributes(level=level))))
    in_order = [op for _, _, op in sorted(steps, key=lambda step: step[:2])]
    sent = {part.channel: names.get(part.name, part.name) for part in local.sends}
    receives = [op for op in program.ops if op.name == "comm.recv"]
    sends = [replace(op, operands=(sent[op.get("channel")],)) for op in program.ops if op.name == "comm.send"]
    ops = tuple(replace(op, facets=(), location=UNKNOWN_LOCATION) for op in (*receives, *in_order, *sends))
    outputs = zip(program.results, local.outputs, strict=True)
    return replace(program, results=tuple(replace(v, name=names.get(part.name, part.name)) for v, part in outputs), ops=ops)


def _whole(program: LocalProgram, stage: Stage) -> Func:
    """The program of a stage without a mesh, as a function without ``comm`` ops. Its arguments are the model's inputs and then
    the received tensors; its results are the model's outputs and then the sent tensors, each tensor once."""
    received = tuple(Value(part.name, part.type) for part in program.receives)
    leaving = {part.name: part.type for part in (*program.outputs, *program.sends)}
    results = tuple(Value(name, type_) for name, type_ in leaving.items())
    return Func(stage.name, (*program.args, *received), results, program.ops, stage.attributes)


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


def _segments(program: LocalProgram, levels: Mapping[int, int], states: Collection[str]) -> Iterator[tuple[int, Func]]:
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
    constant = _constant_ops(program, states)
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


def _constant_ops(program: LocalProgram, states: Collection[str]) -> dict[str, Op]:
    """Ops that depend on constants and weights only and draw no random numbers, by the names of their results, in order."""
    makers: dict[str, Op] = {}
    for op in program.ops:
        steady = all(name in makers or (name[0] == "@" and name not in states) for name in reads(op))
        if steady and not is_collective(op) and not has(op, RANDOM):
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
