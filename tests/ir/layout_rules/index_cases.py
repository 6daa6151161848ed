"""Instances of ops that pick or put elements by index."""

from __future__ import annotations

import math

import numpy as np

from tests.ir.layout_rules.harness import Case
from tests.ir.layout_rules.making import Maker, shape_operand


def gather(m: Maker) -> Case:
    shape = m.shape()
    axis = m.axis(len(shape))
    data = m.floats(*shape)
    data = m.pick(data, data, (data * 9).astype(np.int32), data > 0)
    return Case("onnx.Gather", [data, m.indices(shape[axis], *m.shape(0, 2))], {"axis": axis})


def _spanning(m: Maker, shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """A shape of indices: any length along the axis, elsewhere the data's or less."""
    lengths = [length if m.flag() else m.pick(*range(1, length + 1)) for length in shape]
    lengths[axis] = m.length()
    return tuple(lengths)


def gather_elements(m: Maker) -> Case:
    shape = m.shape()
    axis = m.axis(len(shape))
    return Case("onnx.GatherElements", [m.floats(*shape), m.indices(shape[axis], *_spanning(m, shape, axis))], {"axis": axis})


def gather_nd(m: Maker) -> Case:
    shape = m.shape(2, 4)
    batches = m.pick(*range(len(shape) - 1))
    width = m.pick(*range(1, len(shape) - batches + 1))
    ahead = m.shape(0, 2) if batches else m.shape(1, 2)
    parts = [m.indices(length, *shape[:batches], *ahead) for length in shape[batches : batches + width]]
    return Case("onnx.GatherND", [m.floats(*shape), np.stack(parts, axis=-1)], {"batch_dims": batches})


def scatter_elements(m: Maker) -> Case:
    shape = m.shape()
    axis = m.axis(len(shape))
    adds = m.flag()
    spanned = list(_spanning(m, shape, axis))
    if adds:
        indices = m.indices(shape[axis], *spanned)
    else:  # each place once: what is written twice is anyone's guess
        spanned[axis] = m.pick(*range(1, shape[axis] + 1))
        indices = np.argsort(
            m.floats(*(s if i != axis % len(shape) else shape[axis] for i, s in enumerate(spanned))), axis=axis
        )
        indices = np.take(indices, range(spanned[axis]), axis=axis)
    return Case(
        "onnx.ScatterElements",
        [m.floats(*shape), indices, m.floats(*spanned)],
        {"axis": axis, "reduction": "add" if adds else "none"},
        opset=18,
    )


def scatter(m: Maker) -> Case:
    case = scatter_elements(m)
    while case.attributes["reduction"] != "none":
        case = scatter_elements(m)
    return Case("onnx.Scatter", case.operands, {"axis": case.attributes["axis"]}, opset=10)


def scatter_nd(m: Maker) -> Case:
    shape = m.shape(2, 3)
    width = m.pick(*range(1, len(shape) + 1))
    if m.flag():
        count = m.shape(1, 2)
        indices = np.stack([m.indices(length, *count) for length in shape[:width]], axis=-1)
        reduction = "add"
    else:
        places = m.random.permutation(math.prod(shape[:width]))[: m.length()]
        indices, count, reduction = np.stack(np.unravel_index(places, shape[:width]), axis=-1), places.shape, "none"
    return Case(
        "onnx.ScatterND", [m.floats(*shape), indices, m.floats(*count, *shape[width:])], {"reduction": reduction}, opset=18
    )


def one_hot(m: Maker) -> Case:
    shape, depth = m.shape(1, 2), m.length(2, 4, 5, 8)
    axis = m.pick(*range(-len(shape) - 1, len(shape) + 1))
    indices = m.random.integers(-depth - 1, depth + 2, shape)
    return Case("onnx.OneHot", [indices, shape_operand(depth), m.floats(2)], {"axis": axis}, constants=(1,))
