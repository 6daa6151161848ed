"""``Graph``: builds a function of ONNX ops for a zoo model, with names, types and random weights.

Every value has its full type, so that a zoo model needs no shape inference. Every weight is a seeded ``Random`` resource: its
elements are drawn only when it is written to a file. Its seed follows from the model's seed and the weight's name, so adding a
layer changes no weight of another layer.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ir.core.attributes import attributes
from ir.core.module import Declared, Func, Inline, Module, Random, Resource, ResourceData, Splat
from ir.core.ops import Location, Op, Value
from ir.core.types import DType, TensorType

OPSET = 20
BLOCK = 32
"""Elements of a 4-bit weight that share a scale."""


class Graph:
    """Collects ops and weights. Methods take and return values and weights by name with sigil (``%x``, ``@w``)."""

    def __init__(self, name: str, dtype: DType, seed: int, *, packed: bool = False) -> None:
        """``packed``: the weights of ``linear`` have 4 bits an element."""
        self.name, self.dtype, self.seed, self.packed = name, dtype, seed, packed
        self.parameters = 0
        """Number of trainable elements."""
        self._ops: list[Op] = []
        self._args: list[Value] = []
        self._resources: dict[str, Resource] = {}
        self._types: dict[str, TensorType] = {}

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(dim for dim in self._types[name].shape or () if isinstance(dim, int))

    def has(self, name: str) -> bool:
        return name in self._types

    @property
    def wide(self) -> DType:
        """The element type for computations that need at least single precision."""
        return DType.F32 if self.dtype.bits < 32 else self.dtype

    # values and weights

    def input(self, name: str, shape: tuple[int, ...], dtype: DType | None = None) -> str:
        value = Value(f"%{name}", TensorType(dtype or self.dtype, shape))
        self._args.append(value)
        self._types[value.name] = TensorType(dtype or self.dtype, shape)
        return value.name

    def weight(self, name: str, shape: tuple[int, ...], scale: float, mean: float = 0.0, uniform: bool = False) -> str:
        """A trainable tensor of normally or uniformly distributed elements around ``mean``."""
        self.parameters += math.prod(shape)
        return self.buffer(name, shape, scale, mean, uniform)

    def buffer(
        self,
        name: str,
        shape: tuple[int, ...],
        scale: float,
        mean: float = 0.0,
        uniform: bool = False,
        dtype: DType | None = None,
    ) -> str:
        """As ``weight``, for a tensor that is not trained. ``dtype``: by default the model's."""
        seed = (self.seed << 32) | zlib.crc32(name.encode())
        kind = "uniform" if uniform else "normal"
        return self._resource(name, TensorType(dtype or self.dtype, shape), Random(kind, seed, scale, mean))

    def integers(self, name: str, values: list[int], scalar: bool = False, dtype: DType = DType.I64) -> str:
        """A constant of 64-bit integers, or 32-bit ones. A second call with the same name returns the first constant."""
        type_ = TensorType(dtype, () if scalar else (len(values),))
        code = "q" if dtype is DType.I64 else "i"
        return self._resource(name, type_, Inline(struct.pack(f"<{len(values)}{code}", *values)))

    def floats(self, name: str, values: list[float], shape: tuple[int, ...]) -> str:
        """A single-precision constant, whatever the model's element type."""
        return self._resource(name, TensorType(DType.F32, shape), Inline(struct.pack(f"<{len(values)}f", *values)))

    def fill(self, name: str, value: float, shape: tuple[int, ...] = ()) -> str:
        """A constant of the model's element type whose elements all are ``value``."""
        return self._resource(name, TensorType(self.dtype, shape), Splat(value))

    def _resource(self, name: str, type_: TensorType, data: ResourceData) -> str:
        symbol = f"@{name}"
        self._resources.setdefault(symbol, Resource(symbol, type_, data))
        self._types[symbol] = type_
        return symbol

    # ops

    def op(
        self, kind: str, name: str, operands: list[str], shape: tuple[int, ...], dtype: DType | None = None, **attrs: Any
    ) -> str:
        """Appends ``onnx.KIND`` with one result ``%name``. ``shape``, ``dtype``: of the result, by default the model's
        dtype."""
        return self.ops(kind, name, operands, [(name, shape)], dtype, **attrs)[0]

    def ops(
        self,
        kind: str,
        name: str,
        operands: list[str],
        results: Sequence[tuple[str, tuple[int, ...]]],
        dtype: DType | None = None,
        **attrs: Any,
    ) -> list[str]:
        """As ``op``, with several results."""
        values = tuple(Value(f"%{result}", TensorType(dtype or self.dtype, shape)) for result, shape in results)
        self._append(kind, name, operands, values, attrs)
        return [value.name for value in values]

    def _append(self, kind: str, name: str, operands: list[str], results: tuple[Value, ...], attrs: Mapping[str, Any]) -> None:
        for value in results:
            assert isinstance(value.type, TensorType)
            if value.name in self._types:
                raise AssertionError(f"two values named {value.name}")
            self._types[value.name] = value.type
        location = Location(self.name, f"/{name.replace('.', '/')}", name.rpartition(".")[0])
        self._ops.append(Op(f"onnx.{kind}", tuple(operands), results, attributes(attrs), location=location))

    def reshape(self, name: str, value: str, shape: tuple[int, ...]) -> str:
        target = self.integers(f"shape.{'x'.join(map(str, shape))}", list(shape))
        return self.op("Reshape", name, [value, target], shape, self._types[value].dtype)

    def transpose(self, name: str, value: str, perm: list[int]) -> str:
        shape = self.shape(value)
        permuted = tuple(shape[axis] for axis in perm)
        return self.op("Transpose", name, [value], permuted, self._types[value].dtype, perm=perm)

    def cast(self, name: str, value: str, dtype: DType) -> str:
        """Casts ``value``; returns it unchanged if it has that type already."""
        if self._types[value].dtype is dtype:
            return value
        return self.op("Cast", name, [value], self.shape(value), dtype, to=ELEMENT[dtype])

    def linear(self, name: str, value: str, outputs: int, gain: float = 1.0, *, bias: bool = True) -> str:
        """``value @ W + b`` over the last dimension. W has deviation ``gain / sqrt(inputs)``: with gain 1 values keep their
        scale."""
        *outer, inputs = self.shape(value)
        shape = (*outer, outputs)
        result = f"{name}.matmul" if bias else name
        if self.packed:
            product = self._packed_product(name, result, value, outputs, gain)
        else:
            weight = self.weight(f"{name}.weight", (inputs, outputs), gain / math.sqrt(inputs))
            product = self.op("MatMul", result, [value, weight], shape)
        if not bias:
            return product
        shift = self.weight(f"{name}.bias", (outputs,), 0.02)
        return self.op("Add", name, [product, shift], shape)

    def packed_weight(self, name: str, outer: tuple[int, ...], inputs: int, gain: float = 1.0, *, blocked: bool) -> list[str]:
        """A weight ``[*outer, inputs]`` as ``(n - 8) * scale`` with n from 0 to 15, two a byte, and a scale for each ``BLOCK``
        elements of a row. It has deviation ``gain / sqrt(inputs)``: that of n - 8 is 4.64. ``blocked``: blocks are a dimension
        of the bytes."""
        blocks, step = -(-inputs // BLOCK), gain / math.sqrt(inputs) / 4.64
        self.parameters += math.prod(outer) * inputs
        bytes_ = (*outer, blocks, BLOCK // 2) if blocked else (*outer, inputs // 2)
        return [
            self.buffer(f"{name}.qweight", bytes_, 128.0, 127.5, uniform=True, dtype=DType.U8),
            self.buffer(f"{name}.scales", (*outer, blocks), 0.2 * step, step, uniform=True),
        ]

    def _packed_product(self, name: str, result: str, value: str, outputs: int, gain: float) -> str:
        """``MatMulNBits`` by a weight of 4 bits an element, which rounds rows to 8 bits, as exporters ask of CPUs."""
        *outer, inputs = self.shape(value)
        numbers, scales = self.packed_weight(name, (outputs,), inputs, gain, blocked=True)
        return self.op(
            "com.microsoft.MatMulNBits", result, [value, numbers, scales], (*outer, outputs),
            K=inputs, N=outputs, bits=4, block_size=BLOCK, accuracy_level=4,
        )  # fmt: skip

    def tied(self, name: str, value: str, words: str, bias: str = "") -> str:
        """The language-model head tied to the embedding: ``logits = value @ words.T + bias``, ``[batch, seq, vocab]``."""
        batch, seq, hidden = self.shape(value)
        vocab = self.shape(words)[0]
        flat = self.reshape(f"{name}.flat", value, (batch * seq, hidden))
        operands = [flat, words, bias] if bias else [flat, words]
        logits = self.op("Gemm", name, operands, (batch * seq, vocab), transB=1)
        return self.reshape("logits", logits, (batch, seq, vocab))

    def layer_norm(self, name: str, value: str, epsilon: float, result: str = "") -> str:
        shape = self.shape(value)
        scale = self.weight(f"{name}.weight", shape[-1:], 0.1, 1.0)
        bias = self.weight(f"{name}.bias", shape[-1:], 0.02)
        return self.op("LayerNormalization", result or name, [value, scale, bias], shape, axis=-1, epsilon=epsilon)

    def rms_norm(self, name: str, value: str, epsilon: float) -> str:
        """Division by the root mean square of the last dimension (Zhang and Sennrich 2019), in single precision at least."""
        shape, wide = self.shape(value), self.wide
        column = (*shape[:-1], 1)
        x = self.cast(f"{name}.wide", value, wide)
        square = self.op("Mul", f"{name}.square", [x, x], shape, wide)
        axes = self.integers("last_axis", [-1])
        mean = self.op("ReduceMean", f"{name}.mean", [square, axes], column, wide, keepdims=1)
        least = self._resource(f"epsilon.{epsilon:g}", TensorType(wide, ()), Splat(epsilon))
        root = self.op("Sqrt", f"{name}.root", [self.op("Add", f"{name}.shifted", [mean, least], column, wide)], column, wide)
        scaled = self.cast(f"{name}.narrow", self.op("Div", f"{name}.scaled", [x, root], shape, wide), self.dtype)
        return self.op("Mul", name, [scaled, self.weight(f"{name}.weight", shape[-1:], 0.1, 1.0)], shape)

    def top(self, values: str, indices: str, value: str, count: str, shape: tuple[int, ...]) -> tuple[str, str]:
        """The largest elements along the last dimension, and their indices. ``values``, ``indices``: names of the two
        results."""
        results = (
            Value(f"%{values}", TensorType(self._types[value].dtype, shape)),
            Value(f"%{indices}", TensorType(DType.I64, shape)),
        )
        self._append("TopK", values, [value, count], results, {"axis": -1, "largest": 1, "sorted": 1})
        return results[0].name, results[1].name

    def silu(self, name: str, value: str) -> str:
        """``x * sigmoid(x)``."""
        shape = self.shape(value)
        return self.op("Mul", name, [value, self.op("Sigmoid", f"{name}.sigmoid", [value], shape)], shape)

    def add(self, name: str, one: str, other: str) -> str:
        """``one + other``, where ``other`` broadcasts to the shape of ``one``."""
        return self.op("Add", name, [one, other], self.shape(one))

    @property
    def weight_bytes(self) -> int:
        """Bytes of all random tensors together."""
        return sum(r.type.nbytes or 0 for r in self._resources.values() if _is_weight(r) and isinstance(r.type, TensorType))

    def module(self, outputs: list[str], *, declared: bool = False) -> Module:
        """The module: resources in order of creation, then ``@main``. ``declared``: random tensors get no data."""
        results = tuple(Value(name, self._types[name]) for name in outputs)
        main = Func("@main", tuple(self._args), results, tuple(self._ops))
        opsets = {"opset.onnx": OPSET}
        if any(op.name.startswith("onnx.com.microsoft.") for op in self._ops):
            opsets["opset.com.microsoft"] = 1
        header = attributes({"ir_version": 10, **opsets, "producer": "dnnc zoo"})
        resources: Iterable[Resource] = self._resources.values()
        if declared:
            resources = [replace(r, data=Declared()) if _is_weight(r) else r for r in resources]
        return Module(f"@{self.name}", (*resources, main), header)


def _is_weight(resource: Resource) -> bool:
    return isinstance(resource.data, Random)


ELEMENT = {DType.F32: 1, DType.F16: 10, DType.F64: 11, DType.BF16: 16}
"""Element type of a zoo model -> its ``TensorProto.DataType``."""
