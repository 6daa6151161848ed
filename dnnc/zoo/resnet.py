"""ResNet-50 as torchvision builds it."""

from __future__ import annotations

import math

from dnnc.zoo.graph import Graph
from dnnc.zoo.spec import Options


def resnet(graph: Graph, o: Options) -> list[str]:
    """ResNet-50 (He et al. 2015) as torchvision builds it: version 1.5, the stride in the 3x3 convolution of a bottleneck."""
    value = graph.input("x", (o["batch"], 3, o["image"], o["image"]))
    value = _conv_norm(graph, "conv1", "bn1", value, o["width"], 7, 2)
    value = graph.op("Relu", "relu", [value], graph.shape(value))
    batch, channels, side, _ = graph.shape(value)
    side = (side - 1) // 2 + 1
    value = graph.op(
        "MaxPool", "maxpool", [value], (batch, channels, side, side),
        kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1],
    )  # fmt: skip
    for layer, blocks in enumerate((3, 4, 6, 3)):
        for number in range(blocks):
            stride = 2 if layer and number == 0 else 1
            value = _bottleneck(graph, f"layer{layer + 1}.{number}", value, o["width"] << layer, stride)
    channels = graph.shape(value)[1]
    value = graph.op("GlobalAveragePool", "avgpool", [value], (batch, channels, 1, 1))
    value = graph.op("Flatten", "flatten", [value], (batch, channels), axis=1)
    weight = graph.weight("fc.weight", (o["classes"], channels), 1 / math.sqrt(channels))
    bias = graph.weight("fc.bias", (o["classes"],), 0.02)
    return [graph.op("Gemm", "y", [value, weight, bias], (batch, o["classes"]), transB=1)]


def _bottleneck(graph: Graph, name: str, value: str, width: int, stride: int) -> str:
    """1x1 to ``width``, 3x3, 1x1 to four times ``width``, and the shortcut around them."""
    shortcut = value
    for number, (channels, kernel, step) in enumerate(((width, 1, 1), (width, 3, stride), (4 * width, 1, 1)), start=1):
        value = _conv_norm(graph, f"{name}.conv{number}", f"{name}.bn{number}", value, channels, kernel, step)
        if number < 3:
            value = graph.op("Relu", f"{name}.relu{number}", [value], graph.shape(value))
    if graph.shape(shortcut) != graph.shape(value):
        shortcut = _conv_norm(graph, f"{name}.downsample.0", f"{name}.downsample.1", shortcut, 4 * width, 1, stride)
    value = graph.op("Add", f"{name}.add", [value, shortcut], graph.shape(value))
    return graph.op("Relu", f"{name}.relu3", [value], graph.shape(value))


def _conv_norm(graph: Graph, conv: str, norm: str, value: str, outputs: int, kernel: int, stride: int) -> str:
    """A convolution without bias (square kernel, half padding), then batch norm."""
    batch, inputs, side, _ = graph.shape(value)
    side = (side + 2 * (kernel // 2) - kernel) // stride + 1
    shape = (batch, outputs, side, side)
    fan_in = inputs * kernel * kernel
    weight = graph.weight(f"{conv}.weight", (outputs, inputs, kernel, kernel), math.sqrt(2.0 / fan_in))
    value = graph.op(
        "Conv", conv, [value, weight], shape,
        kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[kernel // 2] * 4, dilations=[1, 1], group=1,
    )  # fmt: skip
    scale = graph.weight(f"{norm}.weight", (outputs,), 0.3, 0.8, uniform=True)
    shift = graph.weight(f"{norm}.bias", (outputs,), 0.1)
    mean = graph.buffer(f"{norm}.running_mean", (outputs,), 0.1)
    variance = graph.buffer(f"{norm}.running_var", (outputs,), 0.4, 1.0, uniform=True)
    return graph.op("BatchNormalization", norm, [value, scale, shift, mean, variance], shape, epsilon=1e-5)
