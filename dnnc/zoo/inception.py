"""Inception v3 as torchvision builds it, without the auxiliary classifier."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dnnc.zoo.convolutions import Pair, classifier, conv_norm, pool
from dnnc.zoo.faults import ImageTooSmall
from dnnc.zoo.graph import Graph
from dnnc.zoo.spec import Options, Value
from ir.core.diagnostics import Fault

WIDTH = 32
"""Channels of the first convolution as published; option ``width`` scales all channels in proportion."""
SCALE = 1.0
"""Mean of the scales of batch norms: values neither fade nor grow through about 40 of them without a shortcut."""
SMALLEST = 75
"""The least height and width of an image of which the last block gets at least one pixel."""


def large_enough(values: dict[str, Value]) -> list[Fault]:
    """``image`` must be at least ``SMALLEST``: convolutions without padding shrink it."""
    image = int(values["image"])
    return [ImageTooSmall(image, SMALLEST)] if image < SMALLEST else []


Row = tuple[str, int, Pair]
"""Name, channels and kernel of a convolution."""


@dataclass(frozen=True, slots=True)
class _Writer:
    graph: Graph
    width: int

    def conv(self, name: str, value: str, channels: int, kernel: Pair, *, stride: int = 1, pad: Pair | None = None) -> str:
        """Convolution, batch norm and ReLU. ``pad``: by default ``kernel // 2``."""
        channels = max(1, channels * self.width // WIDTH)
        norm = conv_norm(
            self.graph, f"{name}.conv", f"{name}.bn", value, channels, kernel, stride=stride, pad=pad, epsilon=1e-3, scale=SCALE
        )
        return self.graph.op("Relu", f"{name}.relu", [norm], self.graph.shape(norm))

    def convs(self, name: str, value: str, rows: Iterable[Row]) -> str:
        """Several ``conv`` in sequence."""
        for part, channels, kernel in rows:
            value = self.conv(f"{name}.{part}", value, channels, kernel)
        return value

    def pooled_branch(self, name: str, value: str, channels: int) -> str:
        mean = pool(self.graph, "AveragePool", f"{name}.pool", value, 3, stride=1, pad=1)
        return self.conv(f"{name}.branch_pool", mean, channels, 1)

    def concat(self, name: str, values: list[str]) -> str:
        shapes = [self.graph.shape(value) for value in values]
        batch, _, height, width = shapes[0]
        shape = (batch, sum(branch[1] for branch in shapes), height, width)
        return self.graph.op("Concat", name, values, shape, axis=1)

    # The blocks of figures 5, 6 and 7 of the paper, and those between them that halve height and width.

    def squares(self, name: str, value: str, pooled: int) -> str:
        return self.concat(name, [
            self.conv(f"{name}.branch1x1", value, 64, 1),
            self.convs(name, value, [("branch5x5_1", 48, 1), ("branch5x5_2", 64, 5)]),
            self.convs(name, value, [("branch3x3dbl_1", 64, 1), ("branch3x3dbl_2", 96, 3), ("branch3x3dbl_3", 96, 3)]),
            self.pooled_branch(name, value, pooled),
        ])  # fmt: skip

    def first_halving(self, name: str, value: str) -> str:
        double = self.convs(name, value, [("branch3x3dbl_1", 64, 1), ("branch3x3dbl_2", 96, 3)])
        return self.concat(name, [
            self.conv(f"{name}.branch3x3", value, 384, 3, stride=2, pad=0),
            self.conv(f"{name}.branch3x3dbl_3", double, 96, 3, stride=2, pad=0),
            pool(self.graph, "MaxPool", f"{name}.pool", value, 3, stride=2),
        ])  # fmt: skip

    def lines(self, name: str, value: str, inner: int) -> str:
        across, along = (1, 7), (7, 1)
        single: list[Row] = [("branch7x7_1", inner, 1), ("branch7x7_2", inner, across), ("branch7x7_3", 192, along)]
        double: list[Row] = [
            ("branch7x7dbl_1", inner, 1), ("branch7x7dbl_2", inner, along), ("branch7x7dbl_3", inner, across),
            ("branch7x7dbl_4", inner, along), ("branch7x7dbl_5", 192, across),
        ]  # fmt: skip
        return self.concat(name, [
            self.conv(f"{name}.branch1x1", value, 192, 1),
            self.convs(name, value, single),
            self.convs(name, value, double),
            self.pooled_branch(name, value, 192),
        ])  # fmt: skip

    def second_halving(self, name: str, value: str) -> str:
        rows: list[Row] = [("branch7x7x3_1", 192, 1), ("branch7x7x3_2", 192, (1, 7)), ("branch7x7x3_3", 192, (7, 1))]
        return self.concat(name, [
            self.conv(f"{name}.branch3x3_2", self.conv(f"{name}.branch3x3_1", value, 192, 1), 320, 3, stride=2, pad=0),
            self.conv(f"{name}.branch7x7x3_4", self.convs(name, value, rows), 192, 3, stride=2, pad=0),
            pool(self.graph, "MaxPool", f"{name}.pool", value, 3, stride=2),
        ])  # fmt: skip

    def spread(self, name: str, value: str) -> str:
        single = self.conv(f"{name}.branch3x3_1", value, 384, 1)
        double = self.convs(name, value, [("branch3x3dbl_1", 448, 1), ("branch3x3dbl_2", 384, 3)])
        return self.concat(name, [
            self.conv(f"{name}.branch1x1", value, 320, 1),
            self.conv(f"{name}.branch3x3_2a", single, 384, (1, 3)),
            self.conv(f"{name}.branch3x3_2b", single, 384, (3, 1)),
            self.conv(f"{name}.branch3x3dbl_3a", double, 384, (1, 3)),
            self.conv(f"{name}.branch3x3dbl_3b", double, 384, (3, 1)),
            self.pooled_branch(name, value, 192),
        ])  # fmt: skip


def inception(graph: Graph, o: Options) -> list[str]:
    """Inception v3 (Szegedy et al. 2015) as torchvision builds it; its dropout is left out."""
    write = _Writer(graph, o["width"])
    value = graph.input("x", (o["batch"], 3, o["image"], o["image"]))
    value = write.conv("Conv2d_1a_3x3", value, 32, 3, stride=2, pad=0)
    value = write.conv("Conv2d_2a_3x3", value, 32, 3, pad=0)
    value = write.conv("Conv2d_2b_3x3", value, 64, 3)
    value = pool(graph, "MaxPool", "maxpool1", value, 3, stride=2)
    value = write.conv("Conv2d_3b_1x1", value, 80, 1)
    value = write.conv("Conv2d_4a_3x3", value, 192, 3, pad=0)
    value = pool(graph, "MaxPool", "maxpool2", value, 3, stride=2)
    for name, pooled in (("Mixed_5b", 32), ("Mixed_5c", 64), ("Mixed_5d", 64)):
        value = write.squares(name, value, pooled)
    value = write.first_halving("Mixed_6a", value)
    for name, inner in (("Mixed_6b", 128), ("Mixed_6c", 160), ("Mixed_6d", 160), ("Mixed_6e", 192)):
        value = write.lines(name, value, inner)
    value = write.second_halving("Mixed_7a", value)
    for name in ("Mixed_7b", "Mixed_7c"):
        value = write.spread(name, value)
    return [classifier(graph, value, o["classes"])]
