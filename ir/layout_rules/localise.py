"""Makes the ops that one shard runs in place of an op: with smaller types, and the changes in ``Factor.adapt``.

Operands and results keep their names, which now mean the parts of the shard. Facets that measure the whole op are dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from ir.core.attributes import Attribute, AttrKind, Dense
from ir.core.facets import BackwardTime, Cost, Measured, Time, Transfer
from ir.core.ops import Op, Value
from ir.core.types import DType, TensorType, Type
from ir.layout_rules.adapt import AsReshape, FixedResult, LocalAttribute, LocalEntry, LocalShape, ScaleResult, ShiftIndices
from ir.layout_rules.draft import Constants
from ir.layout_rules.rule import Factor
from ir.text.dense import dense_data


@dataclass(frozen=True, slots=True)
class Cut:
    """One shard of a factor: ``start`` and ``length`` in units. An op has one cut per sharded factor."""

    factor: Factor
    start: int
    length: int


def local_type(type_: Type, places: Iterable[tuple[int | None, Cut]]) -> Type:
    """``type_`` without a layout, each cut dimension as long as the shard."""
    if not isinstance(type_, TensorType) or type_.shape is None:
        return type_
    shape = list(type_.shape)
    for dim, cut in places:
        if dim is not None:
            length = shape[dim]
            if not isinstance(length, int):
                raise ValueError(f"dimension {dim} of {type_} has no number and cannot be cut")
            shape[dim] = length // cut.factor.size * cut.length
    return replace(type_, shape=tuple(shape), layout=None)


def localise(op: Op, operand_types: Sequence[Type | None], cuts: Sequence[Cut], constants: Constants = ()) -> tuple[Op, ...]:
    """The ops that one shard runs in place of ``op``. ``operand_types`` and the types of the results are of whole tensors.

    Raises ValueError for an operand that must be a constant and is not in ``constants``: a rule drawn with the same constants
    has no such factor."""
    return _Shard(op, operand_types, cuts, constants).ops()


class _Shard:
    """The ops under construction, before and after the op itself."""

    def __init__(self, op: Op, operand_types: Sequence[Type | None], cuts: Sequence[Cut], constants: Constants) -> None:
        self.op = op
        self.cuts = tuple(cuts)
        self.constants = constants
        self.operand_types = [
            None if type_ is None else local_type(type_, ((cut.factor.operands[i], cut) for cut in cuts))
            for i, type_ in enumerate(operand_types)
        ]
        self.results = [
            Value(value.name, local_type(value.type, ((cut.factor.results[i], cut) for cut in cuts)))
            for i, value in enumerate(op.results)
        ]
        measured = (Cost, Measured, Time, BackwardTime, Transfer)
        self.facets = tuple(facet for facet in op.facets if not isinstance(facet, measured))
        self.before: list[Op] = []
        self.after: list[Op] = []
        self.operands = list(op.operands)
        self.attributes = dict(op.attributes)
        self.fixed: FixedResult | None = None
        self.reshaped = False
        self.new_names = 0

    def ops(self) -> tuple[Op, ...]:
        shapes: dict[int, int] = {}
        entries: dict[int, dict[int, Fraction]] = {}
        scale = Fraction(1)
        for cut in self.cuts:
            share = Fraction(cut.length, cut.factor.size)
            for adapt in cut.factor.adapt:
                match adapt:
                    case LocalShape(operand, result):
                        shapes[operand] = result
                    case LocalEntry(operand, position):
                        places = entries.setdefault(operand, {})
                        places[position] = places.get(position, Fraction(1)) * share
                    case LocalAttribute(key):
                        self.attributes[key] = Attribute(AttrKind.INT, int(self.op.get(key) * share))
                    case ShiftIndices():
                        self.shift(adapt, cut)
                    case ScaleResult():
                        scale *= share
                    case AsReshape():
                        self.reshaped = True
                    case FixedResult():
                        self.fixed = adapt
        for operand, result in sorted(shapes.items()):
            self.operands[operand] = self.integers(_shape(self.results[result].type))
        for operand, places in sorted(entries.items()):
            self.operands[operand] = self.scaled(operand, places)
        if scale != 1:
            self.behind("onnx.Mul", lambda before: (before, self.constant(_dtype(self.results[0].type), (), [float(scale)])))
        main = self.main()
        return (*self.before, main, *self.after)

    def main(self) -> Op:
        if self.fixed is not None:
            values = self.fixed.values
            shape = _shape(self.results[0].type)
            return self.new("onnx.Constant", (), self.results[0], value=_dense(DType.I64, shape, values))
        if self.reshaped:
            result = self.results[0]
            return self.new("onnx.Reshape", (self.operands[0], self.integers(_shape(result.type))), result)
        return replace(
            self.op,
            operands=tuple(self.operands),
            results=tuple(self.results),
            attributes=tuple(sorted(self.attributes.items())),
            facets=self.facets,
        )

    def scaled(self, operand: int, places: dict[int, Fraction]) -> str:
        """The integers of a constant operand with some entries scaled."""
        numbers = self.constants[operand] if operand < len(self.constants) else None
        type_ = self.operand_types[operand]
        if numbers is None or not isinstance(type_, TensorType):
            raise ValueError(f"operand {operand} of {self.op.name} {self.op.id} must be a constant to run on a shard")
        scaled = [int(number * places.get(i, Fraction(1))) for i, number in enumerate(map(int, numbers))]
        return self.constant(type_.dtype, _shape(type_), scaled)

    def shift(self, adapt: ShiftIndices, cut: Cut) -> None:
        """Applies ``ShiftIndices``."""
        indices = self.operands[adapt.operand]
        type_ = self.operand_types[adapt.operand]
        if not isinstance(type_, TensorType):
            raise ValueError(f"the indices of {self.op.name} {self.op.id} are no tensor")
        flags = replace(type_, dtype=DType.BOOL)

        def number(value: int) -> str:
            return self.constant(type_.dtype, (), [value])

        zero, length = number(0), number(cut.length)
        negative = self.ahead("onnx.Less", (indices, zero), flags)
        turned = self.ahead("onnx.Add", (indices, number(cut.factor.size)), type_)
        counted = self.ahead("onnx.Where", (negative, turned, indices), type_)
        local = self.ahead("onnx.Sub", (counted, number(cut.start)), type_)
        early = self.ahead("onnx.Less", (local, zero), flags)
        late_enough = self.ahead("onnx.Not", (early,), flags)
        inside = self.ahead("onnx.And", (late_enough, self.ahead("onnx.Less", (local, length), flags)), flags)
        outside = length if adapt.trailing is None else zero
        self.operands[adapt.operand] = self.ahead("onnx.Where", (inside, local, outside), type_)
        if adapt.trailing is not None:
            shape = (*_shape(type_), *(1,) * adapt.trailing)
            mask = self.ahead("onnx.Reshape", (inside, self.integers(shape)), replace(flags, shape=shape))
            nothing = self.constant(_dtype(self.results[0].type), (), [0])
            self.behind("onnx.Where", lambda before: (mask, before, nothing))

    def behind(self, name: str, operands: Callable[[str], tuple[str, ...]]) -> None:
        """Adds an op right after the main one, which makes the first result from the main op's."""
        result = self.results[0]
        raw = self.fresh(result.type)
        self.after.insert(0, self.new(name, operands(raw.name), result))
        self.results[0] = raw

    def ahead(self, name: str, operands: tuple[str, ...], type_: Type) -> str:
        result = self.fresh(type_)
        self.before.append(self.new(name, operands, result))
        return result.name

    def integers(self, values: Sequence[int]) -> str:
        return self.constant(DType.I64, (len(values),), values)

    def constant(self, dtype: DType, shape: tuple[int, ...], values: Sequence[float]) -> str:
        result = self.fresh(TensorType(dtype, shape))
        self.before.append(self.new("onnx.Constant", (), result, value=_dense(dtype, shape, values)))
        return result.name

    def fresh(self, type_: Type) -> Value:
        self.new_names += 1
        return Value(f"{self.op.id}/shard.{self.new_names}", type_)

    def new(self, name: str, operands: tuple[str, ...], result: Value, **attributes: Dense) -> Op:
        tensors = tuple((key, Attribute(AttrKind.TENSOR, value)) for key, value in attributes.items())
        return Op(name, operands, (result,), tensors, facets=self.facets, location=self.op.location)


def _dense(dtype: DType, shape: tuple[int, ...], values: Sequence[float]) -> Dense:
    texts = [repr(float(value)) if dtype.is_float else str(int(value)) for value in values]
    if len(texts) != math.prod(shape):
        raise ValueError(f"{len(texts)} elements are not those of shape {shape}")
    return Dense(TensorType(dtype, shape), dense_data(dtype, texts))


def _dtype(type_: Type) -> DType:
    if not isinstance(type_, TensorType):
        raise ValueError(f"{type_} is no tensor")
    return type_.dtype


def _shape(type_: Type) -> tuple[int, ...]:
    """The shape in numbers. Raises ValueError where there is none."""
    shape = type_.shape if isinstance(type_, TensorType) else None
    if shape is None or not all(isinstance(dim, int) for dim in shape):
        raise ValueError(f"{type_} has no shape in numbers")
    return tuple(dim for dim in shape if isinstance(dim, int))
