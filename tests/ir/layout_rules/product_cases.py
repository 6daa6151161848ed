"""Instances of ops that multiply and add along inner dimensions, and of pooling and recurrence."""

from __future__ import annotations

from typing import Any

from tests.ir.layout_rules.harness import Array, Case
from tests.ir.layout_rules.making import Make, Maker


def matmul(m: Maker) -> Case:
    k = m.length()
    batches = m.shape(0, 2)
    first: tuple[int, ...] = (*m.broadcast(batches), m.length(), k)
    second: tuple[int, ...] = (*batches, k, m.length())
    return Case("onnx.MatMul", [m.floats(*m.pick(first, first, (k,))), m.floats(*m.pick(second, second, (k,)))])


def fused_matmul(m: Maker) -> Case:
    b, i, j, k = (m.length() for _ in range(4))
    first, second = m.flag(), m.flag()
    operands: list[Array | None] = [m.floats(b, *((k, i) if first else (i, k))), m.floats(b, *((j, k) if second else (k, j)))]
    return Case("onnx.com.microsoft.FusedMatMul", operands, {"transA": int(first), "transB": int(second), "alpha": 0.5})


def gemm(m: Maker) -> Case:
    i, j, k = (m.length() for _ in range(3))
    first, second = m.flag(), m.flag()
    bias = m.pick(None, (j,), (1, j), (i, 1), (i, j), ())
    operands = [m.floats(*((k, i) if first else (i, k))), m.floats(*((j, k) if second else (k, j)))]
    operands += [] if bias is None else [m.floats(*bias)]
    return Case("onnx.Gemm", [*operands], {"transA": int(first), "transB": int(second), "alpha": 0.5, "beta": 2.0})


def fused_gemm(m: Maker) -> Case:
    case = gemm(m)
    return Case("onnx.com.microsoft.FusedGemm", case.operands, {**case.attributes, "activation": m.pick("Relu", "Tanh")})


_EQUATIONS = (
    "ij,jk->ik",
    "bhqd,bhkd->bhqk",
    "ij,jk",
    "...ij,...jk->...ik",
    "ij->ji",
    "ij->j",
    "i,j->ij",
    "bij,bjk,kl->bil",
    "ii->i",
    "bn,hn->bh",
)


def einsum(m: Maker) -> Case:
    equation = m.pick(*_EQUATIONS)
    lengths = {letter: m.length() for letter in "bhijklnqd"}
    free = m.shape(0, 1)
    written = equation.partition("->")[0].split(",")
    shapes = [(*(free if "..." in term else ()), *(lengths[letter] for letter in term.replace(".", ""))) for term in written]
    return Case("onnx.Einsum", [m.floats(*shape) for shape in shapes], {"equation": equation})


def _windows(m: Maker, spatial: int) -> dict[str, Any]:
    if m.flag():  # patches
        width = m.pick(1, 2)
        return {"kernel_shape": [width] * spatial, "strides": [width] * spatial}
    return {"kernel_shape": [3] * spatial, "strides": [m.pick(1, 2)] * spatial, "pads": [1] * (2 * spatial)}


def conv(m: Maker) -> Case:
    spatial = m.pick(1, 2)
    group = m.pick(1, 1, 2, 4)
    inputs, outputs = group * m.pick(1, 2, 3), group * m.pick(1, 2, 3)
    windows = _windows(m, spatial)
    x = m.floats(m.length(1, 2, 4), inputs, *(m.pick(4, 8) for _ in range(spatial)))
    w = m.floats(outputs, inputs // group, *windows["kernel_shape"])
    return Case("onnx.Conv", [x, w, *([m.floats(outputs)] if m.flag() else [])], {**windows, "group": group})


def fused_conv(m: Maker) -> Case:
    case = conv(m)
    x, w, *bias = case.operands
    return Case("onnx.com.microsoft.FusedConv", [x, w, *bias], {**case.attributes, "activation": "Relu"})


def conv_transpose(m: Maker) -> Case:
    group = m.pick(1, 1, 2, 4)
    inputs, outputs = group * m.pick(1, 2, 3), m.pick(1, 2, 3)
    x, w = m.floats(m.length(1, 2, 4), inputs, 3, 4), m.floats(inputs, outputs, 3, 3)
    bias = [m.floats(outputs * group)] if m.flag() else []
    return Case("onnx.ConvTranspose", [x, w, *bias], {"group": group, "strides": [2, 2], "pads": [1, 1, 1, 1]})


def pool(name: str) -> Make:
    def make(m: Maker) -> Case:
        shape = (m.length(), m.length(), m.pick(4, 8), m.pick(4, 8))
        return Case(f"onnx.{name}", [m.floats(*shape)], _windows(m, 2) if "Global" not in name else {})

    return make


def recurrent(name: str) -> Make:
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[name]

    def make(m: Maker) -> Case:
        steps, batch, width, hidden = 3, m.length(), 2, 3
        operands: list[Array | None] = [
            m.floats(steps, batch, width),
            m.floats(1, gates * hidden, width),
            m.floats(1, gates * hidden, hidden),
        ]
        operands += [m.floats(1, 2 * gates * hidden), None, m.floats(1, batch, hidden)] if m.flag() else []
        fields = {"hidden_size": hidden} | ({"linear_before_reset": 1} if name == "GRU" else {})  # as PyTorch's
        return Case(f"onnx.{name}", operands, fields, results=2)

    return make
