"""A small writer of ONNX-dialect functions for the zoo: names, types and random weights in one place.

Every value carries its full type, so that no shape inference runs on a zoo model; every weight is a seeded ``Random``
resource, so that nothing of its size is made until somebody writes it. The seed of a weight follows from the model's seed and
the weight's name: adding a layer changes no other layer's numbers.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Sequence
from typing import Any

from ir.attributes import attributes
from ir.module import Func, Inline, Module, Random, Resource, ResourceData, Splat
from ir.ops import Location, Op, Value
from ir.types import DType, TensorType

OPSET = 20


class Graph:
    """Collects ops and weights. Values and weights are handed around by name, sigil included (``%x``, ``@w``)."""

    def __init__(self, name: str, dtype: DType, seed: int) -> None:
        self.name, self.dtype, self.seed = name, dtype, seed
        self.parameters = 0
        """Number of trainable elements."""
        self._ops: list[Op] = []
        self._args: list[Value] = []
        self._resources: dict[str, Resource] = {}
        self._types: dict[str, TensorType] = {}

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(dim for dim in self._types[name].shape or () if isinstance(dim, int))

    # values and weights

    def input(self, name: str, shape: tuple[int, ...], dtype: DType | None = None) -> str:
        value = Value(f"%{name}", TensorType(dtype or self.dtype, shape))
        self._args.append(value)
        self._types[value.name] = TensorType(dtype or self.dtype, shape)
        return value.name

    def weight(self, name: str, shape: tuple[int, ...], scale: float, mean: float = 0.0, uniform: bool = False) -> str:
        """A trainable tensor of normally (or uniformly) distributed elements."""
        self.parameters += math.prod(shape)
        return self.buffer(name, shape, scale, mean, uniform)

    def buffer(self, name: str, shape: tuple[int, ...], scale: float, mean: float = 0.0, uniform: bool = False) -> str:
        """As ``weight``, for what is not trained."""
        seed = (self.seed << 32) | zlib.crc32(name.encode())
        kind = "uniform" if uniform else "normal"
        return self._resource(name, TensorType(self.dtype, shape), Random(kind, seed, scale, mean))

    def integers(self, name: str, values: list[int], scalar: bool = False) -> str:
        """An int64 constant; one of the same name is used again."""
        type_ = TensorType(DType.I64, () if scalar else (len(values),))
        return self._resource(name, type_, Inline(struct.pack(f"<{len(values)}q", *values)))

    def fill(self, name: str, value: float, shape: tuple[int, ...] = ()) -> str:
        """A constant of the model's element type, all elements alike."""
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
        """Appends ``onnx.KIND`` with one result ``%name``; its element type is the model's unless given."""
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
        for value in values:
            assert isinstance(value.type, TensorType)
            self._types[value.name] = value.type
        location = Location(self.name, f"/{name.replace('.', '/')}", name.rpartition(".")[0])
        self._ops.append(Op(f"onnx.{kind}", tuple(operands), values, attributes(attrs), location=location))
        return [value.name for value in values]

    def reshape(self, name: str, value: str, shape: tuple[int, ...]) -> str:
        target = self.integers(f"shape.{'x'.join(map(str, shape))}", list(shape))
        return self.op("Reshape", name, [value, target], shape, self._types[value].dtype)

    def transpose(self, name: str, value: str, perm: list[int]) -> str:
        shape = self.shape(value)
        return self.op("Transpose", name, [value], tuple(shape[axis] for axis in perm), perm=perm)

    def linear(self, name: str, value: str, outputs: int, gain: float = 1.0) -> str:
        """``value @ W + b`` over the last dimension; weights of deviation ``gain / sqrt(inputs)`` keep the scale of values."""
        *outer, inputs = self.shape(value)
        weight = self.weight(f"{name}.weight", (inputs, outputs), gain / math.sqrt(inputs))
        bias = self.weight(f"{name}.bias", (outputs,), 0.02)
        shape = (*outer, outputs)
        product = self.op("MatMul", f"{name}.matmul", [value, weight], shape)
        return self.op("Add", name, [product, bias], shape)

    def layer_norm(self, name: str, value: str, epsilon: float, result: str = "") -> str:
        shape = self.shape(value)
        scale = self.weight(f"{name}.weight", shape[-1:], 0.1, 1.0)
        bias = self.weight(f"{name}.bias", shape[-1:], 0.02)
        return self.op("LayerNormalization", result or name, [value, scale, bias], shape, axis=-1, epsilon=epsilon)

    def attention(self, name: str, query: str, key: str, value: str, heads: int, mask: str) -> str:
        """Scaled dot products of ``[batch, seq, hidden]`` values over ``heads``; ``mask`` is added to the scores."""
        batch, seq, hidden = self.shape(query)
        width = hidden // heads
        split = (batch, seq, heads, width)
        queries = self.transpose(f"{name}.q", self.reshape(f"{name}.q.heads", query, split), [0, 2, 1, 3])
        keys = self.transpose(f"{name}.k", self.reshape(f"{name}.k.heads", key, split), [0, 2, 3, 1])
        values = self.transpose(f"{name}.v", self.reshape(f"{name}.v.heads", value, split), [0, 2, 1, 3])
        square = (batch, heads, seq, seq)
        scores = self.op("MatMul", f"{name}.scores", [queries, keys], square)
        scale = self.fill(f"attention.scale.{width}", 1.0 / math.sqrt(width))
        scores = self.op("Mul", f"{name}.scaled", [scores, scale], square)
        scores = self.op("Add", f"{name}.masked", [scores, mask], square)
        weights = self.op("Softmax", f"{name}.weights", [scores], square, axis=-1)
        mixed = self.op("MatMul", f"{name}.mixed", [weights, values], (batch, heads, seq, width))
        return self.reshape(f"{name}.merged", self.transpose(f"{name}.swapped", mixed, [0, 2, 1, 3]), (batch, seq, hidden))

    def module(self, outputs: list[str]) -> Module:
        """The finished module: resources in order of first use, then ``@main``."""
        results = tuple(Value(name, self._types[name]) for name in outputs)
        main = Func("@main", tuple(self._args), results, tuple(self._ops))
        header = attributes({"ir_version": 10, "opset.onnx": OPSET, "producer": "dnnc zoo"})
        return Module(f"@{self.name}", (*self._resources.values(), main), header)
