"""Constants of a module as canonicalize sees them: small enough to hold, or one value repeated.

A constant is a resource whose data stand in the module (``Inline``) or are one value (``Splat``) and that is not trained
(it has no optimizer state, and no ``grad.assign`` writes it); weights in files are never read. ``Dense`` is the form that
evaluation takes and gives.

Invariants: a new resource has a static type; a tensor of one repeated value is stored as ``Splat`` from ``SPLAT_FROM``
elements up, whatever its size.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from ir.core.attributes import Dense
from ir.core.facets import OptimizerState
from ir.core.module import Func, Inline, Module, Resource, ResourceData, Splat
from ir.core.names import unique
from ir.core.types import DType, TensorType, Type, type_bytes
from ir.ops.grads import written_resources
from ir.text.dense import dense_data, element_texts

SPLAT_FROM = 17
"""Elements from which a tensor of equal elements is stored as one value."""
MERGED_BYTES = 1024
"""Equal constants up to this size become one; larger ones may be weights that only happen to be equal."""


@dataclass(slots=True)
class Constants:
    """The constants of a module, and those made on the way. ``limit``: bytes above which data are not spelled out; ``made``:
    bytes of all that were; ``repeated``: bytes of tensors of one value."""

    module: Module
    limit: int
    resources: dict[str, Resource] = field(init=False)
    taken: set[str] = field(init=False)
    written: set[str] = field(init=False)
    made: int = 0
    repeated: int = 0
    _dense: dict[str, Dense | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.resources = self.module.resources
        self.taken = {symbol.name for symbol in self.module.symbols}
        self.written = {name for func in self.module.of_type(Func) for name in written_resources(func.ops)}

    def dense(self, name: str) -> Dense | None:
        """The elements of constant ``name``; None where it is none, or too large."""
        if name not in self._dense:
            resource = self._constant(name)
            self._dense[name] = self._read(resource) if resource is not None else None
        return self._dense[name]

    def _constant(self, name: str) -> Resource | None:
        """The resource of this name, unless training changes it."""
        resource = self.resources.get(name)
        trained = resource is not None and any(isinstance(facet, OptimizerState) for facet in resource.facets)
        return None if trained or name in self.written else resource

    def _read(self, resource: Resource) -> Dense | None:
        type_ = resource.type
        if not isinstance(type_, TensorType) or type_.sparse or type_.elements is None:
            return None
        if (type_bytes(type_) or 0) > self.limit:
            return None
        if isinstance(resource.data, Inline):
            return Dense(type_, resource.data.data)
        if isinstance(resource.data, Splat) and holds(type_.dtype, resource.data.value):
            return Dense(type_, splat_data(type_.dtype, resource.data.value, type_.elements))
        return None

    def splat(self, name: str) -> int | float | None:
        """The one value that every element of constant ``name`` has; None where they differ or are not known."""
        resource = self._constant(name)
        if resource is None or not isinstance(resource.type, TensorType):
            return None
        if isinstance(resource.data, Splat):
            return resource.data.value
        if resource.type.elements == 1 and (dense := self.dense(name)) is not None:
            return first_value(dense)
        return None

    def ints(self, name: str) -> tuple[int, ...] | None:
        """The elements of an integer or boolean constant."""
        dense = self.dense(name)
        return None if dense is None else dense_ints(dense)

    def add(self, result: str, type_: TensorType, data: Dense | int | float) -> str:
        """A new resource for what the value ``result`` held; its name."""
        name = unique(f"@{result[1:]}", self.taken)
        stored: Inline | Splat
        if isinstance(data, Dense):
            value = repeated_value(data)
            stored = Inline(data.data) if value is None else Splat(value)
            self.made += type_bytes(data.type) or 0
        else:
            stored = Splat(data)
            self.repeated += type_bytes(type_) or 0
        self.resources[name] = Resource(name, type_, stored)
        return name


def dense_ints(dense: Dense) -> tuple[int, ...] | None:
    """Elements of an integer or boolean tensor of whole bytes, else None."""
    dtype = dense.type.dtype
    if not isinstance(dense.data, bytes) or not (dtype.is_integer or dtype is DType.BOOL) or dtype.bits < 8:
        return None
    size, signed = dtype.bits // 8, dtype.value[0] == "i"
    data = dense.data
    return tuple(int.from_bytes(data[i : i + size], "little", signed=signed) for i in range(0, len(data), size))


def ints_dense(values: Iterable[int], *, scalar: bool = False) -> Dense:
    """A 1-D tensor of these integers of 64 bits (0-D when ``scalar``)."""
    items = tuple(values)
    data = b"".join(value.to_bytes(8, "little", signed=True) for value in items)
    return Dense(TensorType(DType.I64, () if scalar else (len(items),)), data)


def holds(dtype: DType, value: int | float) -> bool:
    """Whether ``value`` is an element of ``dtype``."""
    try:
        splat_data(dtype, value, 1)
    except ValueError:
        return False
    return True


def splat_data(dtype: DType, value: int | float, count: int) -> bytes | tuple[bytes, ...]:
    """Bytes of ``count`` elements of ``value``. Raises ValueError for a value that ``dtype`` cannot hold."""
    text = ("true" if value else "false") if dtype is DType.BOOL else str(value)
    if dtype.bits >= 8:
        one = dense_data(dtype, [text])
        return one * count
    return dense_data(dtype, [text] * count)


def first_value(dense: Dense) -> int | float | None:
    """The first element as ``Splat`` holds it, or None where that would not give the same bytes back."""
    dtype = dense.type.dtype
    if not isinstance(dense.data, bytes) or dtype.bits < 8 or dtype in (DType.C64, DType.C128) or not dense.data:
        return None
    one = dense.data[: dtype.bits // 8]
    texts = element_texts(dtype, one, 1)
    if texts is None:
        return None
    if dtype is DType.BOOL:
        return int(texts[0] == "true")
    value = int(texts[0]) if dtype.is_integer else float(texts[0])
    return None if isinstance(value, float) and math.isnan(value) else value


def repeated_value(dense: Dense) -> int | float | None:
    """The value that all of at least ``SPLAT_FROM`` elements have, else None."""
    size = dense.type.dtype.bits // 8
    if not isinstance(dense.data, bytes) or size == 0 or len(dense.data) < SPLAT_FROM * size:
        return None
    if dense.data != dense.data[:size] * (len(dense.data) // size):
        return None
    return first_value(dense)


def constant_dense(op_attributes: dict[str, object]) -> Dense | None:
    """The value of an ``onnx.Constant`` by its attributes, or None for one that is no dense tensor."""
    for key, value in op_attributes.items():
        match key:
            case "value" if isinstance(value, Dense):
                return value
            case "value_int" if isinstance(value, int):
                return ints_dense([value], scalar=True)
            case "value_ints" if isinstance(value, tuple):
                return ints_dense(value)
            case "value_float" if isinstance(value, float):
                return Dense(TensorType(DType.F32, ()), struct.pack("<f", value))
            case "value_floats" if isinstance(value, tuple):
                return Dense(TensorType(DType.F32, (len(value),)), struct.pack(f"<{len(value)}f", *value))
            case "value_string" if isinstance(value, str | bytes):
                return Dense(TensorType(DType.STRING, ()), (_encoded(value),))
            case "value_strings" if isinstance(value, tuple):
                return Dense(TensorType(DType.STRING, (len(value),)), tuple(map(_encoded, value)))
    return None


def _encoded(text: object) -> bytes:
    return text if isinstance(text, bytes) else str(text).encode()


def equal_constants(resources: Iterable[Resource]) -> dict[str, str]:
    """For each small constant with an equal one before it, that one's name."""
    first: dict[tuple[Type, ResourceData], str] = {}
    found: dict[str, str] = {}
    for resource in resources:
        size = type_bytes(resource.type)
        if isinstance(resource.data, Inline | Splat) and size is not None and size <= MERGED_BYTES and not resource.facets:
            # A Splat of -0.0 equals one of 0.0 for Python.
            data = resource.data if isinstance(resource.data, Inline) else Inline(repr(resource.data.value).encode())
            kept = first.setdefault((resource.type, data), resource.name)
            if kept != resource.name:
                found[resource.name] = kept
    return found
