"""ResNet-50 and ResNet-101 as torchvision builds them."""

from __future__ import annotations

from collections.abc import Sequence

from dnnc.zoo.convolutions import classifier, conv_norm, pool
from dnnc.zoo.graph import Graph
from dnnc.zoo.spec import Options


def resnet(graph: Graph, o: Options, *, blocks_of: Sequence[int]) -> list[str]:
    """ResNet (He et al. 2015) as torchvision builds it: version 1.5, with the stride in the 3x3 convolution of a bottleneck.
    ``blocks_of``: the number of bottlenecks in each stage."""
    value = graph.input("x", (o["batch"], 3, o["image"], o["image"]))
    value = conv_norm(graph, "conv1", "bn1", value, o["width"], 7, stride=2)
    value = graph.op("Relu", "relu", [value], graph.shape(value))
    value = pool(graph, "MaxPool", "maxpool", value, 3, stride=2, pad=1)
    for layer, blocks in enumerate(blocks_of):
        for number in range(blocks):
            stride = 2 if layer and number == 0 else 1
            value = _bottleneck(graph, f"layer{layer + 1}.{number}", value, o["width"] << layer, stride)
    return [classifier(graph, value, o["classes"])]


def _bottleneck(graph: Graph, name: str, value: str, width: int, stride: int) -> str:
    """Convolutions 1x1 to ``width`` channels, 3x3, and 1x1 to ``4 * width`` channels, plus the shortcut."""
    shortcut = value
    for number, (channels, kernel, step) in enumerate(((width, 1, 1), (width, 3, stride), (4 * width, 1, 1)), start=1):
        value = conv_norm(graph, f"{name}.conv{number}", f"{name}.bn{number}", value, channels, kernel, stride=step)
        if number < 3:
            value = graph.op("Relu", f"{name}.relu{number}", [value], graph.shape(value))
    if graph.shape(shortcut) != graph.shape(value):
        shortcut = conv_norm(graph, f"{name}.downsample.0", f"{name}.downsample.1", shortcut, 4 * width, 1, stride=stride)
    value = graph.op("Add", f"{name}.add", [value, shortcut], graph.shape(value))
    return graph.op("Relu", f"{name}.relu3", [value], graph.shape(value))
