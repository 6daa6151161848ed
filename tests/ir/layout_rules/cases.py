"""Random small instances of every op that has a rule, by the op's full name."""

from __future__ import annotations

from hypothesis import strategies as st

from ir.layout_rules import RULES
from tests.ir.layout_rules import (
    attention_cases,
    dimension_cases,
    index_cases,
    kernel_cases,
    move_cases,
    pointwise_cases,
    product_cases,
    quantised_cases,
)
from tests.ir.layout_rules.harness import Case
from tests.ir.layout_rules.making import Make, Maker

RUN = tuple(sorted(name for name in RULES if name.startswith("onnx.") or name in kernel_cases.CASES))
"""What onnxruntime runs, or torch (kernels of ``grad``); ops of an update are split in tests of their own."""

CASES: dict[str, Make] = {
    **{
        f"onnx.{name}": pointwise_cases.binary(name)
        for name in (*pointwise_cases.TWO, *pointwise_cases.LOGICAL, *pointwise_cases.BITS)
    },
    **{f"onnx.{name}": pointwise_cases.several(name) for name in pointwise_cases.SEVERAL},
    **{
        f"onnx.{name}": dimension_cases.reduction(name)
        for name in sorted(n.removeprefix("onnx.") for n in RULES if n.startswith("onnx.Reduce"))
    },
    **{f"onnx.{name}": dimension_cases.along(name) for name in ("Hardmax", "LogSoftmax", "LpNormalization", "Softmax")},
    **{f"onnx.{name}": dimension_cases.arg(name) for name in ("ArgMax", "ArgMin")},
    **{f"onnx.{name}": product_cases.pool(name) for name in ("AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool")},
    **{f"onnx.{name}": product_cases.recurrent(name) for name in ("GRU", "LSTM", "RNN")},
    **{
        f"onnx.{name}": dimension_cases.layer_norm(name)
        for name in ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
    },
    **{
        f"onnx.com.microsoft.{name}": dimension_cases.skip_norm(name)
        for name in ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
    },
    **{f"onnx.com.microsoft.{name}": pointwise_cases.with_bias(name) for name in ("BiasGelu", "FastGelu")},
    **{f"onnx.com.microsoft.{name}": pointwise_cases.contributed(name) for name in ("Gelu", "QuickGelu", "ScaledSiLU")},
    **kernel_cases.CASES,
    **quantised_cases.CASES,
    "onnx.Attention": attention_cases.attention,
    "onnx.BatchNormalization": dimension_cases.batch_norm,
    "onnx.Cast": pointwise_cases.cast,
    "onnx.CastLike": pointwise_cases.cast_like,
    "onnx.Clip": pointwise_cases.clip,
    "onnx.Concat": move_cases.concat,
    "onnx.Constant": move_cases.constant,
    "onnx.ConstantOfShape": move_cases.constant_of_shape,
    "onnx.Conv": product_cases.conv,
    "onnx.ConvTranspose": product_cases.conv_transpose,
    "onnx.CumSum": dimension_cases.cumulative,
    "onnx.DFT": dimension_cases.fourier,
    "onnx.DepthToSpace": move_cases.depth_to_space,
    "onnx.DequantizeLinear": pointwise_cases.dequantize,
    "onnx.Dropout": pointwise_cases.dropout,
    "onnx.Einsum": product_cases.einsum,
    "onnx.Expand": move_cases.expand,
    "onnx.EyeLike": move_cases.eye_like,
    "onnx.Flatten": move_cases.flatten,
    "onnx.Gather": index_cases.gather,
    "onnx.GatherElements": index_cases.gather_elements,
    "onnx.GatherND": index_cases.gather_nd,
    "onnx.Gemm": product_cases.gemm,
    "onnx.GroupNormalization": dimension_cases.group_norm,
    "onnx.InstanceNormalization": dimension_cases.instance_norm,
    "onnx.LRN": dimension_cases.local_response,
    "onnx.MatMul": product_cases.matmul,
    "onnx.MeanVarianceNormalization": dimension_cases.mean_variance,
    "onnx.OneHot": index_cases.one_hot,
    "onnx.Pad": move_cases.pad,
    "onnx.QuantizeLinear": pointwise_cases.quantize,
    "onnx.Range": move_cases.range_,
    "onnx.Reshape": move_cases.reshape,
    "onnx.Resize": move_cases.resize,
    "onnx.RotaryEmbedding": attention_cases.rotary,
    "onnx.Scatter": index_cases.scatter,
    "onnx.ScatterElements": index_cases.scatter_elements,
    "onnx.ScatterND": index_cases.scatter_nd,
    "onnx.Shape": move_cases.shape_,
    "onnx.Size": move_cases.size,
    "onnx.Slice": move_cases.slice_,
    "onnx.SpaceToDepth": move_cases.space_to_depth,
    "onnx.Split": move_cases.split,
    "onnx.Squeeze": move_cases.squeeze,
    "onnx.TensorScatter": attention_cases.tensor_scatter,
    "onnx.Tile": move_cases.tile,
    "onnx.TopK": dimension_cases.top_k,
    "onnx.Transpose": move_cases.transpose,
    "onnx.Trilu": move_cases.trilu,
    "onnx.Unsqueeze": move_cases.unsqueeze,
    "onnx.Where": pointwise_cases.where,
    "onnx.com.microsoft.Attention": attention_cases.packed_attention,
    "onnx.com.microsoft.CausalConvWithState": attention_cases.causal_conv,
    "onnx.com.microsoft.DecoderMaskedMultiHeadAttention": attention_cases.masked_multi_head,
    "onnx.com.microsoft.FusedConv": product_cases.fused_conv,
    "onnx.com.microsoft.FusedGemm": product_cases.fused_gemm,
    "onnx.com.microsoft.FusedMatMul": product_cases.fused_matmul,
    "onnx.com.microsoft.GroupQueryAttention": attention_cases.grouped_query,
    "onnx.com.microsoft.LinearAttention": attention_cases.linear_attention,
    "onnx.com.microsoft.QAttention": attention_cases.quantised_attention,
    "onnx.com.microsoft.MultiHeadAttention": attention_cases.multi_head,
    "onnx.com.microsoft.RotaryEmbedding": attention_cases.microsoft_rotary,
}
CASES |= {name: pointwise_cases.unary(name.removeprefix("onnx.")) for name in RUN if name not in CASES and name.count(".") == 1}


@st.composite
def cases(draw: st.DrawFn, name: str) -> Case:
    """An instance of op ``name``."""
    return CASES[name](Maker(draw))
