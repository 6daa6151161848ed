"""Vision Transformer: an encoder of image patches."""

from __future__ import annotations

import math

from dnnc.zoo.attention import attention
from dnnc.zoo.faults import NoMultiple
from dnnc.zoo.graph import Graph
from dnnc.zoo.spec import Options, Value
from ir.core.diagnostics import Fault


def whole_patches(values: dict[str, Value]) -> list[Fault]:
    """``image`` must be a multiple of ``patch``."""
    image, patch = int(values["image"]), int(values["patch"])
    if image % patch == 0:
        return []
    return [NoMultiple("image", image, f"patch={patch}", f"image={max(1, image // patch) * patch}")]


def vit(graph: Graph, o: Options) -> list[str]:
    """ViT (Dosovitskiy et al. 2020, table 1 for the dimensions) with its class token and linear head: pre-norm, exact GELU.
    Patches are a convolution whose windows do not overlap."""
    batch, hidden, side = o["batch"], o["hidden"], o["image"] // o["patch"]
    image = graph.input("x", (batch, 3, o["image"], o["image"]))
    fan_in = 3 * o["patch"] ** 2
    weight = graph.weight("patches.weight", (hidden, 3, o["patch"], o["patch"]), 1 / math.sqrt(fan_in))
    bias = graph.weight("patches.bias", (hidden,), 0.02)
    value = graph.op(
        "Conv", "patches", [image, weight, bias], (batch, hidden, side, side),
        kernel_shape=[o["patch"]] * 2, strides=[o["patch"]] * 2, pads=[0] * 4, dilations=[1, 1], group=1,
    )  # fmt: skip
    value = graph.transpose("patches.rows", graph.reshape("patches.flat", value, (batch, hidden, side * side)), [0, 2, 1])
    token = graph.weight("class_token", (1, 1, hidden), 0.5)
    spread = graph.integers(f"shape.{batch}x1x{hidden}", [batch, 1, hidden])
    token = graph.op("Expand", "class_token.spread", [token, spread], (batch, 1, hidden))
    shape = (batch, side * side + 1, hidden)
    value = graph.op("Concat", "tokens", [token, value], shape, axis=1)
    value = graph.add("embedding", value, graph.weight("positions", (1, *shape[1:]), 0.3))
    for number in range(o["layers"]):
        name = f"layers.{number}"
        normed = graph.layer_norm(f"{name}.ln_1", value, 1e-6)
        q, k, v = (graph.linear(f"{name}.attention.{part}", normed, hidden) for part in ("query", "key", "value"))
        mixed = attention(graph, f"{name}.attention", q, k, v, o["heads"])
        value = graph.add(f"{name}.attention.residual", value, graph.linear(f"{name}.attention.out", mixed, hidden))
        wide = graph.linear(f"{name}.mlp.fc1", graph.layer_norm(f"{name}.ln_2", value, 1e-6), o["ffn"])
        wide = graph.op("Gelu", f"{name}.mlp.act", [wide], graph.shape(wide), approximate="none")
        value = graph.add(f"{name}.mlp.residual", value, graph.linear(f"{name}.mlp.fc2", wide, hidden))
    value = graph.layer_norm("ln", value, 1e-6)
    first = graph.op("Gather", "ln.first", [value, graph.integers("zero", [0], scalar=True)], (batch, hidden), axis=1)
    return [graph.linear("head", first, o["classes"])]
