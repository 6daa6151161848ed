"""Small models of the Python door's tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

import dnnc

LOOKUP = """<ir_version: 10, opset_import: ["" : 20]>
g (int64[batch, 4] tokens, float[batch, 4, 8] bias) => (float[batch, 4, 8] y, float[batch, 4, 8] z) {
    e = Gather (table, tokens)
    h = Add (e, bias)
    p = MatMul (h, w)
    z = Tanh (p)
    y = Add (z, h)
}"""
"""Looks tokens of a vocabulary of 16 up: a token out of range is an error of the program."""


def lookup() -> onnx.ModelProto:
    model = onnx.parser.parse_model(LOOKUP)
    draw = np.random.default_rng(7)
    for name, shape in (("table", (16, 8)), ("w", (8, 8))):
        model.graph.initializer.append(numpy_helper.from_array(draw.standard_normal(shape).astype(np.float32), name))
    return model


def batch(seed: int = 0, token: int | None = None) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    tokens = draw.integers(0, 16, (2, 4))
    if token is not None:
        tokens[1, 2] = token
    return {"tokens": tokens, "bias": draw.standard_normal((2, 4, 8)).astype(np.float32)}


def build_of(folder: Path, **options: Any) -> dnnc.Build:
    return dnnc.plan(lookup(), machines="preset:cpu-2", dims={"batch": 2}, **options).write(folder / "build")


def equal(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
