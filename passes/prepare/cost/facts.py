"""What a cost formula sees of an op, and what it says about it.

``OpFacts`` gives shapes as plain numbers: dimensions that no number is known for were replaced before (``CostPass``). ``Work``
is a formula's answer; bytes that it leaves out are those of all operands and results.

Conventions: a multiply-add is 2 flops; a comparison, an arithmetic operation or a conversion of one element is 1; a
transcendental function is ``TRANSCENDENTAL``. Gradients exist of floating-point results for floating-point operands only. Where
weights are marked as trained, an op has only the gradients that lead to one, and where none does it saves nothing; where none
is marked, a resource of one element is a constant, not a weight to train. ``saved`` looks at one op alone: a tensor that two
ops keep counts twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from ir.core.ops import Op
from ir.core.types import DType, TensorType, Type, type_bytes
from ir.layout_rules import Numbers

TRANSCENDENTAL = 10
"""Flops of exp, tanh, erf...: range reduction and a polynomial of degree 5 to 6, as vector libraries do it (Cephes)."""


BILINEAR = frozenset({"onnx.Conv", "onnx.ConvTranspose", "onnx.Gemm", "onnx.MatMul", "onnx.Mul"})
"""Ops that multiply their first two operands: the gradient of one is made with the other."""


@dataclass(frozen=True, slots=True)
class Work:
    """A formula's answer, in flops and bytes. ``None``: all operands' bytes, all results', the resources' among them."""

    kind: str
    flops: int = 0
    input_grad: int = 0
    weight_grad: int = 0
    saved: int = 0
    read: int | None = None
    write: int | None = None
    weight: int | None = None
    scalar: int = 0


@dataclass(frozen=True, slots=True)
class OpFacts:
    """An op with the types of its operands (None for an absent one) and results, dimensions all numbers.

    Reads past the last operand or result give an absent one, whose shape is ``()`` and size 0."""

    op: Op
    operands: tuple[Type | None, ...]
    results: tuple[Type, ...]
    learns: tuple[bool, ...] | None = None
    """Of each operand, whether a training step needs its gradient; None where nothing says what is trained: then all do that
    can have one."""
    constants: tuple[Numbers | None, ...] = ()
    """Of each operand that is a small constant, its elements."""

    def type(self, index: int) -> Type | None:
        """Type of operand ``index``; of result ``-1 - index`` for a negative one (-1 is the first result)."""
        if index >= 0:
            return self.operands[index] if index < len(self.operands) else None
        return self.results[-1 - index] if -index <= len(self.results) else None

    def shape(self, index: int) -> tuple[int, ...]:
        type_ = self.type(index)
        if isinstance(type_, TensorType) and type_.shape is not None:
            return tuple(dim for dim in type_.shape if isinstance(dim, int))
        return ()

    def size(self, index: int) -> int:
        """Elements; 0 when absent."""
        return math.prod(self.shape(index)) if self.type(index) is not None else 0

    def bytes(self, index: int) -> int:
        type_ = self.type(index)
        return (type_bytes(type_) or 0) if type_ is not None else 0

    def present(self, index: int) -> bool:
        return self.type(index) is not None

    def is_float(self, index: int) -> bool:
        type_ = self.type(index)
        return isinstance(type_, TensorType) and type_.dtype.is_float

    def is_resource(self, index: int) -> bool:
        return 0 <= index < len(self.op.operands) and self.op.operands[index].startswith("@")

    def trainable(self, index: int) -> bool:
        """Whether a gradient of this operand is a weight's."""
        trains = self.size(index) > 1 if self.learns is None else self.needs(index)
        return self.is_resource(index) and self.is_float(index) and trains

    def needs(self, index: int) -> bool:
        """Whether the gradient of this operand is needed, if it has one."""
        return self.learns is None or self.learns[index]

    def has_gradient(self) -> bool:
        return any(self.is_float(-1 - i) for i in range(len(self.results)))

    def activations(self) -> int:
        """Bytes of the distinct floating-point operands that are no resources; of the two that an op multiplies, those by which
        the gradient of the other is made."""
        needed = [i for i in range(len(self.op.operands)) if self.op.name not in BILINEAR or (i < 2 and self.needs(1 - i))]
        first = {name: i for i in reversed(needed) if (name := self.op.operands[i]) and not name.startswith("@")}
        return sum(self.bytes(i) for i in first.values() if self.is_float(i))

    def number(self, index: int) -> int | float | None:
        """Operand ``index``, where it is a constant of one element."""
        found = self.constants[index] if index < len(self.constants) else None
        return found[0] if found is not None and len(found) == 1 else None

    def numbers(self, index: int, key: str) -> Numbers:
        """Operand ``index``, where it is a small constant, or else the attribute ``key``; empty where there is neither."""
        found = self.constants[index] if index < len(self.constants) else None
        return found if found is not None else self.ints(key)

    def ints(self, key: str, default: tuple[int, ...] = ()) -> tuple[int, ...]:
        value = self.op.get(key)
        return tuple(value) if value is not None else default


Formula: TypeAlias = Callable[[OpFacts], Work]
"""Raises LookupError, TypeError, ValueError or ZeroDivisionError where the shapes are not those of a valid op, which is then
counted by its bytes."""


def rounds_rows(facts: OpFacts) -> bool:
    """Whether a product by a packed weight (``MatMulNBits`` and kin) rounds its rows of f32 to 8 bits: ``accuracy_level`` 4."""
    made = facts.type(-1)
    return facts.op.get("accuracy_level", 0) == 4 and isinstance(made, TensorType) and made.dtype is DType.F32


def split_gradients(facts: OpFacts, flops: dict[int, int]) -> tuple[int, int]:
    """Flops of the gradients of operands, by operand, as (of inputs, of weights); what has no gradient is dropped."""
    if not facts.has_gradient():
        return 0, 0
    inputs = sum(n for i, n in flops.items() if facts.is_float(i) and not facts.is_resource(i) and facts.needs(i))
    return inputs, sum(n for i, n in flops.items() if facts.trainable(i))
