"""Cost of ONNX Runtime's own operators: fused products and attention, packed and quantised weights, and what else there is.

Conventions as in ``facts``. A product of integers counts as one of floats would; unpacking a weight is 2 flops per element,
quantising 5 and scaling back 2. What a quantised op reads of its weights are their packed bytes.
"""

from __future__ import annotations

import math
from dataclasses import replace

from passes.costs.products import BITS, BLOCKS
from passes.prepare.cost.contractions import (
    SOFTMAX,
    causal_conv,
    conv,
    gemm,
    grouped_sizes,
    linear_attention,
    product,
    qlinear_conv,
    rotary,
    scaled_attention,
)
from passes.prepare.cost.facts import TRANSCENDENTAL as T
from passes.prepare.cost.facts import Formula, OpFacts, Work, rounds_rows, split_gradients
from passes.prepare.cost.pointwise import (
    elementwise,
    generated,
    grid_sample,
    move,
    normalization,
    pool,
    quantize,
    reduction,
    selection,
    softmax,
    sorting,
    view,
)

ACTIVATION = T + 2
"""Flops per element of the activation that is fused into a product: between Relu's 1 and a Gelu."""
UNPACK, QUANTIZE, RESCALE = 2, 5, 2


def activated(formula: Formula, addend: int | None = None) -> Formula:
    """A product with an activation on its result; operand ``addend``, where there is one, is added before."""

    def work(facts: OpFacts) -> Work:
        extra = ACTIVATION + (addend is not None and facts.present(addend))
        base = formula(facts)
        return replace(base, flops=base.flops + extra * facts.size(-1))

    return work


def fused_matmul(facts: OpFacts) -> Work:
    """FusedMatMul: MatMul times alpha of operands that may be transposed, or have their rows in front of the batch."""
    shape = facts.shape(0)
    if facts.op.get("transA", 0) and len(shape) > 1:
        inner = shape[0] if facts.op.get("transBatchA", 0) else shape[-2]
    else:
        inner = shape[-1]
    return product(facts, 2 * facts.size(-1) * inner, (0, 1))


def packed(inner: str = "K") -> Formula:
    """A [.., K] times a packed weight of N rows (MatMulNBits and kin): the product and 2 flops per weight to unpack. Where
    rows are rounded to 8 bits (``rounds_rows``), weights are unpacked in registers, and the product is of a class of its own,
    in 8 bits block by block."""

    def formula(facts: OpFacts) -> Work:
        k, n = int(facts.op.get(inner, facts.shape(0)[-1])), facts.shape(-1)[-1]
        flops = 2 * facts.size(-1) * k
        bias = facts.size(-1) if facts.op.name.endswith("MatMulNBits") and facts.present(5) else 0
        if rounds_rows(facts):
            return Work(f"matmul{BLOCKS}", flops + QUANTIZE * facts.size(0) + bias)
        return Work("matmul", flops + UNPACK * k * n + bias, input_grad=flops if facts.has_gradient() else 0)

    return formula


def packed_projections(*results: int) -> Formula:
    """A normalised once, then times several packed weights: MatMulNBitsQkv (results Q, K, V), MatMulNBitsMlp (gate and up of
    one result, and their product)."""

    def formula(facts: OpFacts) -> Work:
        k, rows = facts.shape(0)[-1], math.prod(facts.shape(0)[:-1])
        columns = sum(facts.shape(-1 - i)[-1] for i in results)
        gated = (ACTIVATION + 1) * facts.size(-1) if len(set(results)) < len(results) else 0
        return Work("matmul", 2 * k * columns * rows + UNPACK * k * columns + 5 * facts.size(0) + gated)

    return formula


def integer_product(kind: str, weight: int, *, quantizes: bool = False, bias: int = 0) -> Formula:
    """A product of 8-bit integers whose result is scaled (QGemm, MatMulIntegerToFloat, ..); ``weight``: the second factor;
    ``quantizes``: the first comes as floats."""

    def formula(facts: OpFacts) -> Work:
        a = facts.shape(0)
        inner = a[0] if facts.op.get("transA", 0) else a[-1]
        extra = (RESCALE + (bias > 0 and facts.present(bias))) * facts.size(-1) + (QUANTIZE * facts.size(0) if quantizes else 0)
        if facts.size(weight) % inner:
            raise ValueError(f"{facts.size(weight)} weights are no rows of {inner}")
        return Work(kind, 2 * facts.size(-1) * inner + extra)

    return formula


def quantized_lstm(facts: OpFacts) -> Work:
    """DynamicQuantizeLSTM(X [S, B, I], W [D, I, 4 H], R [D, H, 4 H], ..): an LSTM whose inputs and states are quantised."""
    steps, batch, inputs = facts.shape(0)
    directions, hidden, gates = facts.shape(2)
    if gates != 4 * hidden:
        raise ValueError(f"{gates} is not 4 gates of {hidden} units")
    cells = steps * batch * directions * hidden
    flops = 8 * cells * (inputs + hidden) + cells * (5 * T + 4 + 4 * RESCALE + QUANTIZE) + QUANTIZE * facts.size(0)
    return Work("recurrent", flops)


def experts(first: int, second: int, third: int) -> Formula:
    """MoE and QMoE(input [.., H], router [tokens, experts], ..): each token passes ``k`` experts, whose weights [experts, ..]
    are operands ``first``, ``second`` and ``third``; only those of experts that a token meets are read."""

    def formula(facts: OpFacts) -> Work:
        count, chosen = facts.shape(first)[0], int(facts.op.get("k", 1))
        tokens = math.prod(facts.shape(0)[:-1])
        unit = 8 // int(facts.op.get("expert_weight_bits", 4)) if facts.op.name.endswith("QMoE") else 1
        weights = unit * sum(math.prod(facts.shape(i)[1:]) for i in (first, second, third) if facts.present(i))
        met = min(count, tokens * chosen)
        stacked = [i for i in range(2, len(facts.operands)) if facts.present(i)]
        taken = sum(facts.bytes(i) * met // count for i in stacked)
        weight = sum(facts.bytes(i) * met // count for i in stacked if facts.is_resource(i))
        unpack = UNPACK * met * weights if unit > 1 else 0
        flops = 2 * tokens * chosen * weights + unpack + SOFTMAX * facts.size(1)
        return Work("matmul", flops, read=facts.bytes(0) + facts.bytes(1) + taken, weight=weight)

    return formula


def multi_head_attention(bias: int, past: int) -> Formula:
    """MultiHeadAttention(query [B, L, HD], key, value, ..): key and value 3-D, or packed or cached 4-D."""

    def formula(facts: OpFacts) -> Work:
        q, k, v = facts.shape(0), facts.shape(1), facts.shape(2)
        heads = int(facts.op.get("num_heads"))
        if len(q) == 5:  # packed query, key, value: [B, L, H, 3, D]
            return scaled_attention(facts, batch=q[0], heads=heads, queries=q[1], keys=q[1], width=q[4], value_width=q[4])
        keys = k[1] if len(k) == 5 else k[-2]
        before = facts.shape(past)[-2] if facts.present(past) else 0
        after = facts.shape(-2)[-2] if len(facts.shape(-2)) == 4 else 0  # the cache that comes out
        width = q[2] // heads
        value_width = v[-1] if len(v) == 4 else (v[-1] // heads if v else width)
        extra = facts.size(0) + facts.size(1) + facts.size(2) if facts.present(bias) else 0
        return scaled_attention(
            facts,
            batch=q[0],
            heads=heads,
            queries=q[1],
            keys=after or keys + before,
            width=width,
            value_width=value_width,
            extra=extra,
        )

    return formula


def group_query_attention(facts: OpFacts) -> Work:
    """GroupQueryAttention and SparseAttention(query [B, L, HD], key, value, past_key [B, Hkv, Lp, D], ..): queries look at
    every position of the cache, or at those of a window. A cache that is a state of the program is read once and written where
    the new keys and values go; any other is copied. A core reads it while it computes, so its bytes count as no weight's."""
    q = facts.shape(0)
    heads, kv_heads, width, keys, seen = grouped_sizes(facts)
    rotated = q[0] * q[1] * (heads + kv_heads) * width if facts.op.get("do_rotary", 0) else 0
    work = scaled_attention(
        facts, batch=q[0], heads=heads, queries=q[1], keys=seen, width=width, value_width=width, extra=3 * rotated
    )
    if not facts.is_resource(3):
        return work
    caches = (facts.bytes(3) + facts.bytes(4)) * seen // keys
    others = [i for i in range(len(facts.operands)) if facts.present(i) and i not in (3, 4)]
    weight = sum(facts.bytes(i) for i in others if facts.is_resource(i))
    new = 2 * q[0] * q[1] * kv_heads * width * facts.bytes(3) // max(1, facts.size(3))
    read = caches + sum(facts.bytes(i) for i in others)
    return replace(work, read=read, write=facts.bytes(-1) + new, weight=weight)


def fused_attention(past: int, *, quantized: bool = False) -> Formula:
    """Attention and QAttention(input [B, S, I], weights [I, 3 HD], bias, ..): the projection and the attention after it."""

    def formula(facts: OpFacts) -> Work:
        (batch, length, inputs), (_, columns) = facts.shape(0), facts.shape(1)
        heads, inner = int(facts.op.get("num_heads")), facts.shape(-1)[-1]
        before = facts.shape(past)[3] if facts.present(past) else 0
        projected = batch * length * columns
        projection = 2 * projected * inputs
        core = scaled_attention(
            facts,
            batch=batch,
            heads=heads,
            queries=length,
            keys=length + before,
            width=(columns - inner) // 2 // heads,
            value_width=inner // heads,
        )
        extra = projected * (1 + (RESCALE if quantized else 0))
        gradients = split_gradients(facts, {} if quantized else {0: projection, 1: projection})
        return Work("attention", core.flops + projection + extra, core.input_grad + gradients[0], gradients[1], core.saved)

    return formula


def tokens_attention(facts: OpFacts) -> Work:
    """PackedAttention(input [T, I], weights [I, 3 HD], bias, offsets, starts [B + 1]) and PackedMultiHeadAttention(query
    [T, HD], key, value, bias, offsets, starts): B sequences, taken as equally long."""
    projects = facts.op.name.endswith("PackedAttention")
    tokens, hidden = facts.shape(0)[0], facts.shape(-1)[-1]
    batch = max(1, facts.size(4 if projects else 5) - 1)
    heads = int(facts.op.get("num_heads"))
    length = -(-tokens // batch)
    core = scaled_attention(
        facts, batch=batch, heads=heads, queries=length, keys=length, width=hidden // heads, value_width=hidden // heads
    )
    projection = 2 * tokens * facts.size(1) if projects else 0
    return replace(core, flops=core.flops + projection)


def embed_normalization(tables: tuple[int, ...], parameters: tuple[int, ...]) -> Formula:
    """EmbedLayerNormalization: rows of two or three tables [V, H], added and normalised. Of the tables only the rows that are
    looked up are read."""

    def formula(facts: OpFacts) -> Work:
        n = facts.size(-1)
        used = [i for i in tables if facts.present(i)]
        rows = {i: min(facts.bytes(i), n * facts.bytes(i) // max(1, facts.size(i))) for i in used}
        rest = {i: facts.bytes(i) for i in range(len(facts.operands)) if facts.present(i) and i not in tables}
        weight = sum(size for i, size in (rows | rest).items() if facts.is_resource(i))
        inputs, weights = split_gradients(facts, {0: 0, **{i: n for i in used}, **{i: 3 * n for i in parameters}})
        flops = n * (len(used) - 1 + 7)
        return Work("norm", flops, inputs, weights, read=sum(rows.values()) + sum(rest.values()), weight=weight)

    return formula


def gather_blocks(facts: OpFacts) -> Work:
    """GatherBlockQuantized(data, indices, scales, zero points): the packed elements of what is taken, unpacked."""
    taken = facts.size(-1)
    part = {i: facts.bytes(i) * taken // max(1, _elements(facts)) for i in (0, 2, 3) if facts.present(i)}
    weight = sum(size for i, size in part.items() if facts.is_resource(i))
    return Work("gather", UNPACK * taken, read=sum(part.values()) + facts.bytes(1), weight=weight)


def _elements(facts: OpFacts) -> int:
    """Elements of packed data: bytes may hold several."""
    data, indices, out = facts.shape(0), facts.shape(1), facts.shape(-1)
    unit = 8 // int(facts.op.get("bits", 4)) if facts.bytes(0) == facts.size(0) and out[-1] != data[-1] else 1
    return facts.size(0) * unit if len(out) == len(data) + len(indices) - 1 else facts.size(0)


def inverse(facts: OpFacts) -> Work:
    """Gauss-Jordan: 2 n^3 per matrix."""
    return Work("matmul", 2 * facts.size(0) * facts.shape(0)[-1])


def distances(facts: OpFacts) -> Work:
    """CDist(A [M, D], B [N, D]): difference, square and sum."""
    return Work("matmul", 3 * facts.size(-1) * facts.shape(0)[-1])


def quantized_concat(facts: OpFacts) -> Work:
    """QLinearConcat: every element to another scale."""
    return Work("move", (RESCALE + 1) * facts.size(-1))


_ELEMENTWISE: dict[str, Formula] = {
    "BiasAdd": elementwise(2, 0),
    "BiasGelu": elementwise(T + 5, T + 8, "in"),
    "BiasSplitGelu": elementwise(T + 6, T + 9, "in"),
    "ComplexMul": elementwise(3, 6, "in"),
    "ComplexMulConj": elementwise(3, 6, "in"),
    "DequantizeLinear": quantize(2, -1),
    "FastGelu": elementwise(T + 8, T + 12, "in"),
    "GatedAdd": elementwise(2, 2, "in"),
    "Gelu": elementwise(T + 4, T + 8, "in"),
    "IsAllFinite": reduction(1),
    "MulInteger": elementwise(3),
    "MurmurHash3": elementwise(T),
    "QLinearAdd": elementwise(6),
    "QLinearLeakyRelu": elementwise(6),
    "QLinearMul": elementwise(6),
    "QLinearSigmoid": elementwise(T + 4),
    "QLinearWhere": elementwise(6),
    "QuantizeLinear": quantize(3, 0),
    "QuickGelu": elementwise(T + 4, T + 7, "in"),
    "SampleOp": view,
    "ScaledSiLU": elementwise(T + 4, T + 7, "in"),
    "SwiGLU": elementwise(T + 4, T + 6, "in"),
}

_OTHERS: dict[str, Formula] = {
    "Attention": fused_attention(4),
    "BiasSoftmax": softmax(SOFTMAX + 1),
    "BranchwiseRMSNorm": normalization(4, 7, 2),
    "CDist": distances,
    "CausalConvWithState": causal_conv,
    "CropAndResize": elementwise(8),
    "DecoderMaskedMultiHeadAttention": multi_head_attention(10, 5),
    "DynamicQuantizeLSTM": quantized_lstm,
    "DynamicQuantizeMatMul": integer_product(f"matmul{BITS}", 1, quantizes=True, bias=4),
    "EmbedLayerNormalization": embed_normalization((2, 3, 4), (5, 6)),
    "ExpandDims": view,
    "FusedConv": activated(conv, 3),
    "FusedGemm": activated(gemm),
    "FusedMatMul": fused_matmul,
    "FusedMatMulActivation": activated(fused_matmul),
    "GatedRMSNorm": normalization(4 + ACTIVATION, 10, 2),
    "GatherBlockQuantized": gather_blocks,
    "GatherND": selection,
    "GemmFastGelu": activated(lambda facts: product(facts, 2 * facts.size(-1) * facts.shape(0)[-1], (0, 1), bias=2)),
    "GridSample": grid_sample,
    "GroupNorm": normalization(7, 9, 3),
    "GroupQueryAttention": group_query_attention,
    "Inverse": inverse,
    "LinearAttention": linear_attention,
    "MRotaryEmbedding": rotary,
    "MatMulBnb4": packed(),
    "MatMulFpQ4": packed(),
    "MatMulInteger16": integer_product("matmul", 1),
    "MatMulIntegerToFloat": integer_product(f"matmul{BITS}", 1, bias=6),
    "MatMulNBits": packed(),
    "MatMulNBitsMlp": packed_projections(0, 0),
    "MatMulNBitsQLoRA": packed(),
    "MatMulNBitsQkv": packed_projections(0, 1, 2),
    "MatMulPacked": packed(),
    "MaxpoolWithMask": pool(1, 1),
    "MoE": experts(2, 4, 6),
    "MultiHeadAttention": multi_head_attention(3, 6),
    "NGramRepeatBlock": move,
    "NhwcConv": conv,
    "NhwcFusedConv": activated(conv, 3),
    "NhwcMaxPool": pool(1, 1),
    "PackedAttention": tokens_attention,
    "PackedMultiHeadAttention": tokens_attention,
    "Pad": move,
    "QAttention": fused_attention(8, quantized=True),
    "QEmbedLayerNormalization": embed_normalization((2, 3, 4), ()),
    "QGemm": integer_product(f"matmul{BITS}", 3, bias=6),
    "QLinearAveragePool": pool(1, 1),
    "QLinearConcat": quantized_concat,
    "QLinearConv": qlinear_conv,
    "QLinearGlobalAveragePool": pool(1, 1),
    "QLinearReduceMean": reduction(2),
    "QLinearSoftmax": softmax(SOFTMAX + 3),
    "QMoE": experts(2, 5, 8),
    "Range": generated(0),
    "ReduceSumInteger": reduction(1),
    "RotaryEmbedding": rotary,
    "SkipGroupNorm": normalization(7, 9, 3, skip=True),
    "SkipLayerNormalization": normalization(7, 9, 3, skip=True),
    "SkipSimplifiedLayerNormalization": normalization(4, 7, 2, skip=True),
    "SparseAttention": group_query_attention,
    "TorchEmbedding": selection,
    "TransposeMatMul": fused_matmul,
    "Trilu": move,
    "UnfoldTensor": move,
    "Unique": sorting,
}

_DEFAULT_DOMAIN: dict[str, Formula] = {
    "Affine": elementwise(2, 1),
    "Crop": move,
    "DynamicSlice": selection,
    "ImageScaler": elementwise(2, 1),
    "MemcpyFromHost": move,
    "MemcpyToHost": move,
    "ParametricSoftplus": elementwise(2 * T + 2, T + 3, "in"),
    "Scale": elementwise(1, 1),
    "ScaledTanh": elementwise(T + 2, 4, "in"),
}
"""Those that ONNX's default domain does not have."""

FORMULAS: dict[str, Formula] = {
    **{f"onnx.com.microsoft.{name}": formula for name, formula in (_ELEMENTWISE | _OTHERS).items()},
    **{f"onnx.{name}": formula for name, formula in _DEFAULT_DOMAIN.items()},
}
"""By the op's full name."""
