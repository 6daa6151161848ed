"""Rules 4 and 5: parts of the same value by other placements.

Inside a member: a Slice of a part, an Identity, the terms of a sum that a member makes of a value it holds. Between members:
the collectives. Between stages: what a channel carries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dnnc.check.proof.facts import Boxes, Families, Part, is_partial
from dnnc.check.proof.programs import Line, StageText, Unit
from dnnc.check.proof.terms import Content
from ir.core.module import Mesh
from ir.core.ops import Op
from ir.core.types import DType, Partial, Placement, Replicate, Shard, Type, without_layout
from ir.ops.boxes import Box, Placements, axis_number, box, placements_of, shape_of
from ir.ops.opdefs import RESHARD_STEPS

IDENTITY, SLICE, FILL = "onnx.Identity", "onnx.Slice", "onnx.ConstantOfShape"


def with_placement(placements: Placements, axis: int, placement: Placement) -> Placements:
    return (*placements[:axis], placement, *placements[axis + 1 :])


# -- inside a member ---------------------------------------------------------------------------------------------------


def identity(unit: Unit, boxes: Boxes, part: Part, families: Families, reductions: Sequence[str]) -> Iterator[Part]:
    """What the Identity of a part is: the part; and, on members that are first along an axis, their term of the sum that the
    others have zeros of; of a maximum the value is a term on each. ``reductions``: those that the stage does."""
    yield part
    for axis, placement in enumerate(part.placements):
        if placement != Replicate():
            continue
        if "sum" in reductions and boxes.places(unit.members, axis) == {0}:
            yield term_of(part, axis, "sum", families)
        if "max" in reductions:
            yield term_of(part, axis, "max", families)


def term_of(part: Part, axis: int, reduction: str, families: Families) -> Part:
    """The part as a term along an axis: of a sum the value on the first member, of a maximum on all."""
    family = families.number(("term", part.node, axis, reduction, part.family))
    return Part(part.node, with_placement(part.placements, axis, Partial(reduction)), family)


def zeros(unit: Unit, dtype: DType, shape: tuple[int, ...]) -> Iterator[int]:
    """The terms of a unit that are zeros of this type: a ConstantOfShape of a constant, or a constant."""
    for line in unit.lines:
        if line.op.name == FILL and len(line.operands) == 1:
            value = line.op.get("value")
            filled = DType.F32 if value is None else value.type.dtype
            nothing = value is None or not any(value.data)
            sizes = contents_of(unit, line.operands[0])
            if nothing and filled == dtype and sizes and all(size.numbers() == shape for size in sizes):
                yield line.results[0]
    for term, same in unit.constants.items():
        if all(c.dtype == dtype and c.shape == shape and c.data is not None and not any(c.data) for c in same[0][1]):
            yield term


def contents_of(unit: Unit, term: int) -> tuple[Content, ...] | None:
    """The bytes of a constant on each member; None for another term."""
    return unit.constants[term][0][1] if term in unit.constants else None


def slices(unit: Unit, boxes: Boxes, line: Line, part: Part, type_: Type) -> Iterator[Part]:
    """What a Slice of a part is: the part that it leaves where one more axis shards a dimension."""
    shape = shape_of(type_)
    if shape is None:
        return
    left = []
    for place, member in enumerate(unit.members):
        here = _sliced(unit, line, place, boxes.of(type_, part.placements)[member])
        if here is None:
            return
        left.append(here)
    for axis, placement in enumerate(part.placements):
        if placement != Replicate():
            continue
        for dim in range(len(shape)):
            placements = with_placement(part.placements, axis, Shard(dim))
            every = boxes.of(type_, placements)
            if all(every[member] == here for member, here in zip(unit.members, left, strict=True)):
                yield Part(part.node, placements, part.family)


def _sliced(unit: Unit, line: Line, place: int, here: Box) -> Box | None:
    """The box that a Slice leaves of the box ``here``; ``place``: of the member in the unit. None for another form."""
    op = line.op
    if len(line.operands) > 1:
        read = []
        for term in line.operands[1:]:
            contents = contents_of(unit, term)
            numbers = None if contents is None else contents[place].numbers()
            if numbers is None:
                return None
            read.append([int(number) for number in numbers])
        if len(read) < 3 or (len(read) > 3 and any(step != 1 for step in read[3])):
            return None
        starts, ends, axes = read[:3]
    else:
        starts, ends, axes = (list(op.get(key) or ()) for key in ("starts", "ends", "axes"))
    if not (len(starts) == len(ends) == len(axes)) or len(set(axes)) < len(axes):
        return None
    left = list(here)
    for start, end, axis in zip(starts, ends, axes, strict=True):
        if not (0 <= axis < len(here) and 0 <= start < end <= here[axis][1]):
            return None
        left[axis] = here[axis][0] + start, end - start
    return tuple(left)


# -- between members ---------------------------------------------------------------------------------------------------


def collective(text: StageText, op: Op, part: Part, families: Families) -> Part | str:
    """What a collective makes where all members have ``part``; or why it does not follow."""
    mesh, step = text.mesh, RESHARD_STEPS[op.name.removeprefix("comm.")]
    if op.get("mesh") != mesh.name or op.get("axis") not in dict(mesh.axes):
        return f"it is along axis '{op.get('axis')}' of {op.get('mesh')}, on which the stage is not"
    axis = axis_number(mesh, op.get("axis"))
    before, after = step.placements(op)
    if part.placements[axis] != before:
        return f"it takes {before} along axis '{op.get('axis')}', but its operand is {part.placements[axis]} there"
    cut = [p for p in (before, after) if isinstance(p, Shard) and p in part.placements[axis + 1 :]]
    if cut:
        return f"a later axis cuts dimension {cut[0].dim} further"
    placements = with_placement(part.placements, axis, after)
    family = part.family
    if isinstance(before, Partial):
        family = families.number(("reduced", part.family, axis)) if is_partial(placements) else 0
    return Part(part.node, placements, family)


# -- between stages ----------------------------------------------------------------------------------------------------


def crossing(maker: tuple[Mesh, Type], reader: tuple[Mesh, Type]) -> str:
    """Why what arrives over a channel is not what left; empty where it is. Of each side its mesh and the type of the whole
    tensor, with the layout in which it has it. The runtime sends from member to member: of meshes, member b gets what
    member b modulo the number of senders has; a single device gets what the first has (``wiring._mesh_pairs``)."""
    (source, sent), (target, received) = maker, reader
    whole = without_layout(sent)
    if whole != without_layout(received):
        return f"it leaves as {whole} and arrives as {without_layout(received)}"
    out, into = placements_of(sent, source), placements_of(received, target)
    senders, receivers = (max(1, len(mesh.devices) if mesh.axes else 1) for mesh in (source, target))
    alike = [size for _, size in source.axes] == [size for _, size in target.axes]
    if is_partial(out) or is_partial(into):
        return "" if alike and out == into and source.cuts == target.cuts else "terms cross between unequal meshes or layouts"
    for member in range(receivers):
        one, other = box(whole, out, source, member % senders), box(whole, into, target, member)
        if one != other:
            return f"member {member} gets the box {_text(one)} and takes it for {_text(other)}"
    return ""


def _text(here: Box) -> str:
    return "[" + ", ".join(f"{start}:{start + length}" for start, length in here) + "]"
