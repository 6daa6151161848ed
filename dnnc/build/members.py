"""The members of a stage on a mesh, read from the programs of ``plan.ir``, and the checks of them.

A member runs *segments*, ONNX models one after the other; after segment k it takes part in the collectives of level k, in
channel order. Values have names: each later segment may read what a segment, a collective or a channel made. A value that
crosses the stage's border has a *box*, the part of the whole tensor that the member holds: (start, length) per dimension.

Invariants that ``stage_faults`` checks:
1. there is one member for each device of the mesh; segments and collectives read inputs, received values, and what segments and
   collectives before them made;
2. the groups of a collective hold every member once, and the shapes of its operands and results fit each other; an operand has
   the shape and element type that its segment states;
3. boxes lie inside their tensors; a value that a member sends, or delivers as output, has the shape of its box;
4. the delivered boxes of each output, and of each sent tensor, cover it exactly: each element once, or once per term. A tensor
   with symbolic dimensions is whole (its box has no ranges) and delivered by one member.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from dnnc.build.collective import Collective
from dnnc.onnx.elements import BFLOAT16, BY_NAME, BY_NUMBER, Element, packed
from ir.core.module import Mesh
from ir.core.names import bare
from ir.core.ops import Op
from ir.core.types import REDUCTIONS, TensorType, Type
from ir.ops.boxes import members_along
from ir.ops.opdefs import COLLECTIVES, SEGMENT, is_collective
from passes.graph.graph import reads
from passes.meshes import LocalProgram
from passes.meshes import Part as LocalPart

Box: TypeAlias = tuple[tuple[int, int], ...]
Shape: TypeAlias = tuple[int, ...]
Known: TypeAlias = tuple[str, Sequence[int | str | None] | None]
"""Numpy's name of a value's element type, and its shape."""


@dataclass(frozen=True, slots=True)
class Local:
    """A value of one member: its name, numpy's name of the element type and its shape, None where that is not known."""

    name: str
    dtype: str
    shape: Shape | None


@dataclass(frozen=True, slots=True)
class Segment:
    """One ONNX model of a member, by its name in the build; ``inputs`` are names, ``outputs`` what it makes."""

    level: int
    model: str
    inputs: tuple[str, ...]
    outputs: tuple[Local, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """A member's part of a tensor that crosses the stage's border. ``name``: of the tensor; ``value``: the member's name of its
    part; ``box``: the part; ``reduction``: ``sum`` or ``max`` where the part is a term, else empty, and ``term`` its number;
    ``delivers``: False for all but one of the members that hold the same part; ``channel``: the channel that carries it, -1 for
    an output."""

    name: str
    value: str
    box: Box
    reduction: str = ""
    delivers: bool = True
    channel: int = -1
    term: int = 0

    @property
    def shape(self) -> Shape:
        return tuple(length for _, length in self.box)


@dataclass(frozen=True, slots=True)
class MemberProgram:
    """What one member runs. ``inputs``: of the model, whole; ``receives``, ``sends`` and ``outputs`` its parts; ``states``: of
    what states become, which stays with the member, the parts."""

    device: str
    inputs: tuple[str, ...]
    segments: tuple[Segment, ...]
    receives: tuple[Part, ...]
    sends: tuple[Part, ...]
    outputs: tuple[Part, ...]
    states: tuple[Part, ...] = ()


def read_members(
    programs: Sequence[LocalProgram], mesh: Mesh, tensors: Mapping[int, str]
) -> tuple[tuple[MemberProgram, ...], tuple[Collective, ...]]:
    """The members of a stage on ``mesh`` and their collectives, from the programs with segments that they run; ``tensors``: the
    tensor of each channel."""
    members = []
    for program in programs:
        segments = (
            Segment(
                op.get("level"),
                model_name(program.stage, op.get("level"), program.member),
                tuple(map(bare, op.operands)),
                tuple(_local(value.name, value.type) for value in op.results),
            )
            for op in program.ops
            if op.name == SEGMENT
        )
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
    return tuple(members), collectives_of(programs, mesh)


def model_name(stage: int, level: int = 0, member: int | None = None) -> str:
    """The ONNX model of a stage, or of a segment of a member of its mesh. It lies beside the weights: external data lies in a
    model's own folder or below it."""
    return f"stages/stage{stage}.onnx" if member is None else f"stages/stage{stage}.member{member}.segment{level}.onnx"


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


def _local(name: str, type_: Type) -> Local:
    if not isinstance(type_, TensorType):
        return Local(bare(name), "", None)
    numbers = tuple(dim for dim in type_.shape or () if isinstance(dim, int))
    known = type_.shape is not None and len(numbers) == len(type_.shape)
    return Local(bare(name), type_.dtype.numpy_name, numbers if known else None)


def _part(part: LocalPart, tensor: str) -> Part:
    return Part(tensor, bare(part.name), part.box, part.reduction, part.delivers, part.channel, part.term)


def collectives_of(programs: Sequence[LocalProgram], mesh: Mesh) -> tuple[Collective, ...]:
    """The collectives of a stage on ``mesh``, in order of level and channel. ``programs``: of its members."""
    levels = collective_levels(programs)
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
    if not isinstance(type_, TensorType):
        raise ValueError(f"a collective takes {type_}, which is no tensor")
    return type_


def _shape(type_: TensorType) -> tuple[int, ...]:
    return tuple(dim for dim in type_.shape or () if isinstance(dim, int))


def matches(left: Sequence[tuple[str, int]], right: Sequence[tuple[str, int]]) -> bool:
    """Whether values cross between stages on meshes of these axes from member to member, without being made whole."""
    return tuple(size for _, size in left) == tuple(size for _, size in right)


def is_whole(box: Box, shape: Sequence[int | str | None]) -> bool:
    """Whether a box is all of a tensor of this shape."""
    return len(box) == len(shape) and all((start, length) == (0, dim) for (start, length), dim in zip(box, shape, strict=True))


def stage_faults(
    axes: Sequence[tuple[str, int]],
    members: Sequence[MemberProgram],
    collectives: Sequence[Collective],
    inputs: Mapping[str, Known],
    borders: Mapping[tuple[str, int], Known],
) -> Iterator[str]:
    """What is wrong with a stage on a mesh. ``inputs``: element type and shape of the model's inputs, by name; ``borders``: of
    the tensors that cross the stage's border, by name and channel (-1: an output of the model)."""
    if not axes or any(size < 1 for _, size in axes) or math.prod(size for _, size in axes) != len(members):
        yield f"a mesh of {dict(axes)} does not have {len(members)} members"
        return
    for collective in collectives:
        for fault in collective_faults(collective, len(members)):
            yield f"channel {collective.channel}: {fault}"
            return
    order = [(collective.level, collective.channel) for collective in collectives]
    if order != sorted(set(order)) or len({collective.channel for collective in collectives}) != len(collectives):
        yield "collectives are not in order of level and channel, each channel once"
        return
    for number, member in enumerate(members):
        for fault in _member_faults(member, number, collectives, inputs, borders):
            yield f"member {number} on {member.device}: {fault}"
    yield from _cover_faults(members, borders)


def _member_faults(
    member: MemberProgram,
    number: int,
    collectives: Sequence[Collective],
    inputs: Mapping[str, Known],
    borders: Mapping[tuple[str, int], Known],
) -> Iterator[str]:
    """Follows the program of one member, and the element type and shape of each value."""
    known: dict[str, Known] = {}
    for name in member.inputs:
        if name not in inputs:
            yield f"'{name}' is no input of the model"
            return
        dtype, shape = inputs[name]
        known[name] = dtype, shape if in_numbers(shape) else None
    for part in member.receives:
        fault = _part_fault(part, borders)
        if fault:
            yield fault
            return
        known[part.value] = _held(part, borders)
    levels = [segment.level for segment in member.segments]
    if levels != sorted(set(levels)) or any(level < 0 for level in levels):
        yield f"segments have levels {levels}, each once and ascending expected"
        return
    segments = {segment.level: segment for segment in member.segments}
    for level in sorted({*segments, *(collective.level for collective in collectives)}):
        if segment := segments.get(level):
            for name in segment.inputs:
                if name not in known:
                    yield f"segment {level} reads '{name}', which nothing before it makes"
                    return
            known |= {value.name: (value.dtype, value.shape) for value in segment.outputs}
        for collective in (c for c in collectives if c.level == level):
            dtype = BY_NUMBER[collective.element].name
            if known.get(collective.operand) != (dtype, collective.operands[number]):
                operand = known.get(collective.operand, ("", None))
                yield (
                    f"channel {collective.channel} takes '{collective.operand}' as {dtype}{list(collective.operands[number])}, "
                    f"found {operand[0] or 'nothing'}{list(operand[1] or ())}"
                )
                return
            known[collective.result] = dtype, collective.results[number]
    for part in (*member.sends, *member.outputs):
        fault = _part_fault(part, borders)
        if not fault and part.value not in known:
            fault = f"'{part.value}' leaves it as part of '{part.name}', and nothing makes it"
        if not fault and known[part.value] != _held(part, borders):
            fault = f"'{part.value}' is {list(known[part.value][1] or ())}, its box of '{part.name}' {list(part.shape)}"
        if fault:
            yield fault
            return


def _held(part: Part, borders: Mapping[tuple[str, int], Known]) -> Known:
    """Element type and shape of a part that crosses the border."""
    dtype, shape = borders[part.name, part.channel]
    return dtype, part.shape if in_numbers(shape) else None


def in_numbers(shape: Sequence[int | str | None] | None) -> bool:
    """Whether a shape is known and every dimension a number."""
    return shape is not None and all(isinstance(dim, int) for dim in shape)


def _part_fault(part: Part, borders: Mapping[tuple[str, int], Known]) -> str:
    """What is wrong with a part by itself, empty when nothing is."""
    if (part.name, part.channel) not in borders:
        return f"'{part.name}' does not cross the stage's border on channel {part.channel}"
    dtype, shape = borders[part.name, part.channel]
    if not in_numbers(shape):
        return f"'{part.name}' has no shape in numbers, so it cannot cross in parts" if part.box or part.reduction else ""
    shape = shape or ()
    if len(part.box) != len(shape) or any(
        start < 0 or length < 0 or start + length > int(dim or 0) for (start, length), dim in zip(part.box, shape, strict=True)
    ):
        return f"box {[list(side) for side in part.box]} of '{part.name}' lies outside its shape {list(shape)}"
    if part.reduction not in ("", *REDUCTIONS):
        return f"reduction '{part.reduction}' of '{part.name}' is unknown"
    element = BY_NAME.get(dtype)
    if (element is None or packed(element)) and not (is_whole(part.box, shape) and not part.reduction):
        return f"'{part.name}' of {dtype or 'no tensor type'} crosses in parts"
    return ""


def _cover_faults(members: Sequence[MemberProgram], borders: Mapping[tuple[str, int], Known]) -> Iterator[str]:
    """Outputs and sent tensors that their delivered boxes do not cover exactly."""
    sent = {(part.name, part.channel) for member in members for part in (*member.outputs, *member.sends)}
    for name, channel in borders:
        if channel >= 0 and (name, channel) not in sent:
            continue  # received
        every = [part for member in members for part in (*member.outputs, *member.sends)]
        parts = [part for part in every if (part.name, part.channel) == (name, channel) and part.delivers]
        shape = borders[name, channel][1] or ()
        if not in_numbers(borders[name, channel][1]):
            if [part.box for part in parts] != [()]:
                yield f"'{name}' has no shape in numbers, and {len(parts)} members deliver it, one expected"
            continue
        if not covers(
            [part.box for part in parts], tuple(int(dim or 0) for dim in shape), any(part.reduction for part in parts)
        ):
            boxes = [[list(side) for side in part.box] for part in parts]
            yield f"'{name}' of shape {list(shape)} is not made of its parts {boxes}"


def covers(boxes: Sequence[Box], shape: Shape, terms: bool = False) -> bool:
    """Whether each element of a tensor is in one of the boxes; with ``terms``, whether each is in the same number of boxes."""
    distinct = list(dict.fromkeys(boxes))
    if any(len(box) != len(shape) for box in distinct):
        return False
    if len(distinct) != len(boxes) and not (terms and len({boxes.count(box) for box in distinct}) == 1):
        return False
    volume = sum(math.prod(length for _, length in box) for box in distinct)
    if volume != math.prod(shape) or not distinct:
        return False
    return not any(_overlap(a, b) for i, a in enumerate(distinct) for b in distinct[:i])


def _overlap(left: Box, right: Box) -> bool:
    return all(max(a, b) < min(a + n, b + m) for (a, n), (b, m) in zip(left, right, strict=True))


def collective_faults(one: Collective, members: int) -> Iterator[str]:
    """What is wrong with a collective of a stage with so many members; nothing when it is right."""
    step = COLLECTIVES.get(one.kind)
    if step is None:
        yield f"collective '{one.kind}' is unknown, one of {', '.join(COLLECTIVES)} expected"
        return
    element = BY_NUMBER.get(one.element)
    if element is None or packed(element):
        yield f"a collective cannot move elements of type {one.element if element is None else element.name}"
        return
    if one.level < 0:
        yield f"a level is at least 0, not {one.level}"
    if sorted(member for group in one.groups for member in group) != list(range(members)):
        yield f"groups {[list(group) for group in one.groups]} do not hold each of {members} members once"
        return
    if len(one.operands) != members or len(one.results) != members:
        yield f"{len(one.operands)} operands and {len(one.results)} results found, {members} members expected"
        return
    if any(dim < 0 for shape in (*one.operands, *one.results) for dim in shape):
        yield "a dimension is below 0"
        return
    if step.reduces:
        if one.reduction not in REDUCTIONS:
            yield f"reduction '{one.reduction}' is unknown, one of {', '.join(REDUCTIONS)} expected"
        elif not reducible(element, one.reduction):
            yield f"no {one.reduction} of elements of type {element.name}"
    for name, dim, needed in (
        ("split", one.split, bool(step.split)),
        ("join", one.join, bool(step.join)),
    ):
        ranks = {len(shape) for shape in (*one.operands, *one.results)}
        if len(ranks) != 1 or not (0 <= dim < min(ranks) if needed else dim == -1):
            yield f"{name} dimension {dim} does not fit shapes {_texts(one.operands)}"
            return
    for group in one.groups:
        yield from _group_faults(one, group)


def _group_faults(one: Collective, group: tuple[int, ...]) -> Iterator[str]:
    operands, results = [one.operands[m] for m in group], [one.results[m] for m in group]
    wanted = [list(shape) for shape in operands]
    if one.split >= 0:  # what a member gives is cut into parts as long as the results
        lengths = [shape[one.split] for shape in results]
        if any(shape[one.split] != sum(lengths) for shape in operands):
            yield f"parts of {lengths} along dimension {one.split} are not those of {_texts(operands)}"
        for shape, length in zip(wanted, lengths, strict=True):
            shape[one.split] = length
    if one.join >= 0:
        total = sum(shape[one.join] for shape in operands)
        for shape in wanted:
            shape[one.join] = total
    else:
        wanted = [[d if i == one.split else wanted[0][i] for i, d in enumerate(shape)] for shape in wanted]
    if [list(shape) for shape in results] != wanted or (one.join < 0 and len(set(operands)) != 1):
        yield f"{one.kind} of {_texts(operands)} gives {_texts(map(tuple, wanted))}, not {_texts(results)}"


def _texts(shapes: Any) -> str:
    return ", ".join("x".join(map(str, shape)) or "scalar" for shape in shapes)


def reducible(element: Element, reduction: str) -> bool:
    """Whether elements can be added up, or compared."""
    if element.name == "bool":
        return reduction == "max"
    if element.name.startswith("complex"):
        return reduction == "sum"
    return element.number == BFLOAT16 or (element.carrier == element.name)
