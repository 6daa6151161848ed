"""Instances of ops on scaled integers and of products with packed weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.ir.layout_rules.harness import Array, Case
from tests.ir.layout_rules.making import Make, Maker

MS = "onnx.com.microsoft."


def _bytes(m: Maker, *shape: int) -> Array:
    return np.asarray(m.random.integers(0, 256, shape), np.uint8)


def _scale(m: Maker, *shape: int) -> Array:
    return m.floats(*shape, low=0.01, high=0.1)


def _point(m: Maker, *shape: int) -> Array:
    return np.asarray(m.random.integers(100, 150, shape), np.uint8)


def _number(m: Maker) -> list[Array | None]:
    """One scale and one zero point."""
    return [_scale(m), _point(m)]


def matmul_nbits(m: Maker) -> Case:
    bits, block = m.pick(4, 8), 16
    blocks, columns = m.pick(1, 2, 4, 8), m.length()
    inner = blocks * block
    weight = _bytes(m, columns, blocks, block * bits // 8)
    scales = _scale(m, *m.pick((columns, blocks), (columns * blocks,)))
    points = _bytes(m, columns, -(-blocks * bits // 8)) if m.flag() else None
    order = np.repeat(np.arange(blocks, dtype=np.int32), block) if m.pick(0, 0, 1) else None
    operands = [m.floats(*m.shape(0, 1), m.length(), inner), weight, scales, points, order, m.pick(None, m.floats(columns))]
    return Case(MS + "MatMulNBits", operands, {"K": inner, "N": columns, "bits": bits, "block_size": block})


def experts(m: Maker) -> Case:
    """Experts of relu or of interleaved gates."""
    tokens, count, hidden, units, chosen, attributes = _routed(m)
    first = units * (2 if attributes["activation_type"] == "swiglu" else 1)
    weights = [m.floats(count, first, hidden), m.floats(count, hidden, units)]
    biases = [m.floats(count, first), m.floats(count, hidden)] if m.flag() else [None, None]
    layers = [operand for pair in zip(weights, biases, strict=True) for operand in pair]
    return Case(MS + "MoE", [*_tokens(m, tokens, hidden), m.floats(tokens, count), *layers], attributes | {"k": chosen})


def packed_experts(m: Maker) -> Case:
    tokens, count, hidden, units, chosen, attributes = _routed(m)
    first = units * (2 if attributes["activation_type"] == "swiglu" else 1)
    bits, block = m.pick(4, 8), m.pick(0, 16)
    operands: list[Array | None] = [*_tokens(m, tokens, hidden), m.floats(tokens, count)]
    biased = m.flag()
    for outputs, inputs in ((first, hidden), (hidden, units)):
        operands.append(_bytes(m, count, outputs, inputs * bits // 8))
        operands.append(_scale(m, count, outputs, *([inputs // block] if block else [])) / 10)
        operands.append(m.floats(count, outputs) if biased else None)
    attributes |= {"k": chosen, "expert_weight_bits": bits, **({"block_size": block} if block else {})}
    return Case(MS + "QMoE", operands, attributes)


def _tokens(m: Maker, tokens: int, hidden: int) -> list[Array]:
    samples = m.pick(0, *(n for n in (1, 2, 4) if tokens % n == 0))
    return [m.floats(*((samples, tokens // samples) if samples else (tokens,)), hidden)]


def _routed(m: Maker) -> tuple[int, int, int, int, int, dict[str, Any]]:
    """Tokens, experts, hidden width, units of an expert, experts of a token, and attributes."""
    gates = {"activation_type": "swiglu", "swiglu_fusion": 1, "activation_alpha": 1.0, "activation_beta": 0.0}
    attributes = m.pick({"activation_type": "relu"}, {"activation_type": "silu"}, gates) | {"normalize_routing_weights": 1}
    return m.length(), m.pick(2, 4), 32, m.pick(32, 64), m.pick(1, 2), attributes


def matmul_bnb4(m: Maker) -> Case:
    blocks, columns = m.pick(1, 2), m.length()
    operands: list[Array | None] = [
        m.floats(m.length(), 16 * blocks),
        _bytes(m, columns * blocks * 8),
        _scale(m, columns * blocks),
    ]
    return Case(MS + "MatMulBnb4", operands, {"K": 16 * blocks, "N": columns, "block_size": 16, "quant_type": m.pick(0, 1)})


def _rows_and_columns(m: Maker) -> tuple[int, int, Array, Array]:
    rows, inner, columns = m.length(), m.length(), m.length()
    return rows, columns, _bytes(m, *m.shape(0, 1), rows, inner), _bytes(m, inner, columns)


def matmul_integer(m: Maker) -> Case:
    _, columns, a, b = _rows_and_columns(m)
    return Case("onnx.MatMulInteger", [a, b, _point(m), _point(m, *m.pick((), (columns,)))])


def qlinear_matmul(m: Maker) -> Case:
    _, columns, a, b = _rows_and_columns(m)
    size = m.pick((), (columns,))
    return Case("onnx.QLinearMatMul", [a, *_number(m), b, _scale(m, *size), _point(m, *size), *_number(m)])


def integer_to_float(m: Maker) -> Case:
    _, columns, a, b = _rows_and_columns(m)
    size = m.pick((), (columns,))
    bias = m.floats(columns) if m.flag() else None
    return Case(MS + "MatMulIntegerToFloat", [a, b, _scale(m), _scale(m, *size), _point(m), _point(m, *size), bias])


def dynamic_matmul(m: Maker) -> Case:
    _, columns, a, b = _rows_and_columns(m)
    size = m.pick((), (columns,))
    bias = m.floats(columns) if m.flag() else None
    return Case(MS + "DynamicQuantizeMatMul", [m.floats(*a.shape), b, _scale(m, *size), _point(m, *size), bias])


def qgemm(m: Maker) -> Case:
    rows, inner, columns = (m.length() for _ in range(3))
    first, second = m.flag(), m.flag()
    size = m.pick((), (columns,))
    a, b = (
        _bytes(m, *((inner, rows) if first else (rows, inner))),
        _bytes(m, *((columns, inner) if second else (inner, columns))),
    )
    bias = m.random.integers(-99, 99, m.pick((columns,), (rows, columns))).astype(np.int32) if m.flag() else None
    end = _number(m) if m.flag() else []
    operands = [a, *_number(m), b, _scale(m, *size), _point(m, *size), bias, *end]
    return Case(MS + "QGemm", operands, {"transA": int(first), "transB": int(second)})


def qlinear_conv(name: str) -> Make:
    def make(m: Maker) -> Case:
        group = m.pick(1, 1, 2)
        inputs, outputs = group * m.pick(2, 3), group * m.pick(1, 2, 4)
        last = name.startswith(MS) and m.flag()
        places = (5, 6)
        x = _bytes(m, m.length(1, 2, 4), *((*places, inputs) if last else (inputs, *places)))
        per_channel = m.flag() and not last
        scale, point = (
            _scale(m, *((outputs,) if per_channel else ())),
            np.full((outputs,) if per_channel else (), 128, np.uint8),
        )
        bias = [m.random.integers(-99, 99, outputs).astype(np.int32)] if m.flag() else []
        operands = [x, *_number(m), _bytes(m, outputs, inputs // group, 3, 3), scale, point, *_number(m), *bias]
        given: dict[str, Any] = {"group": group, **({"channels_last": int(last)} if name.startswith(MS) else {})}
        return Case(name, [*operands], given, opset=13)

    return make


def several(name: str, count: int) -> Make:
    """``count`` broadcast operands, each with its scale and zero point, and those of the result."""

    def make(m: Maker) -> Case:
        shape = m.shape(2, 3)
        operands: list[Array | None] = [m.random.integers(0, 2, m.broadcast(shape)).astype(np.bool_)] if "Where" in name else []
        for i in range(count):
            operands += [_bytes(m, *(shape if i == 0 else m.broadcast(shape))), *_number(m)]
        return Case(MS + name, [*operands, *_number(m)], {"alpha": 0.1} if "Leaky" in name else {})

    return make


def softmax(m: Maker) -> Case:
    shape = m.shape(2, 3)
    operands = [_bytes(m, *shape), *_number(m), np.asarray(np.float32(1 / 256)), np.asarray(np.uint8(0))]
    return Case(MS + "QLinearSoftmax", operands, {"opset": m.pick(12, 13), "axis": m.axis(len(shape))})


def pool(name: str) -> Make:
    def make(m: Maker) -> Case:
        last = m.flag()
        batch, channels = m.length(), m.length()
        x = _bytes(m, batch, *((6, 6, channels) if last else (channels, 6, 6)))
        windows: dict[str, Any] = {} if "Global" in name else {"kernel_shape": [3, 3], "strides": [1, 2]}
        return Case(MS + name, [x, *_number(m), *_number(m)], {"channels_last": int(last), **windows})

    return make


def concat(m: Maker) -> Case:
    shape = m.shape(2, 3)
    axis = m.axis(len(shape))
    operands = _number(m)
    for _ in range(m.pick(1, 2, 3)):
        lengths = [*shape]
        lengths[axis] = m.pick(1, 2, 3)
        operands += [_bytes(m, *lengths), *_number(m)]
    return Case(MS + "QLinearConcat", operands, {"axis": axis})


def quantize(name: str) -> Make:
    def make(m: Maker) -> Case:
        shape = m.shape(2, 3)
        axis = m.axis(len(shape))
        size = () if m.flag() else (shape[axis],)
        x = m.floats(*shape) if name == "QuantizeLinear" else _bytes(m, *shape)
        return Case(MS + name, [x, _scale(m, *size), _point(m, *size)], {"axis": axis} if size else {})

    return make


def gather_blocks(m: Maker) -> Case:
    rows, blocks = m.length(), m.pick(1, 2)
    bits = m.pick(4, 8)
    data, scales = _bytes(m, rows, blocks * 16 * bits // 8), _scale(m, rows, blocks)
    points = [_bytes(m, rows, -(-blocks * bits // 8))] if m.flag() else []
    indices = m.indices(rows, *m.shape(0, 2), low=m.pick(0, -rows))
    given = {"bits": bits, "block_size": 16, "quantize_axis": 1, "gather_axis": 0}
    return Case(MS + "GatherBlockQuantized", [data, indices, scales, *points], given)


def embedding(m: Maker) -> Case:
    batch, length, hidden = m.length(1, 2, 4), m.pick(2, 3), 8
    ids = [m.indices(5, batch, length, low=0).astype(np.int32) for _ in range(2)]
    mask = np.ones((batch, length), np.int32) if m.flag() else None
    positions = m.indices(4, m.pick(1, batch), length, low=0).astype(np.int32) if m.flag() else None
    tables = [m.floats(5, hidden), m.floats(4, hidden), m.floats(5, hidden)]
    operands = [*ids, *tables, m.floats(hidden), m.floats(hidden), mask, positions]
    return Case(MS + "EmbedLayerNormalization", operands, {"mask_index_type": 1}, results=2)


CASES: dict[str, Make] = {
    "onnx.MatMulInteger": matmul_integer,
    "onnx.QLinearConv": qlinear_conv("onnx.QLinearConv"),
    "onnx.QLinearMatMul": qlinear_matmul,
    **{MS + name: several(name, 2) for name in ("QLinearAdd", "QLinearMul", "QLinearWhere")},
    **{MS + name: several(name, 1) for name in ("QLinearLeakyRelu", "QLinearSigmoid")},
    **{MS + name: pool(name) for name in ("QLinearAveragePool", "QLinearGlobalAveragePool")},
    **{MS + name: quantize(name) for name in ("DequantizeLinear", "QuantizeLinear")},
    MS + "DynamicQuantizeMatMul": dynamic_matmul,
    MS + "EmbedLayerNormalization": embedding,
    MS + "GatherBlockQuantized": gather_blocks,
    MS + "MatMulBnb4": matmul_bnb4,
    MS + "MatMulIntegerToFloat": integer_to_float,
    MS + "MatMulNBits": matmul_nbits,
    MS + "MoE": experts,
    MS + "QGemm": qgemm,
    MS + "QLinearConcat": concat,
    MS + "QLinearConv": qlinear_conv(MS + "QLinearConv"),
    MS + "QLinearSoftmax": softmax,
    MS + "QMoE": packed_experts,
}
"""By the op's full name."""
