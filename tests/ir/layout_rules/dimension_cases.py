"""Instances of ops that look along dimensions."""

from __future__ import annotations

import numpy as np

from tests.ir.layout_rules.harness import Array, Case
from tests.ir.layout_rules.making import Make, Maker, shape_operand


def reduction(name: str) -> Make:
    def make(m: Maker) -> Case:
        shape = m.shape(2, 3)
        axes = m.pick([0], [1], [-1], [0, -1], [])
        attributes = {"keepdims": int(m.flag())}
        listed = [shape_operand(*axes)] if axes or m.flag() else []
        return Case(f"onnx.{name}", [m.floats(*shape, low=0.5, high=1.5), *listed], attributes, constants=(1,))

    return make


def along(name: str, results: int = 1) -> Make:
    def make(m: Maker) -> Case:
        shape = m.shape()
        return Case(f"onnx.{name}", [m.floats(*shape)], {"axis": m.axis(len(shape))}, results=results)

    return make


def arg(name: str) -> Make:
    def make(m: Maker) -> Case:
        shape = m.shape()
        return Case(f"onnx.{name}", [m.floats(*shape)], {"axis": m.axis(len(shape)), "keepdims": int(m.flag())})

    return make


def cumulative(m: Maker) -> Case:
    shape = m.shape()
    axis = np.array(m.axis(len(shape)))
    return Case("onnx.CumSum", [m.floats(*shape), axis], {"exclusive": int(m.flag()), "reverse": int(m.flag())}, constants=(1,))


def fourier(m: Maker) -> Case:
    """Of real numbers, all frequencies or half of them; of complex numbers both ways."""
    shape, parts = m.shape(), m.pick(1, 2)
    axis = np.array(m.pick(*range(len(shape)), -2))
    kind = "onesided" if parts == 1 else "inverse"
    return Case("onnx.DFT", [m.floats(*shape, parts), None, axis], {kind: int(m.flag())}, constants=(2,))


def top_k(m: Maker) -> Case:
    shape = m.shape()
    axis = m.axis(len(shape))
    return Case("onnx.TopK", [m.floats(*shape), shape_operand(m.pick(*range(1, shape[axis] + 1)))], {"axis": axis}, results=2)


def layer_norm(name: str) -> Make:
    def make(m: Maker) -> Case:
        shape = m.shape(2, 3)
        axis = m.pick(*range(-len(shape) + 1, 0)) if name != "SimplifiedLayerNormalization" else -1
        scale = [m.floats(*shape[axis:]) for _ in range(2 if name == "LayerNormalization" and m.flag() else 1)]
        results = m.pick(1, 3) if name == "LayerNormalization" else 1
        return Case(
            f"onnx.{name}", [m.floats(*shape), *scale], {"axis": axis}, results=results, opset=23 if name[:3] == "RMS" else 20
        )

    return make


def skip_norm(name: str) -> Make:
    def make(m: Maker) -> Case:
        shape = m.shape(3, 3)
        vectors = [m.floats(shape[-1]) for _ in range(3)]
        operands: list[Array | None] = [
            m.floats(*shape),
            m.floats(*shape),
            *(vectors if name == "SkipLayerNormalization" else vectors[:2]),
        ]
        return Case(f"onnx.com.microsoft.{name}", operands)

    return make


def batch_norm(m: Maker) -> Case:
    shape = m.shape(2, 4)
    trains = m.flag()
    numbers = [m.floats(shape[1], low=0.5, high=1.5) for _ in range(4)]
    return Case(
        "onnx.BatchNormalization", [m.floats(*shape), *numbers], {"training_mode": int(trains)}, results=3 if trains else 1
    )


def instance_norm(m: Maker) -> Case:
    shape = (*m.shape(2, 2), 3, 2)
    return Case("onnx.InstanceNormalization", [m.floats(*shape), m.floats(shape[1]), m.floats(shape[1])])


def group_norm(m: Maker) -> Case:
    groups, newer = m.pick(1, 2, 4), m.flag()
    channels = groups * m.pick(1, 2)
    vectors = [m.floats(channels if newer else groups) for _ in range(2)]
    return Case(
        "onnx.GroupNormalization",
        [m.floats(m.length(), channels, 3, 2), *vectors],
        {"num_groups": groups},
        opset=21 if newer else 20,
    )


def local_response(m: Maker) -> Case:
    return Case("onnx.LRN", [m.floats(m.length(), m.length(), 3, 4)], {"size": 3})


def mean_variance(m: Maker) -> Case:
    return Case(
        "onnx.MeanVarianceNormalization", [m.floats(m.length(), m.length(), 3, 4)], {"axes": m.pick([0, 2, 3], [2, 3], [-1])}
    )
