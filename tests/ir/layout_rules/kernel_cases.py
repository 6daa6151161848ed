"""Instances of losses and of the backward kernels of ``grad``."""

from __future__ import annotations

import dataclasses
from typing import Any

from ir.core.types import DType, TensorType
from tests.ir.layout_rules.harness import Array, Case
from tests.ir.layout_rules.making import Make, Maker


def made(*shapes: tuple[int, ...]) -> tuple[TensorType, ...]:
    return tuple(TensorType(DType.F32, shape) for shape in shapes)


def loss(name: str) -> Make:
    def make(m: Maker) -> Case:
        shape, places = (m.length(), m.length(2, 3, 5)), m.shape(0, 2)
        labels = m.random.integers(0, shape[1], (shape[0], *places))
        fields: dict[str, Any] = {"reduction": m.pick("none", "none", "sum")}
        if m.flag():
            fields["ignore_index"] = 1
        weights = [m.floats(shape[1])] if m.flag() else []
        return Case(name, [m.floats(*shape, *places), labels, *weights], fields)

    return make


def loss_gradient(name: str) -> Make:
    def make(m: Maker) -> Case:
        case = loss(f"onnx.{name}")(m)
        scores, labels, *weights = case.operands
        assert scores is not None
        assert labels is not None
        read = [scores] if name == "SoftmaxCrossEntropyLoss" else []
        fields = {key: value for key, value in case.attributes.items() if key != "reduction"}
        return Case(f"grad.{name}", [m.floats(*labels.shape), *read, labels, *weights], fields, made=made(scores.shape))

    return make


def _windows(m: Maker, spatial: int) -> tuple[dict[str, Any], tuple[int, ...], tuple[int, ...]]:
    """Attributes, and the lengths before and after."""
    before = tuple(m.pick(4, 8) for _ in range(spatial))
    if m.flag():  # patches
        width = m.pick(1, 2)
        return (
            {"kernel_shape": [width] * spatial, "strides": [width] * spatial},
            before,
            tuple(length // width for length in before),
        )
    stride = m.pick(1, 2)
    fields = {"kernel_shape": [3] * spatial, "strides": [stride] * spatial, "pads": [1] * (2 * spatial)}
    return fields, before, tuple((length - 1) // stride + 1 for length in before)


def conv(name: str) -> Make:
    def make(m: Maker) -> Case:
        group = m.pick(1, 1, 2, 4)
        inputs, outputs, batch = group * m.pick(1, 2, 3), group * m.pick(1, 2, 3), m.length(1, 2, 4)
        fields, before, after = _windows(m, m.pick(1, 2))
        x, y = (batch, inputs, *before), (batch, outputs, *after)
        w = (outputs, inputs // group, *fields["kernel_shape"])
        other, result = (w, x) if name == "ConvInput" else (x, w)
        return Case(f"grad.{name}", [m.floats(*y), m.floats(*other)], fields | {"group": group}, made=made(result))

    return make


def pool(name: str) -> Make:
    def make(m: Maker) -> Case:
        fields, before, after = _windows(m, 2)
        ahead = (m.length(), m.length())
        read = [m.floats(*ahead, *before)] if name == "MaxPool" else []
        return Case(f"grad.{name}", [m.floats(*ahead, *after), *read], fields, made=made((*ahead, *before)))

    return make


def rows(name: str, *, sums: bool) -> Make:
    """LayerNormalization and RMSNormalization."""

    def make(m: Maker) -> Case:
        shape = m.shape(2, 3)
        axis = m.pick(*range(1, len(shape)))
        inner = shape[axis:]
        read: list[Array | None] = [m.floats(*shape), m.floats(*shape)]
        if name == "LayerNormalization":
            ones = (1,) * len(inner)
            read += [m.floats(*shape[:axis], *ones), m.floats(*shape[:axis], *ones)]
        if not sums:
            return Case(f"grad.{name}Input", [*read, m.floats(*inner)], {"axis": axis}, made=made(shape))
        count = 2 if name == "LayerNormalization" else 1
        return Case(f"grad.{name}Weight", read, {"axis": axis}, results=count, made=made(*[inner] * count))

    return make


def group_norm(m: Maker) -> Case:
    return _group_norm(m, sums=False)


def group_norm_weight(m: Maker) -> Case:
    return _group_norm(m, sums=True)


def _group_norm(m: Maker, *, sums: bool) -> Case:
    groups = m.pick(1, 2, 4)
    shape = (m.length(), groups * m.pick(1, 2), 3, 2)
    read = [m.floats(*shape), m.floats(*shape)]
    fields = {"num_groups": groups}
    if not sums:
        return Case("grad.GroupNormalizationInput", [*read, m.floats(shape[1])], fields, made=made(shape))
    return Case("grad.GroupNormalizationWeight", [*read], fields, results=2, made=made(*[shape[1:2]] * 2))


def batch_norm(m: Maker) -> Case:
    shape = (m.length(2, 4), m.length(), *m.shape(0, 2))
    read = [m.floats(*shape), m.floats(*shape), m.floats(shape[1])]
    return Case("grad.BatchNormalization", [*read], results=3, made=made(shape, shape[1:2], shape[1:2]))


def softmax(name: str) -> Make:
    def make(m: Maker) -> Case:
        shape = m.shape()
        return Case(f"grad.{name}", [m.floats(*shape), m.floats(*shape)], {"axis": m.axis(len(shape))}, made=made(shape))

    return make


def gelu(m: Maker) -> Case:
    case = softmax("Gelu")(m)
    return dataclasses.replace(case, attributes={})


def relu(m: Maker) -> Case:
    return dataclasses.replace(softmax("Relu")(m), attributes={})


def resize(m: Maker) -> Case:
    before = (m.length(), m.length(), 3, 4)
    after = (*before[:2], 6, 4 * m.pick(1, 2))
    fields = {"mode": m.pick("nearest", "linear")}
    return Case("grad.Resize", [m.floats(*after)], fields, made=made(before))


def attention(m: Maker) -> Case:
    batch, shared, repeat, keys, width = m.length(1, 2, 4), m.pick(1, 2, 4), m.pick(1, 2), m.length(2, 3), 4
    rows_ = m.length(1, 2, 4)
    shapes = [(batch, shared * repeat, rows_, width), *[(batch, shared, keys, width)] * 2]
    masked = [m.floats(*m.broadcast((batch, shared * repeat)), rows_, keys)] if m.flag() else []
    fields: dict[str, Any] = {"is_causal": int(m.flag())}
    if m.flag():
        shapes = [(b, length, heads * size) for b, heads, length, size in shapes]
        fields |= {"q_num_heads": shared * repeat, "kv_num_heads": shared}
    read = [m.floats(*shapes[0]), *(m.floats(*shape) for shape in shapes)]
    return Case("grad.Attention", [*read, *masked], fields, results=3, made=made(*shapes))


def col2im(m: Maker) -> Case:
    block, image = (2, 2), (3, 4)
    batch, channels = m.length(), m.length(1, 2, 4)
    made_ = made((batch, channels * 4, 6))
    return Case("grad.Col2Im", [m.floats(batch, channels, *image)], {"kernel_shape": list(block)}, made=made_)


def grid_sample(m: Maker) -> Case:
    batch, channels = m.length(), m.length(1, 2)
    x, grid = (batch, channels, 3, 4), (batch, 2, 3, 2)
    operands: list[Array | None] = [m.floats(batch, channels, 2, 3), m.floats(*x), m.floats(*grid)]
    return Case("grad.GridSample", operands, {"mode": m.pick("linear", "nearest")}, results=2, made=made(x, grid))


def recurrent(name: str) -> Make:
    """Back-propagation through time, of one or two directions, with or without a bias."""
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[name]

    def make(m: Maker) -> Case:
        steps, batch, width, hidden, directions = 3, m.length(), 2, 3, m.pick(1, 2)
        state, rows = (directions, batch, hidden), gates * hidden
        states, gated = (steps, *state), (steps, directions, batch, rows)
        bias = m.floats(directions, 2 * rows) if gates > 1 and m.flag() else None
        fields: dict[str, Any] = {"direction": m.pick("forward", "reverse") if directions == 1 else "bidirectional"}
        operands: list[Array | None] = [m.floats(*states), m.floats(*state) if m.flag() else None]
        operands.append(m.floats(*state) if name == "LSTM" else None)
        read = [(steps, batch, width), (directions, rows, width)]
        operands += [m.floats(*shape) if gates > 1 else None for shape in read]
        operands += [m.floats(directions, rows, hidden), bias, m.floats(*state)]
        operands += [m.floats(*state) if name == "LSTM" else None, m.floats(*states)]
        results = [gated, gated, states, state, state][: 5 if name == "LSTM" else 4]
        fields |= {"linear_before_reset": 1} if name == "GRU" else {}
        return Case(f"grad.{name}", operands, fields, results=len(results), made=made(*results))

    return make


CASES: dict[str, Make] = {
    "grad.Attention": attention,
    "grad.AveragePool": pool("AveragePool"),
    "grad.BatchNormalization": batch_norm,
    "grad.Col2Im": col2im,
    "grad.ConvInput": conv("ConvInput"),
    "grad.ConvWeight": conv("ConvWeight"),
    "grad.GRU": recurrent("GRU"),
    "grad.Gelu": gelu,
    "grad.GridSample": grid_sample,
    "grad.GroupNormalizationInput": group_norm,
    "grad.GroupNormalizationWeight": group_norm_weight,
    "grad.LSTM": recurrent("LSTM"),
    "grad.LayerNormalizationInput": rows("LayerNormalization", sums=False),
    "grad.LayerNormalizationWeight": rows("LayerNormalization", sums=True),
    "grad.LogSoftmax": softmax("LogSoftmax"),
    "grad.MaxPool": pool("MaxPool"),
    "grad.NegativeLogLikelihoodLoss": loss_gradient("NegativeLogLikelihoodLoss"),
    "grad.RNN": recurrent("RNN"),
    "grad.RMSNormalizationInput": rows("RMSNormalization", sums=False),
    "grad.RMSNormalizationWeight": rows("RMSNormalization", sums=True),
    "grad.Relu": relu,
    "grad.Resize": resize,
    "grad.Softmax": softmax("Softmax"),
    "grad.SoftmaxCrossEntropyLoss": loss_gradient("SoftmaxCrossEntropyLoss"),
    "onnx.NegativeLogLikelihoodLoss": loss("onnx.NegativeLogLikelihoodLoss"),
    "onnx.SoftmaxCrossEntropyLoss": loss("onnx.SoftmaxCrossEntropyLoss"),
}
