"""Attributes: compile-time constants on ops, functions and modules.

An attribute knows its kind, so that ``1`` and ``1.0`` differ and an empty list keeps its element kind. ``floats`` are
IEEE single, as in ONNX: the constructor rounds, the printer writes the shortest text that reads back the same.

Invariants: ``Attributes`` is sorted by key and keys are unique; every value is immutable and hashable.
"""

from __future__ import annotations

import enum
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ir.core.types import TensorType


class AttrKind(enum.Enum):
    """What an attribute holds; the Python value beside it."""

    INT = "int"  # int
    FLOAT = "float"  # float, exactly representable in IEEE single
    STRING = "string"  # str
    BYTES = "bytes"  # bytes that are not UTF-8 text
    TENSOR = "tensor"  # Dense
    TYPE = "type"  # Type
    SYMBOL = "symbol"  # str with sigil: "@mesh"
    INTS = "ints"  # tuple[int, ...]
    FLOATS = "floats"
    STRINGS = "strings"
    TENSORS = "tensors"
    TYPES = "types"


@dataclass(frozen=True, slots=True)
class Dense:
    """A small constant tensor: ``data`` is little-endian, row-major, sub-byte elements packed low nibble first, as
    ONNX's raw_data; for strings it is a tuple of UTF-8 bytes instead."""

    type: TensorType
    data: bytes | tuple[bytes, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Attribute:
    """One typed constant. Build with ``attr(value)`` where the kind follows from the Python value.

    Equal attributes have equal bits: 0.0 and -0.0 differ, as what an operator makes of them may."""

    kind: AttrKind
    value: Any

    def __post_init__(self) -> None:
        if self.kind is AttrKind.FLOAT:
            object.__setattr__(self, "value", single(self.value))
        elif self.kind is AttrKind.FLOATS:
            object.__setattr__(self, "value", tuple(single(v) for v in self.value))

    def __eq__(self, other: object) -> bool:
        if type(other) is not Attribute:
            return NotImplemented
        return self.kind is other.kind and (self.value,) == (other.value,) and self._signs() == other._signs()

    def __hash__(self) -> int:
        return hash((self.kind, self.value))

    def _signs(self) -> tuple[float, ...]:
        if self.kind is AttrKind.FLOAT:
            return (math.copysign(1.0, self.value),)
        return tuple(math.copysign(1.0, value) for value in self.value) if self.kind is AttrKind.FLOATS else ()


def single(value: float) -> float:
    """``value`` rounded to IEEE single; one object for every NaN, so that equality of attributes is structural."""
    if math.isnan(value):
        return math.nan
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    return rounded


def decimal(value: float) -> float:
    """The shortest decimal number whose IEEE single is that of ``value``: 0.9 of the single next to it."""
    rounded = single(value)
    if not math.isfinite(rounded):
        return rounded
    return next(number for digits in range(1, 18) if single(number := float(f"{rounded:.{digits}g}")) == rounded)


Attributes: TypeAlias = tuple[tuple[str, Attribute], ...]


def attr(value: Any) -> Attribute:
    """The attribute whose kind follows from the Python value.

    A ``str`` is text, never a symbol (build ``Attribute(AttrKind.SYMBOL, "@mesh")``); an empty list has no kind of its
    own: ValueError.
    """
    match value:
        case Attribute():
            return value
        case bool() | int():
            return Attribute(AttrKind.INT, int(value))
        case float():
            return Attribute(AttrKind.FLOAT, value)
        case str():
            return Attribute(AttrKind.STRING, value)
        case bytes():
            return Attribute(AttrKind.BYTES, value)
        case Dense():
            return Attribute(AttrKind.TENSOR, value)
        case list() | tuple() if value:
            kinds = {attr(v).kind for v in value}
            if len(kinds) == 1 and (kind := _LIST_OF.get(kinds.pop())):
                return Attribute(kind, tuple(value))
        case list() | tuple():
            raise ValueError("an empty list needs an explicit kind: Attribute(AttrKind.INTS, ())")
    return Attribute(AttrKind.TYPE, value)


_LIST_OF = {
    AttrKind.INT: AttrKind.INTS,
    AttrKind.FLOAT: AttrKind.FLOATS,
    AttrKind.STRING: AttrKind.STRINGS,
    AttrKind.TENSOR: AttrKind.TENSORS,
    AttrKind.TYPE: AttrKind.TYPES,
}


def attributes(values: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), /, **more: Any) -> Attributes:
    """Sorted attributes from plain Python values."""
    merged = {**dict(values), **more}
    return tuple((key, attr(merged[key])) for key in sorted(merged))
