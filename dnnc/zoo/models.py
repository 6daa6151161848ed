"""The architectures. Each is a function of its options and writes one ``Graph``; defaults are the published dimensions."""

from __future__ import annotations

import math
from collections.abc import Mapping

from dnnc.zoo.graph import Graph
from ir.types import DType

MASKED = -10000.0
"""Added to a score that must not count; representable in half precision, and its exponential is 0."""


def mlp(graph: Graph, o: Mapping[str, int]) -> list[str]:
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


def gpt2(graph: Graph, o: Mapping[str, int]) -> list[str]:
    """GPT-2 (Radford et al. 2019) with its language-model head, whose weight is the token embedding: pre-norm, tanh GELU."""
    batch, seq, hidden, layers = o["batch"], o["seq"], o["hidden"], o["layers"]
    ids = graph.input("input_ids", (batch, seq), DType.I64)
    wte = graph.weight("wte.weight", (o["vocab"], hidden), 0.6 / math.sqrt(hidden))
    wpe = graph.weight("wpe.weight", (o["positions"], hidden), 0.3 / math.sqrt(hidden))
    places = graph.op("Gather", "wpe", [wpe, graph.integers("position_ids", list(range(seq)))], (seq, hidden), axis=0)
    tokens = graph.op("Gather", "wte", [wte, ids], (batch, seq, hidden), axis=0)
    value = graph.op("Add", "embedding", [tokens, places], (batch, seq, hidden))
    full = graph.fill("masked", MASKED, (seq, seq))
    mask = graph.op("Trilu", "causal_mask", [full, graph.integers("one", [1], scalar=True)], (seq, seq), upper=1)
    for number in range(layers):
        name = f"h.{number}"
        normed = graph.layer_norm(f"{name}.ln_1", value, 1e-5)
        packed = graph.linear(f"{name}.attn.c_attn", normed, 3 * hidden)
        parts = [(f"{name}.attn.{part}", (batch, seq, hidden)) for part in ("query", "key", "value")]
        sizes = graph.integers(f"thirds.{hidden}", [hidden] * 3)
        q, k, v = graph.ops("Split", f"{name}.attn.split", [packed, sizes], parts, axis=2)
        mixed = graph.attention(f"{name}.attn", q, k, v, o["heads"], mask)
        projected = graph.linear(f"{name}.attn.c_proj", mixed, hidden, 1 / math.sqrt(2 * layers))
        value = graph.op("Add", f"{name}.attn.residual", [value, projected], (batch, seq, hidden))
        normed = graph.layer_norm(f"{name}.ln_2", value, 1e-5)
        wide = graph.linear(f"{name}.mlp.c_fc", normed, 4 * hidden)
        wide = graph.op("Gelu", f"{name}.mlp.act", [wide], graph.shape(wide), approximate="tanh")
        projected = graph.linear(f"{name}.mlp.c_proj", wide, hidden, 1 / math.sqrt(2 * layers))
        value = graph.op("Add", f"{name}.mlp.residual", [value, projected], (batch, seq, hidden))
    value = graph.layer_norm("ln_f", value, 1e-5)
    flat = graph.reshape("ln_f.flat", value, (batch * seq, hidden))
    logits = graph.op("Gemm", "lm_head", [flat, wte], (batch * seq, o["vocab"]), transB=1)
    return [graph.reshape("logits", logits, (batch, seq, o["vocab"]))]


def bert(graph: Graph, o: Mapping[str, int]) -> list[str]:
    """BERT (Devlin et al. 2018) with its pooler: post-norm, exact GELU, a padding mask."""
    batch, seq, hidden = o["batch"], o["seq"], o["hidden"]
    ids = graph.input("input_ids", (batch, seq), DType.I64)
    kept = graph.input("attention_mask", (batch, seq), DType.I64)
    segments = graph.input("token_type_ids", (batch, seq), DType.I64)
    shape = (batch, seq, hidden)
    words = graph.weight("embeddings.word_embeddings.weight", (o["vocab"], hidden), 0.5)
    places = graph.weight("embeddings.position_embeddings.weight", (o["positions"], hidden), 0.3)
    kinds = graph.weight("embeddings.token_type_embeddings.weight", (2, hidden), 0.3)
    position_ids = graph.integers("position_ids", list(range(seq)))
    value = graph.op("Gather", "embeddings.word", [words, ids], shape, axis=0)
    kind = graph.op("Gather", "embeddings.token_type", [kinds, segments], shape, axis=0)
    value = graph.op("Add", "embeddings.word_and_type", [value, kind], shape)
    place = graph.op("Gather", "embeddings.position", [places, position_ids], (seq, hidden), axis=0)
    value = graph.op("Add", "embeddings.sum", [value, place], shape)
    value = graph.layer_norm("embeddings.LayerNorm", value, 1e-12)

    spread = graph.reshape("mask.spread", kept, (batch, 1, 1, seq))
    real = graph.op("Cast", "mask.cast", [spread], (batch, 1, 1, seq), to=_ONNX_ELEMENT[graph.dtype])
    absent = graph.op("Sub", "mask.absent", [graph.fill("mask.one", 1.0), real], (batch, 1, 1, seq))
    mask = graph.op("Mul", "mask", [absent, graph.fill("mask.masked", MASKED)], (batch, 1, 1, seq))

    for number in range(o["layers"]):
        name = f"encoder.layer.{number}"
        q, k, v = (graph.linear(f"{name}.attention.self.{part}", value, hidden) for part in ("query", "key", "value"))
        mixed = graph.attention(f"{name}.attention.self", q, k, v, o["heads"], mask)
        projected = graph.linear(f"{name}.attention.output.dense", mixed, hidden)
        summed = graph.op("Add", f"{name}.attention.output.residual", [projected, value], shape)
        value = graph.layer_norm(f"{name}.attention.output.LayerNorm", summed, 1e-12)
        wide = graph.linear(f"{name}.intermediate.dense", value, o["intermediate"])
        wide = graph.op("Gelu", f"{name}.intermediate.act", [wide], graph.shape(wide), approximate="none")
        narrow = graph.linear(f"{name}.output.dense", wide, hidden)
        summed = graph.op("Add", f"{name}.output.residual", [narrow, value], shape)
        result = "last_hidden_state" if number == o["layers"] - 1 else ""
        value = graph.layer_norm(f"{name}.output.LayerNorm", summed, 1e-12, result)
    first = graph.op("Gather", "pooler.first", [value, graph.integers("zero", [0], scalar=True)], (batch, hidden), axis=1)
    pooled = graph.linear("pooler.dense", first, hidden)
    return [value, graph.op("Tanh", "pooler_output", [pooled], (batch, hidden))]


def resnet(graph: Graph, o: Mapping[str, int]) -> list[str]:
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


_ONNX_ELEMENT = {DType.F32: 1, DType.F16: 10, DType.F64: 11, DType.BF16: 16}
"""TensorProto.DataType of the element types a zoo model may have."""
