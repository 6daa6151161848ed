"""What is added to a step of a decoder: constants, and ops ahead of all others that compute with ``position``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ir.core.attributes import attributes
from ir.core.module import Inline, Module, Resource
from ir.core.names import unique
from ir.core.ops import Op, Value
from ir.core.types import DType, TensorType

I64 = DType.I64


class StepWriter:
    """``batch``, ``step`` (s) and ``context``: sequences of a group, tokens of a step, positions of a cache. ``position``: the
    argument ``[B]``; ``column``: the same as ``[B, 1]``. ``made`` and ``ahead``: resources and ops so far."""

    def __init__(self, module: Module, batch: int, step: int, context: int) -> None:
        self.batch, self.step, self.context = batch, step, context
        func = module.entry
        self.taken = {symbol.name for symbol in module.symbols}
        self.names = {arg.name for arg in func.args} | {value.name for op in func.ops for value in op.results}
        self.made: list[Resource] = []
        self.ahead: list[Op] = []
        self.position = Value(unique("%position", self.names), TensorType(I64, (batch,)))
        axis = self.constant("axis", [1])
        self.column = self.op("onnx.Unsqueeze", "position.column", (self.position.name, axis), (batch, 1))

    def places(self) -> str:
        """``[B, s]``: the position of each token of the step."""
        steps = self.constant("steps", np.arange(self.step).reshape(1, -1))
        return self.op("onnx.Add", "positions", (self.column, steps), (self.batch, self.step))

    def after(self) -> str:
        """``[B, 1]``: the position behind the step."""
        return self.op("onnx.Add", "position.after", (self.column, self.constant("step", [self.step])), (self.batch, 1))

    def slots(self, rank: int) -> str:
        """``[1, .., context]``: the number of each slot of a cache."""
        return self.constant(f"slots.{rank}", np.arange(self.context).reshape(*[1] * (rank - 1), -1))

    def constant(self, name: str, values: Sequence[int] | NDArray[np.int64], dtype: DType = I64) -> str:
        """A resource of integers; its name. Asked for again under one name, the same."""
        array = np.asarray(values, {DType.I64: "<i8", DType.I32: "<i4"}[dtype])
        return self.resource(f"@decoding.{name}", TensorType(dtype, array.shape), array.tobytes())

    def resource(self, name: str, type_: TensorType, data: bytes) -> str:
        if (same := next((one for one in self.made if one.name == name and one.data == Inline(data)), None)) is not None:
            return same.name
        self.made.append(Resource(unique(name, self.taken), type_, Inline(data)))
        return self.made[-1].name

    def op(
        self,
        kind: str,
        name: str,
        operands: Sequence[str],
        shape: tuple[int, ...],
        dtype: DType = I64,
        **fields: int | tuple[int, ...],
    ) -> str:
        """Adds an op ahead of all others; the name of its result. Asked for again under one name, the same."""
        known = next((one for one in self.ahead if one.results[0].name == f"%decoding.{name}"), None)
        if known is not None:
            return known.results[0].name
        self.add(kind, unique(f"%decoding.{name}", self.names), operands, TensorType(dtype, shape), **fields)
        return self.ahead[-1].results[0].name

    def add(self, kind: str, name: str, operands: Sequence[str], type_: TensorType, **fields: int | tuple[int, ...]) -> None:
        self.ahead.append(Op(kind, tuple(operands), (Value(name, type_),), attributes(**fields)))
