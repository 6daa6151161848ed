"""Cost of what multiplies and adds along inner dimensions: matrix products, convolutions, attention, recurrence.

Each formula counts 2 flops per multiply-add of the textbook algorithm: no Winograd or FFT, no use of causality or sparsity. The
gradient of either factor of a product costs what the product costs.
"""

from __future__ import annotations

import math

from ir.ops.operators import einsum_terms
from passes.costs.products import BITS
from passes.prepare.cost.facts import TRANSCENDENTAL, Formula, OpFacts, Work, split_gradients

RECURRENT = {"RNN": (1, TRANSCENDENTAL + 1), "GRU": (3, 3 * TRANSCENDENTAL + 6), "LSTM": (4, 5 * TRANSCENDENTAL + 4)}
"""Gates, and flops of their pointwise part per unit."""
SOFTMAX = TRANSCENDENTAL + 4
"""Per element: maximum, difference, exp, sum, quotient."""


def product(facts: OpFacts, flops: int, factors: tuple[int, int], *, extra: int = 0, bias: int | None = None) -> Work:
    """Work of a product of the operands ``factors``; ``extra`` flops beside it; operand ``bias`` is added to the result."""
    backward = dict.fromkeys(factors, flops)
    out = facts.size(-1)
    if bias is not None and facts.present(bias):
        extra += out
        backward[bias] = out
    inputs, weights = split_gradients(facts, backward)
    kept = [one for one, other in (factors, factors[::-1]) if facts.needs(other)] if facts.has_gradient() else []
    saved = sum(facts.bytes(i) for i in kept if facts.is_float(i) and not facts.is_resource(i))
    return Work("matmul", flops + extra, inputs, weights, saved)


def matmul(facts: OpFacts) -> Work:
    """``[.., M, K] x [.., K, N]``: 2 M K N per matrix of the broadcast batch; vectors drop M or N."""
    return product(facts, 2 * facts.size(-1) * facts.shape(0)[-1], (0, 1))


def gemm(facts: OpFacts) -> Work:
    """``alpha A' B' + beta C``: 2 M N K and one addition per element for C."""
    rows, columns = facts.shape(0)
    inner = rows if facts.op.get("transA", 0) else columns
    return product(facts, 2 * facts.size(-1) * inner, (0, 1), bias=2)


def matmul_integer(facts: OpFacts) -> Work:
    """MatMul of 8-bit integers into 32 bits; zero points cost one subtraction per element of their operand."""
    extra = sum(facts.size(i) for i in (0, 1) if facts.present(i + 2))
    return Work(f"matmul{BITS}", 2 * facts.size(-1) * facts.shape(0)[-1] + extra)


def qlinear_matmul(facts: OpFacts) -> Work:
    """QLinearMatMul(a, scale, zero, b, scale, zero, scale, zero): the product and 3 flops per element to requantise."""
    return Work(f"matmul{BITS}", 2 * facts.size(-1) * facts.shape(0)[-1] + 3 * facts.size(-1))


def einsum(facts: OpFacts) -> Work:
    """Operands contracted pairwise from the left; an index leaves as soon as neither the output nor a later operand has it.
    A pair costs 2 flops per point of the joint index space (1 where nothing is summed); one operand alone its sum."""
    shapes = [facts.shape(i) for i in range(len(facts.operands))]
    terms, output = einsum_terms(str(facts.op.get("equation", "")), list(map(len, shapes)))
    kept = set(output)
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for letter, dim in zip(term, shape, strict=True):
            sizes[letter] = max(sizes.get(letter, 1), dim)
    if len(terms) == 1:
        summed = set(terms[0]) - kept
        inputs, weights = split_gradients(facts, {0: facts.size(0) if summed else 0})
        return Work("reduce" if summed else "move", facts.size(0) if summed else 0, inputs, weights)
    current, flops = set(terms[0]), 0
    for position, term in enumerate(terms[1:], start=2):
        joint = current | set(term)
        needed = kept.union(*terms[position:])
        flops += math.prod(sizes[letter] for letter in joint) * (2 if joint - needed else 1)
        current = joint & needed
    backward = {i: flops for i in range(len(terms))}
    if len(terms) == 2:  # the gradient of one is a product of the other, summed over what the one lacks
        joint = set(terms[0]) | set(terms[1])
        points = math.prod(sizes[letter] for letter in joint)
        backward = {i: points * (2 if joint - set(term) else 1) for i, term in enumerate(terms)}
    inputs, weights = split_gradients(facts, backward)
    return Work("matmul", flops, inputs, weights, facts.activations() if facts.has_gradient() else 0)


def conv(facts: OpFacts) -> Work:
    """``X [B, C, ..], W [O, C / group, kernel..]``: 2 (C / group) |kernel| per output element, one addition for the bias."""
    work = product(facts, 2 * facts.size(-1) * math.prod(facts.shape(1)[1:]), (0, 1), bias=2)
    return _as(work, conv_kind(facts, facts.shape(1)))


def conv_kind(facts: OpFacts, weight: tuple[int, ...]) -> str:
    """Of a convolution with a weight of this shape."""
    return "conv-depthwise" if weight[1] == 1 and int(facts.op.get("group", 1)) > 1 else "conv"


def conv_transpose(facts: OpFacts) -> Work:
    """``X [B, C, ..], W [C, O / group, kernel..]``: each *input* element meets (O / group) |kernel| weights."""
    work = product(facts, 2 * facts.size(0) * math.prod(facts.shape(1)[1:]), (0, 1), bias=2)
    return _as(work, "conv")


def deform_conv(facts: OpFacts) -> Work:
    """DeformConv(X, W, offset, B, mask): a convolution whose every sample is interpolated from 4 neighbours: 8 flops and more
    per sample and channel."""
    product_ = product(facts, 2 * facts.size(-1) * math.prod(facts.shape(1)[1:]), (0, 1), bias=3)
    kernel, out = math.prod(facts.shape(1)[2:]), math.prod(facts.shape(-1)[2:])
    sampled = facts.shape(0)[0] * facts.shape(0)[1] * kernel * out
    work = _as(product_, "conv")
    return Work(
        "conv", work.flops + 10 * sampled, work.input_grad + 20 * sampled, work.weight_grad, work.saved + facts.bytes(2)
    )


def conv_integer(facts: OpFacts) -> Work:
    """Conv of 8-bit integers into 32 bits."""
    extra = sum(facts.size(i) for i in (0, 1) if facts.present(i + 2))
    return Work(f"conv{BITS}", 2 * facts.size(-1) * math.prod(facts.shape(1)[1:]) + extra)


def qlinear_conv(facts: OpFacts) -> Work:
    """QLinearConv(x, scale, zero, w, scale, zero, scale, zero, B): the convolution and 3 flops per element to requantise."""
    bias = 1 if facts.present(8) else 0
    return Work(f"conv{BITS}", 2 * facts.size(-1) * math.prod(facts.shape(3)[1:]) + (3 + bias) * facts.size(-1))


def causal_conv(facts: OpFacts) -> Work:
    """CausalConvWithState(input [B, C, L], weight [C, 1, K], bias, past): a depthwise convolution, SiLU where asked."""
    extra = (TRANSCENDENTAL + 2) * facts.size(-1) if facts.op.get("activation", "none") not in ("", "none") else 0
    work = product(facts, 2 * facts.size(-1) * math.prod(facts.shape(1)[1:]), (0, 1), bias=2, extra=extra)
    return _as(work, "conv-depthwise")


def _as(work: Work, kind: str) -> Work:
    return Work(kind, work.flops, work.input_grad, work.weight_grad, work.saved)


def scaled_attention(
    facts: OpFacts,
    *,
    batch: int,
    heads: int,
    queries: int,
    keys: int,
    width: int,
    value_width: int,
    extra: int = 0,
    keeps_scores: bool = True,
) -> Work:
    """softmax(Q K') V: 2 B H Lq Lk (D + Dv), the scaling and the softmax of B H Lq Lk scores. Its backward pass computes the
    scores' gradient, Q, K and V from saved Q, K, V and probabilities: four products. Where it does not keep the probabilities,
    it computes them again."""
    scores = batch * heads * queries * keys
    products = 2 * scores * (width + value_width)
    work = products + scores * (SOFTMAX + 1) + extra
    if not facts.has_gradient():
        return Work("attention", work)
    backward, saved = 2 * products + scores * 5 + extra, facts.activations()
    if keeps_scores:
        saved += scores * (facts.bytes(-1) // max(1, facts.size(-1)))
    else:
        backward += scores * (2 * width + SOFTMAX + 1)
    return Work("attention", work, input_grad=backward, saved=saved)


def grouped_sizes(facts: OpFacts) -> tuple[int, int, int, int, int]:
    """Of GroupQueryAttention(query [B, L, HD], key, value, past_key [B, Hkv, Lp, D], ..): heads, heads of keys, the width of
    each, positions, and those that a query looks at."""
    q, heads = facts.shape(0), int(facts.op.get("num_heads"))
    kv_heads = int(facts.op.get("kv_num_heads", heads))
    width = q[2] // heads if facts.present(1) else q[2] // (heads + 2 * kv_heads)
    past = facts.shape(3)[-2] if facts.present(3) else 0
    present = facts.shape(-2)[-2] if len(facts.shape(-2)) == 4 else past + q[1]
    window, keys = int(facts.op.get("local_window_size", -1)), max(present, q[1])
    return heads, kv_heads, width, keys, keys if window <= 0 else min(keys, window + q[1] - 1)


def _attention_sizes(facts: OpFacts, first: int) -> tuple[int, int, int, int, int, int]:
    """Batch, heads, queries, keys, and elements of a head of keys and of values, of Q, K, V from operand ``first`` on."""
    q, k, v = (facts.shape(first + i) for i in range(3))
    if len(q) == 4:
        return q[0], q[1], q[2], k[2], q[3], v[3]
    heads = int(facts.op.get("q_num_heads"))
    return q[0], heads, q[1], k[1], q[2] // heads, v[2] // int(facts.op.get("kv_num_heads", heads))


def attention(facts: OpFacts) -> Work:
    """onnx.Attention(Q, K, V, mask, past_key, past_value): ``[B, H, L, D]``, or ``[B, L, H D]`` with ``q_num_heads``."""
    batch, heads, queries, keys, width, value_width = _attention_sizes(facts, 0)
    keys += facts.shape(4)[-2] if facts.present(4) and len(facts.shape(4)) == 4 else 0
    extra = batch * heads * queries * keys if facts.present(3) else 0
    return scaled_attention(
        facts,
        batch=batch,
        heads=heads,
        queries=queries,
        keys=keys,
        width=width,
        value_width=value_width,
        extra=extra,
        keeps_scores=False,
    )


def attention_gradient(facts: OpFacts) -> Work:
    """grad.Attention(dY, Q, K, V, mask): the probabilities again, four products, and the scores' gradient."""
    batch, heads, queries, keys, width, value_width = _attention_sizes(facts, 1)
    scores = batch * heads * queries * keys
    return Work("attention", scores * (4 * (width + value_width) + 5 + facts.present(4) + 2 * width + SOFTMAX + 1))


def linear_attention(facts: OpFacts) -> Work:
    """LinearAttention(query, key, value [B, L, HD], past_state [B, H, Dk, Dv], ..): per token and head the state's decay, its
    update and its read, 6 Dk Dv (the delta rule reads it once more: 8)."""
    q, v = facts.shape(0), facts.shape(2)
    heads = int(facts.op.get("q_num_heads"))
    values = int(facts.op.get("kv_num_heads", heads))
    per_token = (8 if "delta" in str(facts.op.get("update_rule", "")) else 6) * (q[-1] // heads) * (v[-1] // values)
    flops = q[0] * q[1] * heads * per_token
    return Work("attention", flops, input_grad=2 * flops if facts.has_gradient() else 0, saved=facts.activations())


def rotary(facts: OpFacts) -> Work:
    """RotaryEmbedding: 2 products and a sum per element (6 flops per rotated pair)."""
    n = facts.size(-1)
    return Work("elementwise", 3 * n, input_grad=3 * n if facts.has_gradient() else 0)


def recurrent(gates: int, pointwise: int) -> Formula:
    """RNN, GRU, LSTM(X [S, B, I], W [D, G H, I], R [D, G H, H], B ..): 2 S B D G H (I + H) and the gates' pointwise part.
    Its backward pass is that of ``recurrent_gradient`` and products by W, X and R. It keeps its operands and its states.

    Of one sample, each step multiplies a vector: a class of its own."""

    def formula(facts: OpFacts) -> Work:
        first, second, _ = facts.shape(0)  # steps and batch, in either order (`layout`)
        directions, rows, inputs = facts.shape(1)
        hidden = facts.shape(2)[2]
        if rows != gates * hidden:
            raise ValueError(f"{gates} gates of {hidden} units need {gates * hidden} rows, not {rows}")
        cells = first * second * directions * hidden
        products = 2 * first * second * directions * rows * (inputs + hidden)
        flops = products + cells * pointwise + (cells * gates if facts.present(3) else 0)
        rows_of_all = first * second * directions * rows
        backward = {0: 2 * rows_of_all * inputs, 1: 2 * rows_of_all * inputs, 2: 2 * rows_of_all * hidden}
        if facts.present(3):
            backward[3] = rows_of_all * (2 if gates == 3 else 1)
        in_grad, weight_grad = split_gradients(facts, backward)
        saved = 0
        if facts.has_gradient() and any(facts.needs(i) and facts.is_float(i) for i in range(len(facts.operands))):
            in_grad += through_time(gates, pointwise, rows_of_all, inputs, hidden)
            kept = [2, 5, 6, *((0, 1, 3) if gates > 1 else [i for i in (0, 1) if facts.needs(1 - i)])]
            kept = [i for i in kept if facts.is_float(i) and not facts.is_resource(i)]
            saved = cells * (facts.bytes(0) // max(1, facts.size(0))) + sum(facts.bytes(i) for i in kept)
        batch = first if facts.op.get("layout", 0) else second
        return Work("recurrent" if batch > 1 else "recurrent-vector", flops, in_grad, weight_grad, saved)

    return formula


def through_time(gates: int, pointwise: int, rows: int, inputs: int, hidden: int) -> int:
    """Flops from the last step to the first. ``rows``: the elements of all gates of all steps. The gates again, but for an op
    that has one alone, their slopes, and a product of the gradient of the gates by R for each step."""
    again = 2 * rows * (inputs + hidden) if gates > 1 else 0
    return again + 2 * rows * hidden + rows // gates * (pointwise + 3 * gates)


def recurrent_gradient(gates: int, pointwise: int) -> Formula:
    """grad.RNN, GRU, LSTM(dY, dh, dc, X [S, B, I], W [D, G H, I], R [D, G H, H], B, h, c, Y [S, D, B, H])."""

    def formula(facts: OpFacts) -> Work:
        steps, directions, batch, hidden = facts.shape(9)
        inputs = facts.shape(3)[2] if facts.present(3) else 0
        flops = through_time(gates, pointwise, steps * batch * directions * gates * hidden, inputs, hidden)
        return Work("recurrent" if batch > 1 else "recurrent-vector", flops)

    return formula


FORMULAS: dict[str, Formula] = {
    "onnx.MatMul": matmul,
    "onnx.Gemm": gemm,
    "onnx.Einsum": einsum,
    "onnx.MatMulInteger": matmul_integer,
    "onnx.QLinearMatMul": qlinear_matmul,
    "onnx.Conv": conv,
    "onnx.ConvTranspose": conv_transpose,
    "onnx.ConvInteger": conv_integer,
    "onnx.QLinearConv": qlinear_conv,
    "onnx.DeformConv": deform_conv,
    "onnx.CausalConvWithState": causal_conv,
    "onnx.Attention": attention,
    "onnx.LinearAttention": linear_attention,
    "onnx.RotaryEmbedding": rotary,
    **{f"onnx.{name}": recurrent(*of) for name, of in RECURRENT.items()},
    **{f"grad.{name}": recurrent_gradient(*of) for name, of in RECURRENT.items()},
}
