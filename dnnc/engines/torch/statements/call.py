"""One op as its emitter sees it: names of Python, types, known constants, and what attributes say.

An emitter is ``Callable[[Call], str]``: it gives one Python expression, of a tensor, or of a tuple where the op has several
results. Tensors are numbered as in cost formulas: operand i is ``i``, result j is ``-1 - j``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from dnnc.engines.torch.faults import NoElementType
from dnnc.engines.torch.statements.faults import AttributeNotWritten, ConstantNeeded, NotATensor, RankNeeded, ShapeNeeded
from ir.core.attributes import single
from ir.core.diagnostics import Fault, InvalidInput
from ir.core.ops import Op
from ir.core.types import DType, TensorType, Type
from ir.layout_rules import Numbers

DTYPES: Mapping[DType, str] = {dtype: dtype.numpy_name for dtype in DType if dtype.bits >= 8 and dtype is not DType.F8E8M0}
"""Element types that torch computes with, by torch's names."""

NEWEST = 24
"""The opset that is assumed where none is stated."""


@dataclass(frozen=True, slots=True)
class Call:
    """``names``: what the operands are called in Python, None for an absent one. ``types``, ``constants``: of operands and
    results, by their names in the IR; ``constants`` has the elements of small ones that are known."""

    op: Op
    names: tuple[str | None, ...]
    types: Mapping[str, Type]
    constants: Mapping[str, Numbers] = field(default_factory=dict)
    opset: int = NEWEST

    def fault(self, fault: Fault) -> InvalidInput:
        """The fault as an error at the op: torch cannot run it."""
        location = self.op.location
        where = f"{location.path}: {location.node}" if location.node else self.op.id
        return InvalidInput(fault, where=where)

    # -- operands and results ------------------------------------------------------------------------------------------

    def present(self, number: int) -> bool:
        return number < len(self.names) and self.names[number] is not None

    def arg(self, number: int) -> str:
        """Operand ``number`` in Python; ``None`` where it is absent."""
        return str(self.names[number]) if number < len(self.names) else "None"

    @property
    def args(self) -> list[str]:
        """The operands that are there."""
        return [name for name in self.names if name is not None]

    def type(self, number: int) -> TensorType:
        if number >= 0:
            type_ = self.types[self.op.operands[number]]
        else:
            type_ = self.op.results[-1 - number].type
        if not isinstance(type_, TensorType):
            raise self.fault(NotATensor(self.op.name, str(type_)))
        return type_

    def shape(self, number: int) -> tuple[int, ...]:
        """Raises InvalidInput where a dimension is no number."""
        type_ = self.type(number)
        shape = tuple(dim for dim in type_.shape or () if isinstance(dim, int))
        if type_.shape is None or len(shape) != len(type_.shape):
            raise self.fault(ShapeNeeded(self.op.name, str(type_)))
        return shape

    def rank(self, number: int) -> int:
        shape = self.type(number).shape
        if shape is None:
            raise self.fault(RankNeeded(self.op.name))
        return len(shape)

    def dtype(self, number: int) -> str:
        """The element type as torch spells it."""
        return self.spelled(self.type(number).dtype)

    def spelled(self, dtype: DType) -> str:
        if dtype not in DTYPES:
            raise self.fault(NoElementType(dtype.value))
        return f"torch.{DTYPES[dtype]}"

    def is_float(self, number: int) -> bool:
        return self.type(number).dtype.is_float

    @property
    def wanted(self) -> list[bool]:
        """Of each result, whether it has a name."""
        return [bool(value.name) for value in self.op.results]

    # -- numbers -------------------------------------------------------------------------------------------------------

    def get(self, key: str, default: Any = None) -> Any:
        return self.op.get(key, default)

    def word(self, key: str, default: str, *among: str) -> str:
        """Attribute ``key``, one of ``among``, in quotes. Raises InvalidInput for another."""
        word = self.get(key, default)
        if word not in among:
            raise self.fault(AttributeNotWritten(self.op.name, key, str(word), among))
        return f'"{word}"'

    def float(self, key: str, default: float) -> str:
        """Attribute ``key`` with no more digits than it needs as an IEEE single, so that 0.1 reads so."""
        return number_text(float(self.get(key, default)))

    def numbers(self, number: int) -> Numbers | None:
        """The elements of a constant operand; None where they are not known."""
        return self.constants.get(self.op.operands[number]) if number < len(self.op.operands) else None

    def integers(self, number: int, key: str = "") -> tuple[int, ...] | None:
        """Attribute ``key``, or else the elements of operand ``number``; None where neither is given. Raises InvalidInput
        for an operand that is no constant."""
        listed = self.get(key) if key else None
        if listed is not None:
            return tuple(int(item) for item in listed) if isinstance(listed, tuple) else (int(listed),)
        if not self.present(number):
            return None
        elements = self.numbers(number)
        if elements is None:
            raise self.fault(ConstantNeeded(self.op.name, self.op.operands[number]))
        return tuple(int(item) for item in elements)

    def axes(self, number: int, rank: int, key: str = "axes") -> tuple[int, ...] | None:
        """``integers``, as dimensions counted from 0."""
        listed = self.integers(number, key)
        return None if listed is None else tuple(axis % rank for axis in listed)

    def axis(self, default: int, *, key: str = "axis", number: int = 0) -> int:
        """Attribute ``key`` as a dimension of tensor ``number``, counted from 0."""
        return int(self.get(key, default)) % max(1, self.rank(number))


Emitter: TypeAlias = Callable[[Call], str]


def number_text(value: float) -> str:
    """A number as Python reads it: the shortest text whose IEEE single is that of ``value``."""
    if value != value or value in (float("inf"), float("-inf")):
        return f'float("{value}")'
    return repr(decimal(value))


def decimal(value: float) -> float:
    """The shortest decimal number whose IEEE single is that of ``value``, which attributes are rounded to."""
    rounded = single(value)
    return next(found for digits in range(1, 18) if single(found := float(f"{rounded:.{digits}g}")) == rounded)


def listed(numbers: Sequence[int]) -> str:
    """A tuple as Python spells it."""
    return repr(tuple(int(number) for number in numbers))


__all__ = ["DTYPES", "NEWEST", "Call", "Emitter", "decimal", "listed", "number_text"]
