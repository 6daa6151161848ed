"""Result types of ONNX Runtime's own elementwise ops, normalisations, reductions and ops that move data."""

from __future__ import annotations

from dnnc.onnx.schemas.node import Node, Rule, Shape, UnknownError, axis_of, broadcast, part, plus, ranked, times
from dnnc.onnx.types import ELEMENT_NUMBERS
from ir.core.types import Dim, DType


def _like(*operands: int) -> Rule:
    """Result i has the shape of operand ``operands[i]``."""
    return lambda node: [node.shape(operand) for operand in operands]


def _broadcast(*operands: int) -> Rule:
    """The result has the shape to which the operands broadcast."""
    return lambda node: [broadcast(*(node.shape(operand) for operand in operands))]


def _layer_norm(node: Node) -> list[Shape]:
    """(Simplified)LayerNormalization(X, scale, ..): the result, and two statistics, of length 1 in the normalised
    dimensions."""
    x = node.shape(0)
    axis = axis_of(node.number("axis", -1), len(x))
    for result in (1, 2):
        node.set_element(result, node.number("stash_type", 1))
    statistics = (*x[:axis], *(1,) * (len(x) - axis))
    return [x, statistics, statistics]


def _skip_norm(node: Node) -> list[Shape]:
    """Skip(Simplified)LayerNormalization(input, skip, ..): the result, mean, 1 / deviation, and the sum that is normalised."""
    x = ranked(node.shape(0), 2, 3)
    return [x, (*x[:-1], 1), (*x[:-1], 1), x]


def _embed(node: Node) -> list[Shape]:
    """(Q)EmbedLayerNormalization(ids [B, S], .., table [V, H], ..): [B, S, H], the mask index [B], and the sum [B, S, H]."""
    batch, length = ranked(node.shape(0), 2)
    embedded = (batch, length, ranked(node.shape(2), 2)[1])
    return [embedded, (batch,), embedded]


def _quantize(node: Node) -> list[Shape]:
    """QuantizeLinear(x, scale, zero point): the result has the element type of the zero point, else u8."""
    if not node.present(2):
        node.set_element(0, ELEMENT_NUMBERS[DType.U8])
    return [node.shape(0)]


def _dequantize_ordered(node: Node) -> list[Shape]:
    """DequantizeWithOrder: the result has element type ``to``."""
    node.set_element(0, node.number("to"))
    return [node.shape(0)]


def _sum_integer(node: Node) -> list[Shape]:
    """ReduceSumInteger: the sum of 8-bit integers has 32 bits."""
    node.set_element(0, ELEMENT_NUMBERS[DType.I32 if node.element(0) == ELEMENT_NUMBERS[DType.I8] else DType.U32])
    return _reduce(node)


def _hash(node: Node) -> list[Shape]:
    """MurmurHash3: 32-bit integers, unsigned if ``positive``."""
    node.set_element(0, ELEMENT_NUMBERS[DType.U32 if node.number("positive", 1) else DType.I32])
    return [node.shape(0)]


def _swiglu(node: Node) -> list[Shape]:
    """SwiGLU(gate, up); without ``up``, operand 0 holds both, concatenated in the last dimension."""
    x = node.shape(0)
    return [x if node.present(1) else (*x[:-1], part(x[-1], 2))]


def _gather_blocks(node: Node) -> list[Shape]:
    """GatherBlockQuantized(data, indices, scales): a byte of u8 data holds several elements of the last dimension."""
    data = list(node.shape(0))
    if node.element(0) == ELEMENT_NUMBERS[DType.U8]:
        data[-1] = times(data[-1], 8 // node.number("bits", 4))
    axis = axis_of(node.number("gather_axis", 0), len(data))
    return [(*data[:axis], *node.shape(1), *data[axis + 1 :])]


def _gather_nd(node: Node) -> list[Shape]:
    data, indices = node.shape(0), node.shape(1)
    depth = indices[-1]
    if not isinstance(depth, int) or not 0 <= depth <= len(data):
        raise UnknownError("the depth of the indices is not known")
    return [(*indices[:-1], *data[depth:])]


def _embedding(node: Node) -> list[Shape]:
    return [(*node.shape(1), *node.shape(0)[1:])]


def _concat(node: Node) -> list[Shape]:
    """QLinearConcat(scale, zero point, then operand, scale, zero point of each tensor to concatenate)."""
    shapes = [node.shape(i) for i in range(2, node.context.get_num_inputs(), 3)]
    axis = axis_of(node.number("axis"), len(shapes[0]))
    length: Dim = 0
    for shape in shapes:
        length = plus(length, shape[axis])
    return [(*shapes[0][:axis], length, *shapes[0][axis + 1 :])]


def _range(node: Node) -> list[Shape]:
    start, limit, *step = (node.numbers(i)[0] for i in range(3) if i < 2 or node.present(i))
    return [(max(0, -(-(limit - start) // (step[0] if step else 1))),)]


def _reduce(node: Node) -> list[Shape]:
    """A reduction over attribute ``axes``."""
    x = node.shape(0)
    axes = {axis_of(axis, len(x)) for axis in node.listed("axes")} or set(range(len(x)))
    if node.number("keepdims", 1):
        return [tuple(1 if i in axes else dim for i, dim in enumerate(x))]
    return [tuple(dim for i, dim in enumerate(x) if i not in axes)]


def _expand_dims(node: Node) -> list[Shape]:
    x = node.shape(0)
    axis = axis_of(node.numbers(1)[0], len(x) + 1)
    return [(*x[:axis], 1, *x[axis:])]


def _pad(node: Node) -> list[Shape]:
    x, pads = node.shape(0), node.numbers(1)
    return [tuple(plus(dim, pads[i] + pads[i + len(x)]) for i, dim in enumerate(x))]


def _unfold(node: Node) -> list[Shape]:
    """UnfoldTensor: windows of length ``size`` along ``dim``; a new last dimension holds the elements of each."""
    x, size = node.shape(0), node.number("size")
    axis = axis_of(node.number("dim", -1), len(x))
    length = x[axis]
    windows = (length - size) // node.number("step", 1) + 1 if isinstance(length, int) else None
    return [(*x[:axis], windows, *x[axis + 1 :], size)]


def _grid_sample(node: Node) -> list[Shape]:
    """GridSample(X [B, C, H, W], grid [B, h, w, 2]): [B, C, h, w]."""
    node.set_element(0, node.element(0))
    return [(*node.shape(0)[:2], *node.shape(1)[1:-1])]


def _crop_and_resize(node: Node) -> list[Shape]:
    height, width = node.numbers(3)
    return [(node.shape(1)[0], node.shape(0)[1], height, width)]


def _distances(node: Node) -> list[Shape]:
    """CDist(A [M, D], B [N, D]): [M, N]."""
    return [(ranked(node.shape(0), 2)[0], ranked(node.shape(1), 2)[0])]


def _position_bias(node: Node) -> list[Shape]:
    """RelativePositionBias(table [buckets, heads], query length, key length)."""
    return [(1, ranked(node.shape(0), 2)[1], node.numbers(1)[0], node.numbers(2)[0])]


_SAME = (
    *("BiasAdd", "BiasGelu", "BiasSoftmax", "BranchwiseRMSNorm", "FastGelu", "GatedAdd", "GatedRMSNorm", "Gelu", "GroupNorm"),
    *("Inverse", "LongformerAttention", "MRotaryEmbedding", "MoE", "QLinearLeakyRelu", "QLinearSigmoid"),
    *("QLinearSoftmax", "QMoE", "QOrderedGelu", "QOrderedLayerNormalization", "QuickGelu", "QuantizeWithOrder"),
    *("RotaryEmbedding", "SampleOp", "ScaledSiLU", "Trilu", "DequantizeLinear"),
)
"""Operators of ``com.microsoft`` whose result has the shape of the first operand."""

RULES: dict[str, Rule] = {
    **{f"com.microsoft.{name}": _like(0) for name in _SAME},
    **{name: _like(0) for name in ("Affine", "ImageScaler", "MemcpyFromHost", "MemcpyToHost", "MeanVarianceNormalization")},
    **{name: _like(0) for name in ("ParametricSoftplus", "Scale", "ScaledTanh", "ThresholdedRelu")},
    "LayerNormalization": _layer_norm,
    "SimplifiedLayerNormalization": _layer_norm,
    "com.microsoft.CDist": _distances,
    "com.microsoft.ComplexMul": _broadcast(0, 1),
    "com.microsoft.ComplexMulConj": _broadcast(0, 1),
    "com.microsoft.CropAndResize": _crop_and_resize,
    "com.microsoft.DequantizeWithOrder": _dequantize_ordered,
    "com.microsoft.EmbedLayerNormalization": _embed,
    "com.microsoft.ExpandDims": _expand_dims,
    "com.microsoft.GatherBlockQuantized": _gather_blocks,
    "com.microsoft.GatherND": _gather_nd,
    "com.microsoft.GridSample": _grid_sample,
    "com.microsoft.IsAllFinite": lambda node: [()],
    "com.microsoft.MulInteger": _broadcast(0, 2),
    "com.microsoft.MurmurHash3": _hash,
    "com.microsoft.NGramRepeatBlock": _like(1),
    "com.microsoft.Pad": _pad,
    "com.microsoft.QEmbedLayerNormalization": _embed,
    "com.microsoft.QLinearAdd": _broadcast(0, 3),
    "com.microsoft.QLinearConcat": _concat,
    "com.microsoft.QLinearMul": _broadcast(0, 3),
    "com.microsoft.QLinearReduceMean": _reduce,
    "com.microsoft.QLinearWhere": _broadcast(0, 1, 4),
    "com.microsoft.QuantizeLinear": _quantize,
    "com.microsoft.Range": _range,
    "com.microsoft.ReduceSumInteger": _sum_integer,
    "com.microsoft.RelativePositionBias": _position_bias,
    "com.microsoft.SkipGroupNorm": _like(0, 0),
    "com.microsoft.SkipLayerNormalization": _skip_norm,
    "com.microsoft.SkipSimplifiedLayerNormalization": _skip_norm,
    "com.microsoft.SwiGLU": _swiglu,
    "com.microsoft.TorchEmbedding": _embedding,
    "com.microsoft.UnfoldTensor": _unfold,
}
"""``DOMAIN.OPERATOR``, or ``OPERATOR`` in the default domain -> the rule of its result types."""
