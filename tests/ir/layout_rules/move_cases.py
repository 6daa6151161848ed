"""Instances of ops that move elements, or make them from nothing."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

from tests.ir.layout_rules.harness import Array, Case
from tests.ir.layout_rules.making import Maker, shape_operand


def reshape(m: Maker) -> Case:
    shape = m.shape(1, 4)
    rest = math.prod(shape)
    target: list[int] = []
    while rest > 1 and len(target) < 3:
        target.append(m.pick(*(d for d in range(1, rest + 1) if rest % d == 0)))
        rest //= target[-1]
    target.append(m.pick(rest, -1))
    if m.flag() and target[0] == shape[0]:
        target[0] = 0
    return Case("onnx.Reshape", [m.floats(*shape), shape_operand(*target)], constants=(1,) if m.flag() else ())


def flatten(m: Maker) -> Case:
    shape = m.shape(1, 4)
    return Case("onnx.Flatten", [m.floats(*shape)], {"axis": m.axis(len(shape))})


def squeeze(m: Maker) -> Case:
    shape = m.shape(1, 4)
    ones = [dim for dim, length in enumerate(shape) if length == 1]
    return Case("onnx.Squeeze", [m.floats(*shape), *([shape_operand(*ones)] if ones or m.flag() else [])])


def unsqueeze(m: Maker) -> Case:
    shape = m.shape()
    return Case("onnx.Unsqueeze", [m.floats(*shape), shape_operand(*m.some(list(range(len(shape) + 1))))])


def transpose(m: Maker) -> Case:
    shape = m.shape(1, 4)
    perm = m.draw(st.permutations(range(len(shape))))
    return Case("onnx.Transpose", [m.floats(*shape)], {"perm": list(perm)} if m.flag() else {})


def concat(m: Maker) -> Case:
    shape = list(m.shape())
    axis = m.axis(len(shape))
    parts: list[Array | None] = []
    for _ in range(m.pick(1, 2, 3)):
        shape[axis] = m.length()
        parts.append(m.floats(*shape))
    return Case("onnx.Concat", parts, {"axis": axis})


def split(m: Maker) -> Case:
    shape = list(m.shape())
    axis = m.axis(len(shape))
    lengths = [m.length() for _ in range(m.pick(1, 2, 3))]
    shape[axis] = sum(lengths)
    return Case("onnx.Split", [m.floats(*shape), shape_operand(*lengths)], {"axis": axis}, results=len(lengths))


def slice_(m: Maker) -> Case:
    shape = m.shape()
    starts, ends, steps = [], [], []
    for length in shape:
        step = m.pick(1, 1, 1, -1, 2)
        start = m.pick(0, 0, -length, 1) if step > 0 else m.pick(length - 1, -1)
        starts.append(start)
        ends.append(m.pick(length, 1 << 31) if step > 0 else -(1 << 31))
        steps.append(step)
    axes = m.some(list(range(len(shape)))) or [0]
    listed = [shape_operand(*(values[axis] for axis in axes)) for values in (starts, ends)]
    plain = all(steps[axis] == 1 for axis in axes) and m.flag()
    more = [] if plain else [shape_operand(*(steps[axis] for axis in axes))]
    return Case("onnx.Slice", [m.floats(*shape), *listed, shape_operand(*axes), *more], constants=(3, 4))


def expand(m: Maker) -> Case:
    shape = m.shape(1, 4)
    return Case("onnx.Expand", [m.floats(*m.broadcast(shape)), shape_operand(*(m.pick(length) for length in shape))])


def tile(m: Maker) -> Case:
    shape = m.shape()
    return Case(
        "onnx.Tile", [m.floats(*shape), shape_operand(*(m.pick(1, 1, 2, 4) for _ in shape))], constants=(1,) if m.flag() else ()
    )


def pad(m: Maker) -> Case:
    shape = m.shape()
    pads = shape_operand(*(m.pick(0, 0, 1) for _ in range(2 * len(shape))))
    mode = m.pick("constant", "edge", "edge")
    value = [np.array(m.pick(0, 2), np.float32)] if mode == "constant" and m.flag() else []
    return Case("onnx.Pad", [m.floats(*shape), pads, *value], {"mode": mode}, constants=(1, 2))


def depth_to_space(m: Maker) -> Case:
    return Case("onnx.DepthToSpace", [m.floats(m.length(), 8, 2, 3)], {"blocksize": 2})


def space_to_depth(m: Maker) -> Case:
    return Case("onnx.SpaceToDepth", [m.floats(m.length(), 3, 4, 2)], {"blocksize": 2})


def trilu(m: Maker) -> Case:
    return Case("onnx.Trilu", [m.floats(*m.shape(0, 1), m.length(), m.length()), shape_operand(1)], {"upper": int(m.flag())})


def resize(m: Maker) -> Case:
    shape = (m.length(), m.length(), m.pick(2, 4), 4)
    target = (*shape[:2], shape[2] * m.pick(1, 2), 8)
    if m.flag():
        return Case(
            "onnx.Resize", [m.floats(*shape), None, None, shape_operand(*target)], {"mode": m.pick("nearest", "linear")}
        )
    scales = np.array([b / a for a, b in zip(shape, target, strict=True)], np.float32)
    return Case("onnx.Resize", [m.floats(*shape), None, scales], {"mode": "nearest"}, constants=(2,))


def constant(m: Maker) -> Case:
    return Case("onnx.Constant", [], {"value_ints": list(m.shape())})


def constant_of_shape(m: Maker) -> Case:
    return Case("onnx.ConstantOfShape", [shape_operand(*m.shape())])


def eye_like(m: Maker) -> Case:
    return Case("onnx.EyeLike", [m.floats(m.length(), m.length())])


def range_(m: Maker) -> Case:
    return Case("onnx.Range", [np.array(0), np.array(m.length()), np.array(1)])


def shape_(m: Maker) -> Case:
    return Case("onnx.Shape", [m.floats(*m.shape())], m.pick({}, {"start": -1}, {"start": 0, "end": 1}))


def size(m: Maker) -> Case:
    return Case("onnx.Size", [m.floats(*m.shape())])
