"""Layout rules of ops on quantised tensors, of products with packed weights, and of mixtures of experts.

An inner dimension is whole if the op rounds its result, since it would round each term of the sum. An operand is whole if its
scale is computed from all of its elements; DynamicQuantizeLSTM, which computes scales of its input and states, has no rule.
Scales and zero points are scalars, or have the factor of the dimension that they belong to.
"""

from __future__ import annotations

from collections.abc import Sequence

from ir.layout_rules.adapt import LocalAttribute, ShiftIndices
from ir.layout_rules.draft import Draft, Draw, Place, UnfitError
from ir.layout_rules.rule import Kind


def matmul_nbits(draft: Draft) -> None:
    """com.microsoft.MatMulNBits(A [.., K], B [N, blocks, bytes], scales, zero points, order [K], bias [N]): rows of A and of B
    are parallel. Blocks of K may be split if scales are [N, blocks], not if they are one vector, between bytes of the zero
    points, and if no order says the block of each element."""
    columns, inner = int(draft.get("N")), int(draft.get("K"))
    rank = draft.rank(0)
    for dim in range(rank - 1):
        draft.tie("m" if dim == rank - 2 else f"b{rank - 3 - dim}", (0, dim), (-1, dim))
    if draft.get("weight_prepacked", 0):
        return
    by_rows: list[Place] = [(1, 0), (2, 0), (3, 0), (5, 0), (-1, -1)]
    draft.tie("n", *by_rows, size=columns, adapt=(LocalAttribute("N"),))
    blocks = draft.numbers(1)[1]
    if draft.rank(2) != 2 or draft.present(4) or inner != blocks * int(draft.get("block_size")):
        return
    units, places = blocks, [(0, -1), (1, 1), (2, 1)]
    if draft.present(3):
        if draft.rank(3) != 2:
            return
        units = draft.numbers(3)[1]  # bytes or, as floats, blocks
        places.append((3, 1))
    if blocks % units == 0:
        draft.tie("k", *places, kind=Kind.SUM, size=units, partial=(5,), adapt=(LocalAttribute("K"),))


def _experts(first: int, step: int, packed: bool) -> Draw:
    """A mixture of experts (x [T, H] or [B, L, H], router [tokens, E], for each of two layers: weight [E, outputs, inputs],
    its ``step - 1`` scales and biases): tokens are parallel. The units between the layers are a sum, but for gates that do not
    lie beside what they gate, and for a third layer, which onnxruntime's CPU has not. ``first``: the operand of the first
    weight. ``packed``: weights are bytes of one or two elements with scales, and are cut between blocks; units are
    whole if there are zero points."""

    def draw(draft: Draft) -> None:
        draft.tie("tokens", (0, 0), (1, 0), (-1, 0), size=draft.numbers(0)[0])
        second, third = first + step, first + 2 * step
        gated = draft.get("activation_type", "relu") == "swiglu"
        unusual = (third, third + 1, third + 2, *range(third + 3, len(draft.operands)))
        if any(draft.present(i) for i in unusual) or (gated and draft.get("swiglu_fusion", 0) != 1):
            return
        units = draft.numbers(second)[2]
        bias = step - 1
        places: list[Place] = [(first, 1), (first + bias, 1), (second, 2)]
        if packed:
            places.append((first + 1, 1))
            if draft.rank(second + 1) == 3:
                units = draft.numbers(second + 1)[2]
                places.append((second + 1, 2))
        draft.tie("units", *places, kind=Kind.SUM, size=units, partial=(second + bias,))

    return draw


def matmul_bnb4(draft: Draft) -> None:
    """com.microsoft.MatMulBnb4(A [.., K], B packed [N K / 2], maxima [N K / block]): rows of A are parallel, and rows
    of B if K is a multiple of the block."""
    for dim in range(draft.rank(0) - 1):
        draft.tie(f"d{dim}", (0, dim), (-1, dim))
    columns, inner = int(draft.get("N")), int(draft.get("K"))
    if inner % int(draft.get("block_size")) == 0 and draft.rank(1) == 1 and draft.get("transB", 1):
        draft.tie("n", (1, 0), (2, 0), (-1, -1), size=columns, adapt=(LocalAttribute("N"),))


def _matrices(first: int, second: int, by_column: Sequence[int], by_row: Sequence[int] = (), bias: int | None = None) -> Draw:
    """For a product of matrices of integers. Scales and zero points ``by_column`` may be [.., N], those ``by_row`` [M].
    ``bias``: the addend of an op that does not round its result, whose inner dimension is a sum."""

    def draw(draft: Draft) -> None:
        ranks = draft.rank(first), draft.rank(second)
        if min(ranks) < 2:
            raise UnfitError("a vector")
        batches = [[f"b{i}" for i in reversed(range(rank - 2))] for rank in ranks]
        inner = "" if bias is None else "k"
        terms = {first: [*batches[0], "m", inner], second: [*batches[1], inner, "n"], -1: [*max(batches, key=len), "m", "n"]}
        for operand in (*by_column, *by_row, *([] if bias is None else [bias])):
            if draft.present(operand) and draft.rank(operand):
                terms[operand] = [""] * (draft.rank(operand) - 1) + ["m" if operand in by_row else "n"]
        draft.tie_labels(terms, {"k": Kind.SUM}, partial=() if bias is None else (bias,))

    return draw


def dynamic_matmul(draft: Draft) -> None:
    """com.microsoft.DynamicQuantizeMatMul(A, B, scale, zero point, bias): A is whole: its scale is computed
    from all of A."""
    columns: list[Place] = [(i, -1) for i in (1, 2, 3, 4, -1) if draft.present(i) and draft.rank(i)]
    draft.tie("n", *columns)


def qgemm(draft: Draft) -> None:
    """com.microsoft.QGemm(A, scale, zero, B, scale, zero, C, scale, zero): rows and columns are parallel; scales of B may be
    [N]."""
    first = ["", "m"] if draft.get("transA", 0) else ["m", ""]
    second = ["n", ""] if draft.get("transB", 0) else ["", "n"]
    terms = {0: first, 3: second, -1: ["m", "n"]}
    terms |= {i: ["n"] * draft.rank(i) for i in (4, 5) if draft.present(i)}
    if draft.present(6):
        terms[6] = ["m", "n"][2 - draft.rank(6) :]
    draft.tie_labels(terms)


def qlinear_conv(draft: Draft) -> None:
    """QLinearConv(x, scale, zero, w [M, C / group, kernel..], scale, zero, scale, zero, bias [M]): samples are parallel, and M,
    or groups of C and M."""
    channel = draft.rank(0) - 1 if draft.get("channels_last", 0) else 1
    draft.tie("batch", (0, 0), (-1, 0))
    group = int(draft.get("group", 1))
    per_channel: list[Place] = [(i, 0) for i in (4, 5, 8) if draft.present(i) and draft.rank(i)]
    if group > 1:
        adapt = (LocalAttribute("group"),)
        draft.tie("group", (0, channel), (3, 0), *per_channel, (-1, channel), size=group, adapt=adapt)
    else:
        draft.tie("out", (3, 0), *per_channel, (-1, channel))


def _broadcast(*operands: int) -> Draw:
    """For an op that works element by element on ``operands``; scales and zero points are scalars."""
    return lambda draft: draft.tie_broadcast(operands)


def softmax(draft: Draft) -> None:
    """com.microsoft.QLinearSoftmax: the axis is whole; before opset 13, all dimensions from it on."""
    modern = int(draft.get("opset")) >= 13
    axis = draft.axis("axis", -1 if modern else 1)
    draft.tie_same((0, -1), whole=(axis,) if modern else range(axis, draft.rank(0)))


def pool(draft: Draft) -> None:
    """com.microsoft.QLinear(Global)AveragePool: samples and channels are parallel."""
    channel = draft.rank(0) - 1 if draft.get("channels_last", 0) else 1
    draft.tie("batch", (0, 0), (-1, 0))
    draft.tie("channel", (0, channel), (-1, channel))


def concat(draft: Draft) -> None:
    """com.microsoft.QLinearConcat(scale, zero point, then each tensor with its scale and zero point): the axis is whole."""
    joined = range(2, len(draft.operands), 3)
    draft.tie_same([-1, *joined], whole=(draft.axis("axis", 0, -1),))


def gather_blocks(draft: Draft) -> None:
    """com.microsoft.GatherBlockQuantized(data, indices, scales, zero points): as Gather, but the dimensions of
    the data other than the axis, in which elements are packed, are whole."""
    axis, picked, rank = draft.axis("gather_axis", 0), draft.rank(1), draft.rank(0)
    if draft.rank(-1) != rank + picked - 1 or axis == rank - 1:
        raise UnfitError("packed along the axis")
    entries: list[Place] = [(i, axis) for i in (0, 2, 3)]
    if axis != draft.axis("quantize_axis", 1):
        draft.tie("entry", *entries, kind=Kind.SUM, adapt=(ShiftIndices(1, rank - axis - 1),), divided=False)
    for dim in range(picked):
        draft.tie(f"i{dim}", (1, dim), (-1, axis + dim))


def embedding(draft: Draft) -> None:
    """com.microsoft.EmbedLayerNormalization(ids [B, L], segments, words, positions, segments' table, scale, shift, mask,
    position ids): samples are parallel."""
    draft.tie("batch", (0, 0), (1, 0), (7, 0), (8, 0), (-1, 0), (-2, 0), (-3, 0))


RULES: dict[str, Draw] = {
    "onnx.MatMulInteger": _matrices(0, 1, (3,), (2,)),
    "onnx.QLinearConv": qlinear_conv,
    "onnx.QLinearMatMul": _matrices(0, 3, (4, 5)),
    "onnx.com.microsoft.DynamicQuantizeMatMul": dynamic_matmul,
    "onnx.com.microsoft.EmbedLayerNormalization": embedding,
    "onnx.com.microsoft.GatherBlockQuantized": gather_blocks,
    "onnx.com.microsoft.MatMulBnb4": matmul_bnb4,
    "onnx.com.microsoft.MatMulIntegerToFloat": _matrices(0, 1, (3, 5), bias=6),
    "onnx.com.microsoft.MatMulNBits": matmul_nbits,
    "onnx.com.microsoft.MoE": _experts(2, 2, packed=False),
    "onnx.com.microsoft.QGemm": qgemm,
    "onnx.com.microsoft.QLinearAdd": _broadcast(0, 3),
    "onnx.com.microsoft.QLinearAveragePool": pool,
    "onnx.com.microsoft.QLinearConcat": concat,
    "onnx.com.microsoft.QLinearConv": qlinear_conv,
    "onnx.com.microsoft.QLinearGlobalAveragePool": pool,
    "onnx.com.microsoft.QLinearLeakyRelu": _broadcast(0),
    "onnx.com.microsoft.QLinearMul": _broadcast(0, 3),
    "onnx.com.microsoft.QLinearSigmoid": _broadcast(0),
    "onnx.com.microsoft.QLinearSoftmax": softmax,
    "onnx.com.microsoft.QLinearWhere": _broadcast(0, 1, 4),
    "onnx.com.microsoft.QMoE": _experts(2, 3, packed=True),
}
"""By the op's full name."""
