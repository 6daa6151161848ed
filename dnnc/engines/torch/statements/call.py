"""``Call``: the view of one op that an emitter gets: Python names of operands, types, known constants, attributes.

An emitter takes a ``Call`` and returns one Python expression: a tensor, or a tuple of tensors for an op with several results.
Methods take tensors by number, as cost formulas do: ``i`` is operand i, ``-1 - j`` is result j.
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
"""Element type -> name in torch, for the types that torch holds as a tensor's dtype."""

NEWEST = 24
"""The opset assumed for a module that states none."""


@dataclass(frozen=True, slots=True)
class Call:
    """One op to be written. ``names``: of the operands in Python, None where absent. ``types``: name in the IR -> type of each
    operand. ``constants``: name in the IR -> elements of each small operand whose value is known."""

    op: Op
    names: tuple[str | None, ...]
    types: Mapping[str, Type]
    constants: Mapping[str, Numbers] = field(default_factory=dict)
    opset: int = NEWEST

    def fault(self, fault: Fault) -> InvalidInput:
        """An error with this fault at the op's location."""
        location = self.op.location
        where = f"{location.path}: {location.node}" if location.node else self.op.id
        return InvalidInput(fault, where=where)

    # -- operands and results ------------------------------------------------------------------------------------------

    def present(self, number: int) -> bool:
        return number < len(self.names) and self.names[number] is not None

    def arg(self, number: int) -> str:
        """The Python name of operand ``number``; the text ``None`` where it is absent."""
        return str(self.names[number]) if number < len(self.names) else "None"

    @property
    def args(self) -> list[str]:
        """The Python names of the operands that are present."""
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
        """Raises InvalidInput where a dimension is symbolic or unknown."""
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
        """The tensor's element type in Python, such as ``torch.float32``. Raises InvalidInput where torch has none."""
        return self.torch_dtype(self.type(number).dtype)

    def torch_dtype(self, dtype: DType) -> str:
        if dtype not in DTYPES:
            raise self.fault(NoElementType(dtype.value))
        return f"torch.{DTYPES[dtype]}"

    def is_float(self, number: int) -> bool:
        return self.type(number).dtype.is_float

    @property
    def wanted(self) -> list[bool]:
        """For each result, whether the model uses it: an unused result has no name."""
        return [bool(value.name) for value in self.op.results]

    # -- attributes and constants -------------------------------------------------------------------------------------

    def get(self, key: str, default: Any = None) -> Any:
        return self.op.get(key, default)

    def word(self, key: str, default: str, *allowed: str) -> str:
        """Attribute ``key`` as a quoted Python string. Raises InvalidInput for a word that is not ``allowed``."""
        word = self.get(key, default)
        if word not in allowed:
            raise self.fault(AttributeNotWritten(self.op.name, key, str(word), allowed))
        return f'"{word}"'

    def float(self, key: str, default: float) -> str:
        """Attribute ``key`` with the fewest digits that identify it as an IEEE single: 0.1, not 0.10000000149."""
        return number_text(float(self.get(key, default)))

    def numbers(self, number: int) -> Numbers | None:
        """The elements of operand ``number`` if it is a small constant, else None."""
        return self.constants.get(self.op.operands[number]) if number < len(self.op.operands) else None

    def integers(self, number: int, key: str = "") -> tuple[int, ...] | None:
        """Integers that ONNX has as attribute ``key`` in old opsets and as operand ``number`` in new ones; None where both are
        absent. Raises InvalidInput for an operand that is computed."""
        value = self.get(key) if key else None
        if value is not None:
            return tuple(int(item) for item in value) if isinstance(value, tuple) else (int(value),)
        if not self.present(number):
            return None
        elements = self.numbers(number)
        if elements is None:
            raise self.fault(ConstantNeeded(self.op.name, self.op.operands[number]))
        return tuple(int(item) for item in elements)

    def axes(self, number: int, rank: int, key: str = "axes") -> tuple[int, ...] | None:
        """As ``integers``, for axes of a tensor of this rank: negative ones are made non-negative."""
        axes = self.integers(number, key)
        return None if axes is None else tuple(axis % rank for axis in axes)

    def axis(self, default: int, *, key: str = "axis", number: int = 0) -> int:
        """Attribute ``key`` as a non-negative axis of tensor ``number``."""
        return int(self.get(key, default)) % max(1, self.rank(number))


Emitter: TypeAlias = Callable[[Call], str]


def number_text(value: float) -> str:
    """The shortest Python expression of a number that rounds to the same IEEE single as ``value``."""
    if value != value or value in (float("inf"), float("-inf")):
        return f'float("{value}")'
    return repr(decimal(value))


def decimal(value: float) -> float:
    """The number with the fewest decimal digits that rounds to the same IEEE single as ``value``: attributes are singles."""
    rounded = single(value)
    return next(short for digits in range(1, 18) if single(short := float(f"{rounded:.{digits}g}")) == rounded)


def listed(numbers: Sequence[int]) -> str:
    """A tuple of integers as Python text."""
    return repr(tuple(int(number) for number in numbers))
