"""A chain of fully connected layers."""

from __future__ import annotations

import math

from dnnc.zoo.graph import Graph
from dnnc.zoo.spec import Options


def mlp(graph: Graph, o: Options) -> list[str]:
    """A chain of fully connected layers with ReLU between them."""
    value = graph.input("x", (o["batch"], o["inputs"]))
    sizes = [*[o["hidden"]] * (o["layers"] - 1), o["outputs"]]
    for number, outputs in enumerate(sizes):
        name = f"fc{number + 1}"
        inputs = graph.shape(value)[-1]
        weight = graph.weight(f"{name}.weight", (outputs, inputs), math.sqrt(2.0 / inputs))
        bias = graph.weight(f"{name}.bias", (outputs,), 0.1)
        last = number == len(sizes) - 1
        value = graph.op("Gemm", "y" if last else name, [value, weight, bias], (o["batch"], outputs), transB=1)
        if not last:
            value = graph.op("Relu", f"relu{number + 1}", [value], (o["batch"], outputs))
    return [value]
