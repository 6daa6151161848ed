"""Localize: what each device runs, as ``program`` symbols of ops on local tensors.

One ``Program`` stands for all members of a stage's mesh that run the same text, and for all replicas of a stage without a
mesh; which member a device is follows from its place in the mesh. Members whose texts differ in the values of constants alone
(where a range begins) share a program too: such a constant is a ``comm.member``, which lists the value of each of them. Members
differ otherwise where parts are of different lengths, or where one holds a term of a sum and the others zeros.

Invariants of the result (INV23 of ``ir.verifier``): each device of each stage runs one program of it; all programs of a stage
have the same collectives and messages in the same order; a local type is that of the box that the whole type says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ir.core.attributes import Attribute, AttrKind, Dense
from ir.core.module import Module, Program, Stage
from ir.core.names import unique
from ir.core.ops import Op
from ir.core.types import TensorType
from passes.framework.base import Pass, PassContext
from passes.framework.expanded import on_expanded
from passes.localize.member import member_programs
from passes.model.symbols import insert_symbols

CONSTANT = "onnx.Constant"
MEMBER = "comm.member"


@dataclass(frozen=True)
class LocalizePass(Pass):
    """Write what each device runs: one program for all members of a stage that run the same text."""

    name = "localize"

    def run(self, module: Module, context: PassContext) -> Module:
        """Programs that there are already are written anew. Needs the stages that ``lower`` writes; without any, nothing is
        done."""
        return self._localized(module.without(Program), context)

    @on_expanded
    def _localized(self, module: Module, context: PassContext) -> Module:
        taken = {symbol.name for symbol in module.symbols}
        programs: list[Program] = []
        members = 0
        for stage in module.of_type(Stage):
            own = member_programs(module, stage)
            members += len(own)
            for program in _classes(own):
                programs.append(replace(program, name=unique(f"@program{len(programs)}", taken)))
                taken.add(programs[-1].name)
        context.count(self.name, members=members, programs=len(programs))
        return insert_symbols(module, programs)


def _classes(members: Sequence[Program]) -> list[Program]:
    """One program for all ``members`` that run the same text, in the order of the first of each."""
    classes: list[list[Program]] = []
    for member in members:
        same = next((found for found in classes if _same_text(found[0], member)), None)
        if same is None:
            classes.append([member])
        else:
            same.append(member)
    return [_merged(found) for found in classes]


def _same_text(one: Program, other: Program) -> bool:
    """Whether two members run the same but for the values of constants."""
    return len(one.ops) == len(other.ops) and all(
        a is b or a == b or _constants(a, b) for a, b in zip(one.ops, other.ops, strict=True)
    )


def _constants(one: Op, other: Op) -> bool:
    """Whether both are constants of one name and type, of whole bytes."""
    if one.name != CONSTANT or other.name != CONSTANT or one.results != other.results:
        return False
    a, b = one.get("value"), other.get("value")
    if not isinstance(a, Dense) or not isinstance(b, Dense) or a.type != b.type:
        return False
    return isinstance(a.data, bytes) and isinstance(b.data, bytes) and a.type.dtype.bits % 8 == 0


def _merged(members: Sequence[Program]) -> Program:
    """The program of members that run the same text."""
    first = members[0]
    if len(members) == 1:
        return first
    ops = []
    for op, *others in zip(*(member.ops for member in members), strict=True):
        ops.append(op if all(other is op or other == op for other in others) else _listed([op, *others]))
    return replace(first, devices=tuple(device for member in members for device in member.devices), ops=tuple(ops))


def _listed(constants: Sequence[Op]) -> Op:
    """The constant that is another for each member."""
    values: list[Dense] = [op.get("value") for op in constants]
    type_ = TensorType(values[0].type.dtype, (len(values), *(values[0].type.shape or ())))
    listed = Dense(type_, b"".join(value.data for value in values if isinstance(value.data, bytes)))
    return replace(constants[0], name=MEMBER, attributes=(("values", Attribute(AttrKind.TENSOR, listed)),))


__all__ = ["LocalizePass"]
