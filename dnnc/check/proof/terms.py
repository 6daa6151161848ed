"""Terms: expressions over operators, each distinct one with a number.

Two expressions are one term if and only if they have the same structure: operator, version, attributes, operands. Names of
values and nodes do not count. A region (of If, Loop, Scan) is part of its op's structure; values that it captures are operands
of the op, behind its own, so that a captured name means the value that the scope gives it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from dnnc.onnx.opdefs import operator_of
from dnnc.onnx.schemas import since_version
from ir.core.attributes import Dense
from ir.core.ops import Op, Region
from ir.core.types import DType, TensorType
from ir.layout_rules import Numbers, numbers_of
from ir.ops.grads import GRAD_OPS
from ir.ops.operators import RANDOM, TRAINING_OPERAND, has

Key: TypeAlias = tuple[Any, ...]
ABSENT = -1
"""The operand that is not given."""
CONSTANT = "onnx.Constant"


class Terms:
    """Numbers of distinct keys, from 0."""

    def __init__(self) -> None:
        self.keys: list[Key] = []
        self._numbers: dict[Key, int] = {}

    def number(self, key: Key) -> int:
        """The number of a key, a new one if it has none."""
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.keys)
            self.keys.append(key)
        return number

    def find(self, key: Key) -> int | None:
        """The number of a key; None if it has none."""
        return self._numbers.get(key)


@dataclass(frozen=True, slots=True)
class Content:
    """A constant: its type in numbers and a digest of its bytes; ``data``: the bytes of a small one."""

    dtype: DType
    shape: tuple[int, ...]
    digest: bytes
    data: bytes | tuple[bytes, ...] | None = None

    @property
    def key(self) -> Key:
        return self.dtype, self.shape, self.digest

    def numbers(self) -> Numbers | None:
        """Its elements, if there are few."""
        return None if self.data is None else numbers_of(Dense(TensorType(self.dtype, self.shape), self.data))


_SMALL = 4096
"""Bytes of a constant that is kept."""


def content(dtype: DType, shape: Sequence[int], data: Any) -> Content:
    """The content of a constant with these bytes (or strings)."""
    digest = hashlib.blake2b(digest_size=20)
    if isinstance(data, tuple):
        for text in data:
            digest.update(len(text).to_bytes(8, "little") + text)
        return Content(dtype, tuple(shape), digest.digest(), data)
    digest.update(data)
    return Content(dtype, tuple(shape), digest.digest(), bytes(data) if len(data) <= _SMALL else None)


def content_of(dense: Dense) -> Content:
    """The content of a dense constant."""
    shape = tuple(dim for dim in dense.type.shape or () if isinstance(dim, int))
    return content(dense.type.dtype, shape, dense.data)


def constant_of(op: Op) -> Dense | None:
    """The tensor of an ``onnx.Constant``, however it states it; None for another form."""
    for key, attribute in op.attributes:
        value = attribute.value
        match key:
            case "value" if isinstance(value, Dense):
                return value
            case "value_int":
                return Dense(TensorType(DType.I64, ()), struct.pack("<q", value))
            case "value_float":
                return Dense(TensorType(DType.F32, ()), struct.pack("<f", value))
            case "value_ints":
                return Dense(TensorType(DType.I64, (len(value),)), struct.pack(f"<{len(value)}q", *value))
            case "value_floats":
                return Dense(TensorType(DType.F32, (len(value),)), struct.pack(f"<{len(value)}f", *value))
            case "value_string":
                return Dense(TensorType(DType.STRING, ()), (value.encode(),))
            case "value_strings":
                return Dense(TensorType(DType.STRING, (len(value),)), tuple(text.encode() for text in value))
    return None


def version(op: Op, opsets: Mapping[str, int]) -> int | None:
    """The opset that last changed the operator of ``op``, where a module or model states these ``opsets`` (by domain, ``onnx``
    for the default one); None for an operator that is not known. Ops of ``grad`` have one version."""
    if op.dialect == "grad":
        return 0 if op.name in GRAD_OPS else None
    if op.dialect != "onnx":
        return None
    domain, operator = operator_of(op.name)
    opset = opsets.get(domain or "onnx")
    return None if opset is None else since_version(operator, opset, domain)


def op_key(op: Op, number: int | None, operands: Sequence[int], structure: Key = ()) -> Key:
    """The key of an application of ``op`` in version ``number`` to the terms ``operands``; ``structure``: of its regions."""
    given = list(operands)
    while given and given[-1] == ABSENT:
        given.pop()
    results = [bool(value.name) for value in op.results]
    while results and not results[-1]:
        results.pop()
    return "op", op.name, number, op.attributes, tuple(given), structure, tuple(results)


def constant_key(contents: Sequence[Content]) -> Key:
    """The key of a constant that may be another on each member of a unit: ``contents`` in the order of members."""
    return "constant", tuple(one.key for one in contents)


def structure_of(
    op: Op, opsets: Mapping[str, int], resolve: Callable[[str], int]
) -> tuple[Key, tuple[int, ...], tuple[str, ...]]:
    """The structure of an op's regions, the terms that they capture, and operators in them that are not known (or draw random
    numbers: ``?``). ``resolve``: the term of a name outside."""
    if not op.regions:
        return (), (), ()
    walk = _Regions(opsets, resolve)
    structure = tuple((key, walk.region(region, {})) for key, region in sorted(op.regions, key=lambda item: item[0]))
    return structure, tuple(walk.captured), tuple(dict.fromkeys(walk.unknown))


class _Regions:
    """Structures of regions: names inside are numbered in order, names from outside by first use."""

    def __init__(self, opsets: Mapping[str, int], resolve: Callable[[str], int]) -> None:
        self.opsets, self.resolve = opsets, resolve
        self.captured: dict[int, int] = {}
        self.unknown: list[str] = []
        self.count = 0

    def region(self, region: Region, outer: Mapping[str, int]) -> Key:
        names = dict(outer)
        for value in region.args:
            self.assign(names, value.name)
        ops = []
        for op in region.ops:
            operands = tuple(self.name(name, names) for name in op.operands)
            inner = tuple((key, self.region(one, names)) for key, one in sorted(op.regions, key=lambda item: item[0]))
            known = version(op, self.opsets)
            if known is None or not is_determined(op):
                self.unknown.append(op.name)
            dense = constant_of(op) if op.name == CONSTANT else None
            attributes: Any = op.attributes if dense is None else content_of(dense).key
            ops.append((op.name, known, attributes, operands, inner, tuple(bool(value.name) for value in op.results)))
            for value in op.results:
                self.assign(names, value.name)
        return len(region.args), tuple(ops), tuple(self.name(name, names) for name in region.results)

    def assign(self, names: dict[str, int], name: str) -> None:
        self.count += 1
        names[name] = self.count

    def name(self, name: str, names: Mapping[str, int]) -> Any:
        if not name:
            return None
        if name in names:
            return names[name]
        term = self.resolve(name)
        return "captured", self.captured.setdefault(term, len(self.captured))


def unknown_of(op: Op, number: int | None, inside: Sequence[str]) -> str:
    """Why nothing can be said of what ``op`` in version ``number`` makes, empty where it can; ``inside``: operators in its
    regions of which that is so."""
    if number is None:
        return f"{op.name} has no definition"
    if not is_determined(op):
        return f"{op.name} draws random numbers"
    return f"{inside[0]} inside it has no definition, or draws random numbers" if inside else ""


def is_determined(op: Op) -> bool:
    """Whether equal operands give equal results: the operator draws no random numbers in this form."""
    if not has(op, RANDOM):
        return True
    switch = TRAINING_OPERAND.get(op.name)
    return switch is not None and (len(op.operands) <= switch or not op.operands[switch])
