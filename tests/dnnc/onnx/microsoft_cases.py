"""Small nodes of ONNX Runtime's own operators, with operands that it accepts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, helper, numpy_helper

Array = NDArray[Any]
RANDOM = np.random.default_rng(0)


@dataclass(frozen=True)
class NodeCase:
    """One node. ``name`` as in ops: domain and operator. ``constants``: operands that are initializers. ``results``: how many,
    or which are asked for."""

    name: str
    operands: list[Array | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    results: int | tuple[int, ...] = 1
    constants: tuple[int, ...] = ()
    opset: int = 18
    label: str = ""

    def __str__(self) -> str:
        return self.name.rpartition(".")[2] + (f"-{self.label}" if self.label else "")

    def outputs(self) -> list[str]:
        """The names of the results that are asked for, '' for others."""
        asked = range(self.results) if isinstance(self.results, int) else self.results
        return [f"y{i}" if i in asked else "" for i in range(max(asked) + 1)]

    def model(self) -> ModelProto:
        """A model of this node alone."""
        domain, _, op_type = self.name.rpartition(".")
        names = ["" if array is None else f"x{i}" for i, array in enumerate(self.operands)]
        node = helper.make_node(op_type, names, self.outputs(), domain=domain, **self.attributes)
        weights = [numpy_helper.from_array(array, f"x{i}") for i, array in enumerate(self.operands) if i in self.constants]
        inputs = [
            helper.make_tensor_value_info(f"x{i}", helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for i, array in enumerate(self.operands)
            if array is not None and i not in self.constants
        ]
        results = [onnx.ValueInfoProto(name=name) for name in self.outputs() if name]
        graph = helper.make_graph([node], "g", inputs, results, weights)
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def feeds(self) -> dict[str, Array]:
        return {f"x{i}": a for i, a in enumerate(self.operands) if a is not None and i not in self.constants}


def floats(*shape: int) -> Array:
    return np.asarray(RANDOM.uniform(-1, 1, shape), np.float32)


def nibbles(*shape: int) -> Array:
    return RANDOM.integers(0, 256, shape).astype(np.uint8)


def signed(*shape: int) -> Array:
    return RANDOM.integers(-99, 100, shape).astype(np.int8)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def int32(*values: int) -> Array:
    return np.array(values, np.int32)


def _ms(
    op_type: str, *operands: Array | None, label: str = "", results: Any = 1, constants: Any = (), **attributes: Any
) -> NodeCase:
    return NodeCase(f"com.microsoft.{op_type}", [*operands], attributes, results, constants, label=label)


ONE, ZERO, ZERO_I = np.float32(0.02), np.uint8(3), np.int8(0)
SCALE, POINT = (np.asarray(ONE), np.asarray(ZERO))
CACHE = floats(9, 2), floats(9, 2)


def _pointwise() -> list[NodeCase]:
    x = floats(2, 3, 8)
    same = [_ms(name, x) for name in ("FastGelu", "Gelu", "QuickGelu")]
    ids = RANDOM.integers(0, 5, (2, 3)).astype(np.int32)
    tables = [floats(5, 8), floats(4, 8), floats(5, 8)]
    embed = [ids, ids, *tables, floats(8), floats(8)]
    return [
        *same,
        _ms("BiasGelu", x, floats(8)),
        _ms("FastGelu", x, floats(8), label="bias"),
        _ms("ScaledSiLU", x),
        _ms("Trilu", x),
        _ms("Inverse", floats(2, 3, 3)),
        _ms("CDist", floats(5, 4), floats(3, 4)),
        _ms("ExpandDims", x, np.asarray(np.int32(1)), constants=(1,)),
        _ms("Pad", x, ints(0, 1, 0, 0, 2, 3), constants=(1,)),
        _ms("UnfoldTensor", x, dim=2, size=3, step=2),
        _ms("GridSample", floats(1, 2, 4, 4), floats(1, 3, 5, 2)),
        _ms("CropAndResize", floats(2, 3, 8, 8), floats(4, 4), int32(0, 1, 1, 0), int32(5, 6), constants=(3,)),
        _ms("NGramRepeatBlock", ids.astype(np.int64), floats(2, 9), ngram_size=2),
        _ms("MurmurHash3", ids),
        _ms("Range", np.asarray(np.int64(3)), np.asarray(np.int64(11)), np.asarray(np.int64(3)), constants=(0, 1, 2)),
        _ms("GatherND", x, RANDOM.integers(0, 2, (4, 2))),
        _ms("SkipLayerNormalization", x, floats(2, 3, 8), floats(8), floats(8), floats(8), results=(0, 3)),
        _ms("SkipLayerNormalization", x, floats(3, 8), floats(8), label="spread"),
        _ms("SkipSimplifiedLayerNormalization", x, floats(2, 3, 8), floats(8), results=(0, 3)),
        NodeCase("SimplifiedLayerNormalization", [x, floats(8)], {}, 2, opset=14),
        NodeCase("SimplifiedLayerNormalization", [floats(2, 3, 4, 8), floats(4, 8)], {"axis": 2}, 1, opset=21, label="axis"),
        NodeCase("LayerNormalization", [x, floats(8), floats(8)], {}, 3, opset=13, label="old"),
        NodeCase("ThresholdedRelu", [x], {"alpha": 0.5}, opset=8),
        NodeCase("ImageScaler", [floats(1, 2, 4, 4)], {"bias": [0.5, 0.5], "scale": 2.0}, opset=8),
        NodeCase("ScaledTanh", [x], {"alpha": 0.5, "beta": 0.5}, opset=8),
        NodeCase("ParametricSoftplus", [x], {"alpha": 0.5, "beta": 0.5}, opset=8),
        NodeCase("Affine", [x], {"alpha": 0.5, "beta": 0.5}, opset=8),
        _ms("EmbedLayerNormalization", *embed, results=3),
        _ms("EmbedLayerNormalization", *embed, ids, results=2, mask_index_type=1, label="mask"),
        _ms("EmbedLayerNormalization", ids, None, *tables[:2], None, *embed[5:], results=2, label="no segments"),
    ]


def _products() -> list[NodeCase]:
    x = floats(2, 3, 32)
    packed, scales, routed = nibbles(6, 2, 8), floats(12), (floats(5, 32), floats(5, 4))
    return [
        _ms("FusedMatMul", floats(2, 4, 3), floats(2, 5, 4), transA=1, transB=1),
        _ms("FusedMatMul", floats(3, 2, 4), floats(2, 4, 5), transBatchA=1, label="batch"),
        _ms("FusedMatMul", floats(4, 2, 3), floats(4, 2, 5), transBatchA=1, transBatchB=1, transA=1, label="both batches"),
        _ms("FusedMatMul", floats(4), floats(4, 5), label="vector"),
        _ms("FusedGemm", floats(4, 3), floats(5, 4), floats(5), transA=1, transB=1, activation="Relu"),
        _ms(
            "FusedConv", floats(1, 4, 9, 9), floats(6, 4, 3, 3), floats(6), activation="Relu", strides=[2, 2], pads=[1, 1, 1, 1]
        ),
        _ms("FusedConv", floats(1, 4, 9, 9), floats(6, 4, 3, 3), activation="Relu", auto_pad="SAME_UPPER", label="same"),
        _ms("MatMulNBits", x, packed, scales, constants=(1, 2), K=32, N=6, bits=4, block_size=16),
        _ms(
            *("MatMulNBits", x, packed, scales, nibbles(6), None, floats(6)),
            **{"constants": (1, 2, 3, 5), "K": 32, "N": 6, "bits": 4, "block_size": 16, "label": "bias"},
        ),
        _ms(
            *("MatMulNBits", x, packed, floats(6, 2), nibbles(6, 1), int32(*[0] * 16, *[1] * 16)),
            **{"constants": (1, 2, 3, 4), "K": 32, "N": 6, "bits": 4, "block_size": 16, "label": "order"},
        ),
        _ms("MoE", *routed, floats(4, 64, 32), None, floats(4, 32, 64), constants=(2, 4), k=2),
        _ms(
            *("QMoE", *routed, nibbles(4, 64, 16), floats(4, 64, 2), None, nibbles(4, 32, 16), floats(4, 32, 2)),
            **{"constants": (2, 3, 5, 6), "k": 2, "block_size": 16, "activation_type": "swiglu", "swiglu_fusion": 1},
        ),
        _ms("MatMulNBits", x, nibbles(6, 2, 16), floats(12), constants=(1, 2), K=32, N=6, bits=8, block_size=16, label="8"),
        _ms("MatMulBnb4", x, nibbles(96), floats(12), constants=(1, 2), K=32, N=6, block_size=16, quant_type=1),
        _ms("DynamicQuantizeMatMul", x, nibbles(32, 5), floats(5), nibbles(5), floats(5)),
        _ms("MatMulIntegerToFloat", nibbles(2, 3, 32), nibbles(32, 5), np.asarray(ONE), np.asarray(ONE)),
        _ms(
            "MatMulInteger16", RANDOM.integers(-9, 9, (3, 4)).astype(np.int16), RANDOM.integers(-9, 9, (4, 5)).astype(np.int16)
        ),
        _ms("QGemm", nibbles(3, 4), SCALE, POINT, signed(5, 4), SCALE, np.asarray(ZERO_I), transB=1),
        _ms("QGemm", nibbles(3, 4), SCALE, POINT, nibbles(4, 5), SCALE, POINT, None, SCALE, POINT, label="requantised"),
        _ms("TransposeMatMul", floats(2, 4, 3), floats(2, 4, 5), transA=1),
        _ms(
            *(
                "DynamicQuantizeLSTM",
                floats(5, 2, 6),
                signed(1, 6, 16),
                signed(1, 4, 16),
                floats(1, 32),
                None,
                None,
                None,
                None,
            ),
            *(floats(1), np.zeros(1, np.int8), floats(1), np.zeros(1, np.int8)),
            **{"constants": (1, 2, 8, 9, 10, 11), "hidden_size": 4, "results": 3},
        ),
        _ms("NhwcMaxPool", nibbles(1, 9, 9, 4), kernel_shape=[3, 3], strides=[2, 2]),
        _ms("NhwcMaxPool", nibbles(1, 8, 8, 4), kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, label="ceil"),
        _ms("MaxpoolWithMask", floats(1, 4, 9, 9), np.ones((1, 4, 9, 9), np.int32), kernel_shape=[3, 3]),
    ]


def _quantised() -> list[NodeCase]:
    x, y = nibbles(2, 3, 8), nibbles(3, 1)
    image = nibbles(1, 4, 9, 9)
    kernel = dict(kernel_shape=[3, 3], strides=[2, 2])
    return [
        _ms("QLinearAdd", x, SCALE, POINT, y, SCALE, POINT, SCALE, POINT),
        _ms("QLinearMul", y, SCALE, POINT, x, SCALE, POINT, SCALE, POINT),
        _ms("QLinearWhere", np.ones((3, 8), np.bool_), x, SCALE, POINT, y, SCALE, POINT, SCALE, POINT),
        _ms("QLinearConcat", SCALE, POINT, x, SCALE, POINT, nibbles(2, 5, 8), SCALE, POINT, axis=1),
        _ms("QLinearLeakyRelu", x, SCALE, POINT, SCALE, POINT, constants=(1, 2, 3, 4)),
        _ms("QLinearSigmoid", x, SCALE, POINT, SCALE, POINT, constants=(1, 2, 3, 4)),
        _ms("QLinearSoftmax", x, SCALE, POINT, SCALE, POINT, constants=(1, 2, 3, 4), opset=13),
        _ms("QLinearAveragePool", image, SCALE, POINT, SCALE, POINT, **kernel),
        _ms("QLinearAveragePool", nibbles(1, 9, 9, 4), SCALE, POINT, SCALE, POINT, channels_last=1, **kernel, label="last"),
        _ms("QLinearGlobalAveragePool", image, SCALE, POINT, SCALE, POINT),
        _ms("QLinearGlobalAveragePool", nibbles(1, 9, 9, 4), SCALE, POINT, SCALE, POINT, channels_last=1, label="last"),
        _ms(
            *("QLinearConv", nibbles(1, 9, 9, 4), SCALE, POINT, nibbles(6, 4, 3, 3), SCALE, POINT, SCALE, POINT),
            **{"constants": (3,), "channels_last": 1, "label": "last"},
        ),
        NodeCase("QLinearConv", [image, SCALE, POINT, nibbles(6, 4, 3, 3), SCALE, POINT, SCALE, POINT], {}, opset=13),
        _ms("QuantizeLinear", floats(2, 8), SCALE, POINT),
        _ms("QuantizeLinear", floats(2, 8), SCALE, np.asarray(np.uint16(3)), label="16"),
        _ms("DequantizeLinear", x, SCALE, POINT),
        _ms("GatherBlockQuantized", nibbles(5, 16), ints(1, 2, 3), floats(5, 2), bits=4, block_size=16, quantize_axis=1),
        _ms(
            "GatherBlockQuantized",
            nibbles(5, 32),
            ints(1, 2, 3),
            floats(5, 2),
            bits=8,
            block_size=16,
            quantize_axis=1,
            label="8",
        ),
    ]


def _attention() -> list[NodeCase]:
    batch, length, heads, width = 2, 3, 4, 8
    hidden = heads * width
    x = floats(batch, length, hidden)
    weights = [floats(hidden, 3 * hidden), floats(3 * hidden)]
    past = floats(2, batch, heads, 5, width)
    keys = floats(batch, heads, 5, width)
    positions = np.tile(np.arange(length), (batch, 1))
    rows = [floats(1, length, heads * 16), *(floats(1, length, 2 * 16) for _ in range(2))]
    grouped = [*rows, *(floats(1, 2, 5, 16) for _ in range(2))]
    lengths = [int32(5 + length - 1), np.asarray(np.int32(5 + length))]
    start = [int32(length - 1), np.asarray(np.int32(length))]
    caches = [floats(16, 8) for _ in range(2)]
    room = [floats(1, 2, 16, 16) for _ in range(2)]
    quantised = [nibbles(batch, length, hidden), nibbles(hidden, 3 * hidden), weights[1], SCALE, SCALE, None, POINT, POINT]
    group = {"num_heads": heads, "kv_num_heads": 2}
    token = floats(batch, 1, hidden)
    return [
        _ms("Attention", x, *weights, num_heads=heads),
        _ms("Attention", x, *weights, np.ones((batch, length), np.int32), num_heads=heads, label="mask"),
        _ms("Attention", x, *weights, None, past, num_heads=heads, results=2, unidirectional=1, label="past"),
        _ms("Attention", x, *weights, num_heads=heads, results=2, label="present"),
        _ms(
            *("Attention", x, floats(hidden, 2 * hidden + 16), floats(2 * hidden + 16)),
            **{"num_heads": heads, "qkv_hidden_sizes": [hidden, hidden, 16], "label": "narrow values"},
        ),
        _ms("MultiHeadAttention", x, x, x, num_heads=heads),
        _ms("MultiHeadAttention", x, floats(batch, 7, hidden), floats(batch, 7, 16), num_heads=heads, label="cross"),
        _ms("MultiHeadAttention", x, x, x, None, None, None, keys, keys, num_heads=heads, results=3, label="past"),
        _ms("MultiHeadAttention", x, keys, keys, num_heads=heads, label="keys by heads"),
        _ms("MultiHeadAttention", x, x, x, weights[1], num_heads=heads, results=(0, 1, 2), label="bias"),
        _ms("GroupQueryAttention", *grouped, *lengths, results=3, constants=(6,), **group),
        _ms(
            "GroupQueryAttention", *grouped, *lengths, *caches, results=3, constants=(6,), do_rotary=1, **group, label="rotary"
        ),
        _ms("GroupQueryAttention", *grouped[:3], None, None, *start, results=3, constants=(6,), **group, label="prompt"),
        _ms(
            *("GroupQueryAttention", floats(1, length, (heads + 4) * 16), None, None, *grouped[3:], *lengths),
            **{"results": 3, "constants": (6,), **group, "label": "packed"},
        ),
        _ms("GroupQueryAttention", *grouped[:3], *room, *lengths, results=3, constants=(6,), **group, label="room"),
        _ms(
            *("GroupQueryAttention", floats(2, 2, heads * 16), floats(2, 2, 32), floats(2, 2, 32)),
            *(floats(2, 2, 16, 16), floats(2, 2, 16, 16), int32(3, 9), np.asarray(np.int32(16)), *[None] * 9, int32(2, 2)),
            **{"results": 3, "constants": (6,), **group, "label": "lengths"},
        ),
        _ms("RotaryEmbedding", x, positions, *CACHE, num_heads=8, rotary_embedding_dim=4),
        _ms("RotaryEmbedding", floats(batch, heads, length, 4), positions, *CACHE, label="by heads"),
        _ms("QAttention", *quantised, num_heads=heads, constants=(1, 2, 3, 4, 6, 7)),
        _ms(
            "QAttention",
            *quantised,
            past,
            num_heads=heads,
            unidirectional=1,
            results=2,
            constants=(1, 2, 3, 4, 6, 7),
            label="past",
        ),
        _ms(
            *("DecoderMaskedMultiHeadAttention", token, token, token, None, None, keys, keys, np.asarray(int32(4))),
            **{"num_heads": heads, "past_present_share_buffer": 1, "results": 3},
        ),
        _ms(
            *("LinearAttention", floats(batch, length, heads * 4), floats(batch, length, 2 * 4), floats(batch, length, 2 * 8)),
            **{"q_num_heads": heads, "kv_num_heads": 2, "update_rule": "linear", "results": 2},
        ),
        _ms("CausalConvWithState", floats(batch, 8, 6), floats(8, 1, 4), results=2),
        NodeCase("Attention", [floats(1, 4, 3, 8)] * 3, {}, opset=23, label="onnx"),
        NodeCase(
            "Attention", [floats(2, 4, 3, 8)] + [floats(2, 2, 9, 8)] * 2 + [None] * 3 + [ints(3, 9)], opset=24, label="24"
        ),
        NodeCase("TensorScatter", [floats(2, 4, 9, 8), floats(2, 4, 2, 8), ints(3, 7)], {"axis": 2}, opset=24),
        NodeCase("RotaryEmbedding", [floats(1, 4, 3, 4), *CACHE, np.arange(3)[None]], {}, opset=23, label="onnx"),
        NodeCase("RMSNormalization", [x, floats(hidden)], {}, opset=23, label="onnx"),
    ]


CASES = [*_pointwise(), *_products(), *_quantised(), *_attention()]
