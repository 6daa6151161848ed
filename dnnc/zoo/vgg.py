"""VGG-19 as torchvision builds it."""

from __future__ import annotations

import math

from dnnc.zoo.convolutions import convolution, pool
from dnnc.zoo.faults import NoMultiple
from dnnc.zoo.graph import Graph
from dnnc.zoo.spec import Options, Value
from ir.core.diagnostics import Fault

CONVOLUTIONS = (2, 2, 4, 4, 4)
"""The number of convolutions before each pool; their channels are 1, 2, 4, 8 and 8 times ``width``."""


def halved_five_times(values: dict[str, Value]) -> list[Fault]:
    """``image`` must be a multiple of 32, since each of five pools halves it."""
    image = int(values["image"])
    return [] if image % 32 == 0 else [NoMultiple("image", image, "32", f"image={max(32, image // 32 * 32)}")]


def vgg(graph: Graph, o: Options) -> list[str]:
    """VGG-19 (Simonyan and Zisserman 2014, table 1, column E) without batch norm; its dropout is left out."""
    value = graph.input("x", (o["batch"], 3, o["image"], o["image"]))
    number = 0
    for stage, convolutions in enumerate(CONVOLUTIONS):
        for _ in range(convolutions):
            value = convolution(graph, f"features.{number}", value, o["width"] << min(stage, 3), 3, pad=1)
            value = graph.op("Relu", f"features.{number + 1}", [value], graph.shape(value))
            number += 2
        value = pool(graph, "MaxPool", f"features.{number}", value, 2, stride=2)
        number += 1
    batch, *rest = graph.shape(value)
    value = graph.op("Flatten", "flatten", [value], (batch, math.prod(rest)), axis=1)
    for number, width in ((0, o["hidden"]), (3, o["hidden"]), (6, o["classes"])):
        last = number == 6
        inputs = graph.shape(value)[1]
        weight = graph.weight(f"classifier.{number}.weight", (width, inputs), math.sqrt((1 if last else 2) / inputs))
        bias = graph.weight(f"classifier.{number}.bias", (width,), 0.02)
        value = graph.op("Gemm", "y" if last else f"classifier.{number}", [value, weight, bias], (batch, width), transB=1)
        if not last:
            value = graph.op("Relu", f"classifier.{number + 1}", [value], (batch, width))
    return [value]
