"""Instances of ops that work element by element."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.ir.layout_rules.harness import Array, Case
from tests.ir.layout_rules.making import Make, Maker

_NUMBERS: dict[str, tuple[float, float]] = {
    "Acosh": (1.1, 3), "Log": (0.1, 3), "Sqrt": (0.1, 3), "Reciprocal": (0.5, 2), "Div": (0.5, 2), "Pow": (0.5, 2),
}  # fmt: skip
"""Ranges other than -1 to 1, where the op needs or deserves one."""
TWO = ("Add", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Mod", "Mul", "PRelu", "Pow", "Sub")
LOGICAL = ("And", "Or", "Xor")
BITS = ("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitShift")
SEVERAL = ("Max", "Mean", "Min", "Sum")
_NEWER = {"Swish": 24}
_WITH: dict[str, dict[str, Any]] = {"BitShift": {"direction": "LEFT"}, "Mod": {"fmod": 1}}


def unary(name: str) -> Make:
    def make(m: Maker) -> Case:
        x = m.floats(*m.shape(), low=_NUMBERS.get(name, (-1, 1))[0], high=_NUMBERS.get(name, (-1, 1))[1])
        given: Array = x > 0 if name == "Not" else m.indices(9, *x.shape) if name == "BitwiseNot" else x
        return Case(f"onnx.{name}", [given], opset=_NEWER.get(name, 20))

    return make


def binary(name: str) -> Make:
    def make(m: Maker) -> Case:
        shape = m.shape()
        low, high = _NUMBERS.get(name, (-1, 1))
        pair = [m.floats(*shape, low=low, high=high), m.floats(*m.broadcast(shape), low=low, high=high)]
        if name in LOGICAL:
            pair = [np.asarray(array > 0) for array in pair]
        elif name in BITS:
            pair = [np.asarray(np.abs(array) * 8, np.uint32) for array in pair]
        elif name in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"):
            pair = [np.asarray(np.round(array)) for array in pair]
        if name != "PRelu" and m.flag():
            pair.reverse()
        return Case(f"onnx.{name}", [*pair], _WITH.get(name, {}))

    return make


def several(name: str) -> Make:
    def make(m: Maker) -> Case:
        shape = m.shape()
        return Case(f"onnx.{name}", [m.floats(*shape), *(m.floats(*m.broadcast(shape)) for _ in range(m.pick(0, 1, 2)))])

    return make


def where(m: Maker) -> Case:
    shape = m.shape()
    return Case("onnx.Where", [m.floats(*shape) > 0, m.floats(*m.broadcast(shape)), m.floats(*m.broadcast(shape))])


def clip(m: Maker) -> Case:
    return Case(
        "onnx.Clip", [m.floats(*m.shape()), np.array(-0.5, np.float32), None if m.flag() else np.array(0.5, np.float32)]
    )


def cast(m: Maker) -> Case:
    return Case("onnx.Cast", [m.floats(*m.shape())], {"to": m.pick(1, 6, 7, 9, 11)})


def cast_like(m: Maker) -> Case:
    return Case("onnx.CastLike", [m.floats(*m.shape()), m.pick(np.zeros(3, np.int64), np.zeros(2, np.float32))])


def dropout(m: Maker) -> Case:
    count = m.pick(1, 2)
    off = [np.array(0.5, np.float32), np.array(False)] if m.flag() else []
    return Case("onnx.Dropout", [m.floats(*m.shape()), *off], constants=(2,), results=count)


def quantize(m: Maker) -> Case:
    shape = m.shape(2, 3)
    axis = m.axis(len(shape))
    size = () if m.flag() else (shape[axis],)
    return Case(
        "onnx.QuantizeLinear",
        [m.floats(*shape), m.floats(*size, low=0.1), m.indices(9, *size, low=0).astype(np.uint8)],
        {"axis": axis},
    )


def dequantize(m: Maker) -> Case:
    case = quantize(m)
    x = m.random.integers(0, 255, case.operands[0].shape).astype(np.uint8) if case.operands[0] is not None else None
    return Case("onnx.DequantizeLinear", [x, *case.operands[1:]], case.attributes)


def with_bias(name: str) -> Make:
    def make(m: Maker) -> Case:
        shape = m.shape(2, 3)
        bias = [m.floats(shape[-1])] if name == "BiasGelu" or m.flag() else []
        return Case(f"onnx.com.microsoft.{name}", [m.floats(*shape), *bias])

    return make


def contributed(name: str) -> Make:
    return lambda m: Case(f"onnx.com.microsoft.{name}", [m.floats(*m.shape())])
