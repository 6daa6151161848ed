"""Types of values: what a name in the IR may hold.

Every type is a frozen value object; two types are the same type exactly when they compare equal. ``str(type)`` is its
text in the IR and parses back to an equal type (``grammars/types.lark`` is the reference).

Invariants:
- A dimension is a number (>= 0), a symbol (a name such as ``batch`` or an expression over names such as ``2*seq + 1``),
  or ``None``: unknown and unnamed.
- ``TensorType.shape is None`` means that not even the rank is known; ``()`` is a scalar.
- A layout places the *full* tensor over a mesh: the shape beside it stays the global shape.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from ir.core.names import quote_dim, quote_symbol


class DType(enum.Enum):
    """Element types of ONNX; ``value`` is the spelling in the IR."""

    __hash__ = object.__hash__  # members are single: that of Enum, by name, runs in Python for every type that is hashed

    F64 = "f64"
    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    F8E4M3FN = "f8e4m3fn"
    F8E4M3FNUZ = "f8e4m3fnuz"
    F8E5M2 = "f8e5m2"
    F8E5M2FNUZ = "f8e5m2fnuz"
    F8E8M0 = "f8e8m0"
    F6E2M3 = "f6e2m3"
    F6E3M2 = "f6e3m2"
    F4E2M1 = "f4e2m1"
    I64 = "i64"
    I32 = "i32"
    I16 = "i16"
    I8 = "i8"
    I4 = "i4"
    I2 = "i2"
    U64 = "u64"
    U32 = "u32"
    U16 = "u16"
    U8 = "u8"
    U4 = "u4"
    U2 = "u2"
    BOOL = "bool"
    C64 = "c64"
    C128 = "c128"
    STRING = "string"

    @property
    def bits(self) -> int:
        """Bits of one element as stored by ONNX; a string counts as 0 (its size is not known from its type)."""
        return _ELEMENTS[self][2]

    @property
    def onnx_number(self) -> int:
        """The number of the type in ``onnx.TensorProto.DataType``."""
        return _ELEMENTS[self][0]

    @property
    def numpy_name(self) -> str:
        """The name of the type in numpy or ml_dtypes; ``string`` is an object array of str."""
        return _ELEMENTS[self][1]

    @property
    def is_float(self) -> bool:
        return self.value[0] == "f" or self is DType.BF16

    @property
    def is_integer(self) -> bool:
        return self.value[0] in "iu"


_ELEMENTS: Mapping[DType, tuple[int, str, int]] = {
    DType.F32: (1, "float32", 32),
    DType.U8: (2, "uint8", 8),
    DType.I8: (3, "int8", 8),
    DType.U16: (4, "uint16", 16),
    DType.I16: (5, "int16", 16),
    DType.I32: (6, "int32", 32),
    DType.I64: (7, "int64", 64),
    DType.STRING: (8, "string", 0),
    DType.BOOL: (9, "bool", 8),
    DType.F16: (10, "float16", 16),
    DType.F64: (11, "float64", 64),
    DType.U32: (12, "uint32", 32),
    DType.U64: (13, "uint64", 64),
    DType.C64: (14, "complex64", 64),
    DType.C128: (15, "complex128", 128),
    DType.BF16: (16, "bfloat16", 16),
    DType.F8E4M3FN: (17, "float8_e4m3fn", 8),
    DType.F8E4M3FNUZ: (18, "float8_e4m3fnuz", 8),
    DType.F8E5M2: (19, "float8_e5m2", 8),
    DType.F8E5M2FNUZ: (20, "float8_e5m2fnuz", 8),
    DType.U4: (21, "uint4", 4),
    DType.I4: (22, "int4", 4),
    DType.F4E2M1: (23, "float4_e2m1fn", 4),
    DType.F8E8M0: (24, "float8_e8m0fnu", 8),
    DType.U2: (25, "uint2", 2),
    DType.I2: (26, "int2", 2),
    DType.F6E2M3: (27, "float6_e2m3fn", 6),
    DType.F6E3M2: (28, "float6_e3m2fn", 6),
}
"""Of each element type: ONNX's number, numpy's name, bits. The one table of them; other rooms ask ``DType``."""

ONNX_TYPES: Mapping[DType, int] = {
    dtype: dtype.onnx_number
    for dtype in DType
    if dtype.onnx_number <= DType.BF16.onnx_number and dtype not in (DType.STRING, DType.C64, DType.C128)
}
"""The numbers of real numbers and truth values of 8 bits and more in ONNX, as Cast's ``to`` spells them."""

Dim: TypeAlias = int | str | None


@dataclass(frozen=True, slots=True)
class Shard:
    """The mesh axis splits tensor dimension ``dim``."""

    dim: int

    def __str__(self) -> str:
        return f"S({self.dim})"


@dataclass(frozen=True, slots=True)
class Replicate:
    """Every device along the mesh axis holds the same data."""

    def __str__(self) -> str:
        return "R"


REDUCTIONS = ("sum", "max")


@dataclass(frozen=True, slots=True)
class Partial:
    """Devices along the mesh axis hold terms of a reduction that has not been done yet: one of ``REDUCTIONS``."""

    reduction: str = "sum"

    def __str__(self) -> str:
        return f"P({self.reduction})"


Placement: TypeAlias = Shard | Replicate | Partial


@dataclass(frozen=True, slots=True)
class Layout:
    """How a tensor lies on ``mesh`` (a symbol, ``@name``): one placement per mesh axis, in axis order."""

    mesh: str
    placements: tuple[Placement, ...]

    def __str__(self) -> str:
        return f"{quote_symbol(self.mesh)}[{', '.join(map(str, self.placements))}]"


@dataclass(frozen=True, slots=True)
class TensorType:
    """A tensor, dense unless ``sparse``."""

    dtype: DType
    shape: tuple[Dim, ...] | None = None
    layout: Layout | None = None
    sparse: bool = False

    @property
    def elements(self) -> int | None:
        """Number of elements, or None while a dimension is symbolic or unknown."""
        if self.shape is None:
            return None
        total = 1
        for dim in self.shape:
            if not isinstance(dim, int):
                return None
            total *= dim
        return total

    @property
    def nbytes(self) -> int | None:
        """Bytes of the full tensor, sub-byte elements packed; None while a dimension is symbolic or unknown."""
        elements = self.elements
        return None if elements is None else -(-elements * self.dtype.bits // 8)

    def __str__(self) -> str:
        # `2x128xf32` while all dimensions are numbers; spaces around the `x` as soon as one is a name.
        if self.shape is None:
            body = f"*x{self.dtype.value}"
        elif all(isinstance(dim, int) for dim in self.shape):
            body = "x".join([*map(str, self.shape), self.dtype.value])
        else:
            body = " x ".join([*(quote_dim(dim) for dim in self.shape), self.dtype.value])
        layout = f", {self.layout}" if self.layout else ""
        return f"{'sparse' if self.sparse else 'tensor'}<{body}{layout}>"


@dataclass(frozen=True, slots=True)
class SeqType:
    """An ONNX sequence of values of one type."""

    element: Type

    def __str__(self) -> str:
        return f"seq<{self.element}>"


@dataclass(frozen=True, slots=True)
class OptionalType:
    """An ONNX optional: a value or nothing."""

    element: Type

    def __str__(self) -> str:
        return f"optional<{self.element}>"


@dataclass(frozen=True, slots=True)
class MapType:
    """An ONNX map (ai.onnx.ml)."""

    key: DType
    value: Type

    def __str__(self) -> str:
        return f"map<{self.key.value}, {self.value}>"


@dataclass(frozen=True, slots=True)
class BytesType:
    """An opaque message of ``size`` bytes: the values of workloads that have no tensors."""

    size: int

    @property
    def nbytes(self) -> int:
        return self.size

    def __str__(self) -> str:
        return f"bytes<{self.size}>"


@dataclass(frozen=True, slots=True)
class UnknownType:
    """Nothing is known: a result of an opaque op that no inference reached."""

    def __str__(self) -> str:
        return "unknown"


Type: TypeAlias = TensorType | SeqType | OptionalType | MapType | BytesType | UnknownType

UNKNOWN = UnknownType()


def without_layout(type_: Type) -> Type:
    """The type of a value that is whole everywhere; ``type_`` itself where it has no layout."""
    if isinstance(type_, TensorType):
        return type_ if type_.layout is None else TensorType(type_.dtype, type_.shape, None, type_.sparse)
    if isinstance(type_, SeqType | OptionalType):
        element = without_layout(type_.element)
        return type_ if element is type_.element else replace(type_, element=element)
    if isinstance(type_, MapType):
        value = without_layout(type_.value)
        return type_ if value is type_.value else replace(type_, value=value)
    return type_


def type_bytes(type_: Type) -> int | None:
    """Bytes of a value of this type, or None where the type does not tell."""
    return type_.nbytes if isinstance(type_, TensorType | BytesType) else None
