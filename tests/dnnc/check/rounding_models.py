"""Small models in which rounding weighs more than in plain 32-bit floats: quantised, in 16 bits, chaotic.

Each is split where onnxruntime fuses otherwise than in the unsplit model, so its stages are right and differ all the same.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from dnnc.onnx.elements import Array

OPSETS = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]


class Graph:
    """An ONNX graph as it grows: each method adds a node and returns the name of its result."""

    def __init__(self, seed: int = 0, prefix: str = "weight") -> None:
        self.prefix = prefix
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(seed)

    def add(self, kind: str, *inputs: str, count: int = 1, domain: str = "", **attributes: object) -> str:
        names = [f"{kind.lower()}{len(self.nodes)}{'abc'[i] if count > 1 else ''}" for i in range(count)]
        self.nodes.append(helper.make_node(kind, inputs, names, names[0], domain=domain, **attributes))
        return names[0]

    def constant(self, value: Array) -> str:
        self.weights.append(numpy_helper.from_array(value, f"{self.prefix}{len(self.weights)}"))
        return self.weights[-1].name

    def normal(self, *shape: int, scale: float = 1.0, dtype: type = np.float32) -> str:
        return self.constant((self.random.standard_normal(shape) * scale).astype(dtype))

    def model(self, inputs: dict[str, tuple[int, list[int]]], outputs: dict[str, tuple[int, list[int]]]) -> onnx.ModelProto:
        given = [helper.make_tensor_value_info(name, *what) for name, what in inputs.items()]
        made = [helper.make_tensor_value_info(name, *what) for name, what in outputs.items()]
        model = helper.make_model(helper.make_graph(self.nodes, "g", given, made, self.weights), opset_imports=OPSETS)
        model.ir_version = 10
        return onnx.shape_inference.infer_shapes(model)


def convolutions(layers: int = 12, channels: int = 16, size: int = 24) -> onnx.ModelProto:
    """As MobileNet: pointwise and depthwise convolutions with residual additions, then a pool and a product."""
    g = Graph(1)
    x = g.add("Conv", "x", g.normal(channels, 3, 3, 3, scale=0.3), g.normal(channels, scale=0.1), pads=[1] * 4)
    for layer in range(layers):
        wide = g.add("Conv", x, g.normal(2 * channels, channels, 1, 1, scale=0.5), g.normal(2 * channels, scale=0.2))
        deep = g.add(
            "Conv", g.add("Relu", wide), g.normal(2 * channels, 1, 3, 3, scale=0.4), g.normal(2 * channels, scale=0.2),
            group=2 * channels, pads=[1] * 4,
        )  # fmt: skip
        narrow = g.add("Conv", g.add("Relu", deep), g.normal(channels, 2 * channels, 1, 1, scale=0.3), g.normal(channels))
        x = g.add("Add", narrow, x) if layer % 2 else narrow
    pooled = g.add("Flatten", g.add("GlobalAveragePool", x))
    y = g.add("Gemm", pooled, g.normal(channels, 10), g.normal(10))
    return g.model({"x": (1, [1, 3, size, size])}, {y: (1, [1, 10])})


def quantised(model: onnx.ModelProto, feeds: dict[str, Array], kinds: tuple[str, ...]) -> onnx.ModelProto:
    """The model with QuantizeLinear and DequantizeLinear around each op of these kinds, as a static quantisation writes it;
    ranges are those of one run."""
    names = [name for node in model.graph.node for name in node.output]
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    del probe.graph.output[:]
    probe.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    session = onnxruntime.InferenceSession(probe.SerializeToString(), providers=["CPUExecutionProvider"])
    values = dict(zip(names, session.run(names, feeds), strict=True)) | feeds
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    g = Graph(prefix="stored")
    known: dict[str, str] = {}

    def around(name: str) -> str:
        """The name of the quantised and dequantised value."""
        if name in known:
            return known[name]
        value = weights.get(name, values.get(name))
        assert value is not None
        if name in weights and value.ndim < 2:
            g.weights.append(numpy_helper.from_array(value, name))
            known[name] = name
        elif name in weights:
            scale = np.float32(np.abs(value).max() / 127)
            stored = g.constant(np.clip(np.round(value / scale), -127, 127).astype(np.int8))
            known[name] = g.add("DequantizeLinear", stored, g.constant(np.array(scale)), g.constant(np.array(0, np.int8)))
        else:
            low, high = min(float(value.min()), 0.0), max(float(value.max()), 0.0)
            scale = np.float32((high - low) / 255)
            ends = g.constant(np.array(scale)), g.constant(np.array(round(-low / scale), np.uint8))
            known[name] = g.add("DequantizeLinear", g.add("QuantizeLinear", name, *ends), *ends)
        return known[name]

    for node in model.graph.node:
        node = onnx.NodeProto.FromString(node.SerializeToString())
        if node.op_type in kinds:
            node.input[:] = [around(name) for name in node.input]
        else:
            for name in node.input:
                if name in weights and name not in {tensor.name for tensor in g.weights}:
                    g.weights.append(numpy_helper.from_array(weights[name], name))
            if node.op_type not in ("Relu", "Gelu", "Tanh"):
                node.input[:] = [known.get(name, name) for name in node.input]
        g.nodes.append(node)
    graph = helper.make_graph(g.nodes, "g", model.graph.input, model.graph.output, g.weights)
    made = helper.make_model(graph, opset_imports=OPSETS)
    made.ir_version = 10
    return onnx.shape_inference.infer_shapes(made)


def quantised_convolutions() -> onnx.ModelProto:
    feeds = {"x": np.random.default_rng(5).standard_normal((1, 3, 24, 24)).astype(np.float32)}
    return quantised(convolutions(), feeds, ("Conv", "Gemm", "Add", "GlobalAveragePool"))


def encoder(dtype: type = np.float32, layers: int = 3, width: int = 32, tokens: int = 16) -> onnx.ModelProto:
    """As BERT: embeddings by number, attention of one head, and layer normalisation; inputs are integers."""
    g = Graph(2)
    number = TensorProto.FLOAT16 if dtype is np.float16 else TensorProto.FLOAT
    x = g.add("Gather", g.normal(64, width, dtype=dtype), "ids")

    def linear(x: str, inner: int, outer: int) -> str:
        product = g.add("MatMul", x, g.normal(inner, outer, scale=inner**-0.5, dtype=dtype))
        return g.add("Add", g.normal(outer, scale=0.1, dtype=dtype), product)

    def norm(x: str) -> str:
        ends = g.constant(np.ones(width, dtype)), g.constant(np.zeros(width, dtype))
        return g.add("LayerNormalization", x, *ends)

    for _ in range(layers):
        q, k, v = (linear(x, width, width) for _ in range(3))
        scores = g.add("MatMul", q, g.add("Transpose", k, perm=[0, 2, 1]))
        scaled = g.add("Div", scores, g.constant(np.array(width**0.5, dtype)))
        mixed = linear(g.add("MatMul", g.add("Softmax", scaled, axis=-1), v), width, width)
        x = norm(g.add("Add", mixed, x))
        x = norm(g.add("Add", linear(g.add("Gelu", linear(x, width, 4 * width)), 4 * width, width), x))
    y = linear(x, width, 8)
    return g.model({"ids": (TensorProto.INT64, [2, tokens])}, {y: (number, [2, tokens, 8])})


def half_with_a_float_head(blocks: int = 6, channels: int = 16) -> onnx.ModelProto:
    """As ConvNeXt in 16 bits: depthwise convolution, layer normalisation, two products; the result is cast to 32 bits."""
    g, half = Graph(3), np.float16
    x = g.add("Cast", "x", to=TensorProto.FLOAT16)
    x = g.add("Conv", x, g.normal(channels, 3, 2, 2, scale=0.3, dtype=half), strides=[2, 2])
    for _ in range(blocks):
        deep = g.add("Conv", x, g.normal(channels, 1, 3, 3, scale=0.4, dtype=half), group=channels, pads=[1] * 4)
        rows = g.add("Transpose", deep, perm=[0, 2, 3, 1])
        ends = g.constant(np.ones(channels, half)), g.constant(np.zeros(channels, half))
        wide = g.add(
            "MatMul", g.add("LayerNormalization", rows, *ends), g.normal(channels, 4 * channels, scale=0.3, dtype=half)
        )
        wide = g.add("Gelu", g.add("Add", wide, g.normal(4 * channels, dtype=half)))
        narrow = g.add("MatMul", wide, g.normal(4 * channels, channels, scale=0.2, dtype=half))
        x = g.add("Add", g.add("Transpose", narrow, perm=[0, 3, 1, 2]), x)
    x = g.add("Cast", x, to=TensorProto.FLOAT)
    y = g.add("Gemm", g.add("Flatten", g.add("GlobalAveragePool", x)), g.normal(channels, 10), g.normal(10))
    return g.model({"x": (1, [1, 3, 16, 16])}, {y: (1, [1, 10])})


def _mix(g: Graph, x: str, width: int, gain: float) -> str:
    """Two products with a sine between, as the two halves of an MLP: on a mesh, the second is added up over members."""
    wide = g.add("Sin", g.add("MatMul", x, g.normal(width, 2 * width, scale=gain * width**-0.5)))
    return g.add("Sin", g.add("MatMul", wide, g.normal(2 * width, width, scale=gain * (2 * width) ** -0.5)))


def dynamically_quantised(layers: int = 4, width: int = 32, gain: float = 2.0, rows: int = 64) -> onnx.ModelProto:
    """Products as dynamic quantisation writes them (DynamicQuantizeLinear, MatMulInteger, and back) between float ones."""
    g = Graph(4)
    x = "x"
    for _ in range(layers):
        x = _mix(g, x, width, gain)
        weight = g.random.standard_normal((width, width)) * gain * width**-0.5
        scale = np.float32(np.abs(weight).max() / 127)
        stored, zero = g.constant(np.round(weight / scale).astype(np.int8)), g.constant(np.array(0, np.int8))
        q = g.add("DynamicQuantizeLinear", x, count=3)
        product = g.add("Cast", g.add("MatMulInteger", q, stored, f"{q[:-1]}c", zero), to=TensorProto.FLOAT)
        scales = g.add("Mul", f"{q[:-1]}b", g.constant(np.array(scale)))
        x = g.add("Add", g.add("Mul", product, scales), g.normal(width, scale=0.2))
    y = g.add("MatMul", _mix(g, x, width, gain), g.normal(width, 8))
    return g.model({"x": (1, [rows, width])}, {y: (1, [rows, 8])})


def chaotic(layers: int = 6, width: int = 64, gain: float = 2.5, choose: bool = False) -> onnx.ModelProto:
    """Plain 32-bit floats, of which each layer multiplies small differences. ``choose``: the output is the best of 64 classes
    in each row, an integer that is right or wrong."""
    g = Graph(5)
    x = "x"
    for _ in range(layers):
        x = _mix(g, x, width, gain)
    if choose:
        y = g.add("ArgMax", g.add("MatMul", x, g.normal(width, 64)), axis=-1, keepdims=0)
        return g.model({"x": (1, [256, width])}, {y: (TensorProto.INT64, [256])})
    y = g.add("MatMul", x, g.normal(width, 8))
    return g.model({"x": (1, [4, width])}, {y: (1, [4, 8])})
