"""Parts of convolutional networks: convolutions, pools and the classifier at the end."""

from __future__ import annotations

import math
from typing import Any

from dnnc.zoo.graph import Graph

Pair = int | tuple[int, int]
"""One number for height and width, or one for each."""


def convolution(
    graph: Graph, name: str, value: str, outputs: int, kernel: Pair, *, stride: int = 1, pad: Pair = 0, bias: bool = True
) -> str:
    """A convolution of images, or of rows ``[batch, channels, length]``. Its weights have deviation sqrt(2 / inputs of an
    output), so that values keep their scale after a ReLU."""
    batch, inputs, *sides = graph.shape(value)
    kernels, pads = ([both] * len(sides) if isinstance(both, int) else list(both) for both in (kernel, pad))
    shape = (batch, outputs, *_sides(sides, kernels, pads, stride))
    weight = graph.weight(f"{name}.weight", (outputs, inputs, *kernels), math.sqrt(2.0 / (inputs * math.prod(kernels))))
    operands = [value, weight, graph.weight(f"{name}.bias", (outputs,), 0.02)] if bias else [value, weight]
    ones = [1] * len(sides)
    return graph.op(
        "Conv", name, operands, shape,
        kernel_shape=kernels, strides=[stride] * len(sides), pads=[*pads, *pads], dilations=ones, group=1,
    )  # fmt: skip


def conv_norm(
    graph: Graph,
    conv: str,
    norm: str,
    value: str,
    outputs: int,
    kernel: Pair,
    *,
    stride: int = 1,
    pad: Pair | None = None,
    epsilon: float = 1e-5,
    scale: float = 0.8,
) -> str:
    """A convolution without bias, then batch norm with scales around ``scale``. ``pad``: by default ``kernel // 2``."""
    if pad is None:
        pad = kernel // 2 if isinstance(kernel, int) else (kernel[0] // 2, kernel[1] // 2)
    value = convolution(graph, conv, value, outputs, kernel, stride=stride, pad=pad, bias=False)
    scales = graph.weight(f"{norm}.weight", (outputs,), 0.3, scale, uniform=True)
    shift = graph.weight(f"{norm}.bias", (outputs,), 0.1)
    mean = graph.buffer(f"{norm}.running_mean", (outputs,), 0.1)
    variance = graph.buffer(f"{norm}.running_var", (outputs,), 0.4, 1.0, uniform=True)
    shape = graph.shape(value)
    return graph.op("BatchNormalization", norm, [value, scales, shift, mean, variance], shape, epsilon=epsilon)


def pool(graph: Graph, kind: str, name: str, value: str, kernel: int, *, stride: int, pad: int = 0) -> str:
    """``MaxPool`` or ``AveragePool`` over squares. An average counts the padding as elements, as PyTorch's does by default."""
    batch, channels, *sides = graph.shape(value)
    shape = (batch, channels, *_sides(sides, [kernel] * 2, [pad] * 2, stride))
    counted: dict[str, Any] = {"count_include_pad": 1} if kind == "AveragePool" else {}
    return graph.op(
        kind, name, [value], shape, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4, **counted
    )  # fmt: skip


def classifier(graph: Graph, value: str, classes: int) -> str:
    """``y``: a linear layer on the mean of each channel."""
    batch, channels = graph.shape(value)[:2]
    value = graph.op("GlobalAveragePool", "avgpool", [value], (batch, channels, 1, 1))
    value = graph.op("Flatten", "flatten", [value], (batch, channels), axis=1)
    weight = graph.weight("fc.weight", (classes, channels), 1 / math.sqrt(channels))
    bias = graph.weight("fc.bias", (classes,), 0.02)
    return graph.op("Gemm", "y", [value, weight, bias], (batch, classes), transB=1)


def _sides(sides: list[int], kernels: list[int], pads: list[int], stride: int) -> tuple[int, ...]:
    return tuple((side + 2 * pad - kernel) // stride + 1 for side, kernel, pad in zip(sides, kernels, pads, strict=True))
