"""What the members of a mesh run for an op of their stage: worked out once for all ops of a *kind*.

A kind holds all that a member's ops depend on: operator, attributes, facets, types and placements of operands and results,
known constants, the strategy. Ops of one kind differ in names and locations alone, so the repeated blocks of a model are
localized once. Names in a kind are placeholders: ``%0`` is the first operand, ``%.0`` the first result; an added value is
``%.0/..``. Ops that members run as they are, on parts of their operands, share a kind where the types of their results do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import TypeAlias

from ir.core.attributes import Attribute, Attributes, AttrKind, Dense, attributes
from ir.core.facets import in_phase, phase_of
from ir.core.module import Mesh
from ir.core.ops import UNKNOWN_LOCATION, Op, Value
from ir.core.shares import Shares, nested_cut
from ir.core.types import DType, TensorType, Type
from ir.layout_rules import Cut, LayoutRule, Numbers, localise
from ir.ops.boxes import Box, Placements, axis_number, box, coordinates, shape_of
from ir.text.dense import dense_data
from passes.graph.folding.program import attributes_key

CONSTANT = "onnx.Constant"
MEMBER = "comm.member"
_FILLS_SHAPES = 9
"""The opset from which there is a ConstantOfShape."""
_SLICE_TAKES_INPUTS = 10
"""The opset from which a Slice's starts and ends are operands."""

Ops: TypeAlias = tuple[Op, ...]
Types: TypeAlias = tuple[Type, ...]


class Kind:
    """What each member runs. ``texts``: equal numbers for members that run the same but for the values of constants.

    For each member, ``types`` has the local types of results, of an op that runs as it is, or ``ops`` the ops that run in its
    place."""

    def __init__(self, types: Sequence[Types] = (), ops: Sequence[Ops] = ()) -> None:
        self.types, self.ops = types, ops
        numbers: dict[Hashable, int] = {}
        every: Sequence[Hashable] = types or [tuple(map(_but_constants, own)) for own in ops]
        self.texts = tuple([numbers.setdefault(text, len(numbers)) for text in every])
        self._merged: dict[tuple[int, ...], Ops] = {}

    def merged(self, members: tuple[int, ...]) -> Ops:
        """The ops of members that run the same text. A constant that is another for each of them is a ``comm.member``."""
        if members not in self._merged:
            self._merged[members] = tuple(map(_one, zip(*(self.ops[member] for member in members), strict=True)))
        return self._merged[members]


def _but_constants(op: Op) -> Hashable:
    """What two ops have in common that differ by the bytes of a constant alone."""
    value = op.get("value") if op.name == CONSTANT else None
    if isinstance(value, Dense) and isinstance(value.data, bytes) and value.type.dtype.bits % 8 == 0:
        return op.name, op.results, value.type
    return op


def _one(same: Sequence[Op]) -> Op:
    """One op for all members, which run ``same``."""
    first = same[0]
    if all(other is first or other == first for other in same):
        return first
    values: list[Dense] = [op.get("value") for op in same]
    type_ = TensorType(values[0].type.dtype, (len(values), *(values[0].type.shape or ())))
    listed = Dense(type_, b"".join(value.data for value in values if isinstance(value.data, bytes)))
    return replace(first, name=MEMBER, attributes=(("values", Attribute(AttrKind.TENSOR, listed)),))


class Kinds:
    """The kinds of ops on a mesh, each made once. ``opset``: of the operators that members run in place of conversions."""

    def __init__(self, mesh: Mesh, opset: int | None) -> None:
        self.mesh = mesh
        self.opset = _SLICE_TAKES_INPUTS if opset is None else opset
        self.members = range(max(1, len(mesh.devices)) if mesh.axes else 1)
        self.places = [coordinates(mesh, member) for member in self.members]
        self._found: dict[Hashable, Kind] = {}

    def _kind(self, key: Hashable, made: Callable[[], Kind]) -> Kind:
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = made()
        return found

    def kept(self, results: tuple[tuple[Type, Placements | None], ...]) -> Kind:
        """An op that members run as it is. Of each result the type of the whole and the placements; None for one whose type
        stays."""

        def made() -> Kind:
            return Kind(types=[tuple([self.local(*result, member) for result in results]) for member in self.members])

        return self._kind(("kept", results), made)

    def shard(
        self,
        op: Op,
        operands: tuple[Type | None, ...],
        constants: tuple[Numbers | None, ...],
        rule: LayoutRule,
        names: tuple[str, ...],
    ) -> Kind:
        """An op that runs on parts, as ``rule`` says of the strategies ``names``. ``operands``: types of the whole tensors, as
        those of the results of ``op``."""
        results = tuple([(bool(value.name), value.type) for value in op.results])
        fields = attributes_key(op.attributes)
        key = ("shard", op.name, fields, op.facets, tuple(map(bool, op.operands)), operands, constants, results, names)

        def made() -> Kind:
            own = replace(
                op,
                operands=tuple([name and f"%{place}" for place, name in enumerate(op.operands)]),
                results=tuple([Value(value.name and f"%.{i}", value.type) for i, value in enumerate(op.results)]),
                location=UNKNOWN_LOCATION,
            )
            cuts = [self.cuts(rule, names, member) for member in self.members]
            return Kind(ops=[localise(own, operands, cut, constants) for cut in cuts])

        return self._kind(key, made)

    def slice(self, op: Op, operand: tuple[Type, Placements], result: tuple[Type, Placements]) -> Kind:
        """``comm.slice``: the range of a member's part within what it held before."""
        dim, phase = op.get("dim"), phase_of(op.facets)

        def made() -> Kind:
            return Kind(ops=[self._slice(dim, operand, result, phase, member) for member in self.members])

        return self._kind(("slice", dim, phase, operand, result), made)

    def term(self, op: Op, result: tuple[Type, Placements]) -> Kind:
        """``comm.term``: the value itself; of a sum zeros, on members that are not first along the axis."""
        axis, is_sum, phase = axis_number(self.mesh, op.get("axis")), op.get("reduction") == "sum", phase_of(op.facets)

        def made() -> Kind:
            zero = [is_sum and place[axis] > 0 for place in self.places]
            return Kind(ops=[self._term(result, phase, member, zero[member]) for member in self.members])

        return self._kind(("term", axis, is_sum, phase, result), made)

    # -- members -------------------------------------------------------------------------------------------------------

    def local(self, whole: Type, lies: Placements | None, member: int) -> Type:
        """The type of a member's part."""
        return whole if lies is None else _sized(whole, box(whole, lies, self.mesh, member))

    def cuts(self, rule: LayoutRule, names: Sequence[str], member: int) -> list[Cut]:
        """A member's range of each factor that a strategy shards."""
        factors = {factor.name for factor in rule.shardable}
        splits: dict[str, list[tuple[Shares, int]]] = {}
        for name, shares, place in zip(names, self.mesh.cuts, self.places[member], strict=True):
            if name in factors:
                splits.setdefault(name, []).append((shares, place))
        return [
            Cut(factor, *nested_cut(factor.size, places)) for name, places in splits.items() for factor in [rule.factor(name)]
        ]

    def _slice(
        self, dim: int, operand: tuple[Type, Placements], result: tuple[Type, Placements], phase: str, member: int
    ) -> Ops:
        before = box(*operand, self.mesh, member)[dim]
        start, length = box(*result, self.mesh, member)[dim]
        first = start - before[0]
        made = Value("%.0", self.local(*result, member))
        if self.opset < _SLICE_TAKES_INPUTS:
            fields = attributes(axes=[dim], starts=[first], ends=[first + length])
            return (Op("onnx.Slice", ("%0",), (made,), fields, facets=in_phase(phase)),)
        numbers = (("start", first), ("end", first + length), ("axis", dim))
        constants = [_integers(f"%.0/{what}", (number,), phase) for what, number in numbers]
        return (*constants, Op("onnx.Slice", ("%0", *(op.id for op in constants)), (made,), facets=in_phase(phase)))

    def _term(self, result: tuple[Type, Placements], phase: str, member: int, zero: bool) -> Ops:
        type_, facets = self.local(*result, member), in_phase(phase)
        made = (Value("%.0", type_),)
        if not zero:
            return (Op("onnx.Identity", ("%0",), made, facets=facets),)
        assert isinstance(type_, TensorType)
        dtype, lengths = type_.dtype, shape_of(type_) or ()
        nothing = "0.0" if dtype.is_float else "0"
        if self.opset < _FILLS_SHAPES:
            full = Dense(TensorType(dtype, lengths), dense_data(dtype, [nothing] * math.prod(lengths)))
            return (Op(CONSTANT, (), made, _tensor(full), facets=facets),)
        shape = _integers("%.0/shape", lengths, phase)
        value = Dense(TensorType(dtype, (1,)), dense_data(dtype, [nothing]))
        return (shape, Op("onnx.ConstantOfShape", (shape.id,), made, _tensor(value), facets=facets))


def _integers(name: str, values: tuple[int, ...], phase: str) -> Op:
    """A constant of the program."""
    type_ = TensorType(DType.I64, (len(values),))
    value = Dense(type_, dense_data(DType.I64, list(map(str, values))))
    return Op(CONSTANT, (), (Value(name, type_),), _tensor(value), facets=in_phase(phase))


def _sized(whole: Type, here: Box) -> Type:
    """The type of a part."""
    if not isinstance(whole, TensorType) or not here:
        return whole
    shape = tuple([length for _, length in here])
    return whole if shape == whole.shape else TensorType(whole.dtype, shape, None, whole.sparse)


def _tensor(value: Dense) -> Attributes:
    return (("value", Attribute(AttrKind.TENSOR, value)),)
