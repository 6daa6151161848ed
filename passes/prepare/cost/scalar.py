"""What ONNX Runtime's CPU kernels do one element, or one row, after the other: the fact ``Cost.scalar``.

Flops and bytes describe kernels that use the vector units and stream through memory. Many kernels of ONNX Runtime's CPU
provider do not: they call a function of the C library per element, branch on each value, copy piece by piece, or set up each
row of a broadcast. ``scalar`` counts that in *steps* of a plain loop, about a clock cycle each. Device types with a
``scalar_rate`` (the CPUs) take time for them; others do not have such kernels.

The numbers are of onnxruntime 1.32 on an Intel Xeon with AVX-512, measured by ``python -m tests.bench.operators``, which
compares each operator with its prediction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from ir.core.types import TensorType
from ir.ops import operators
from passes.prepare.cost.contractions import grouped_sizes
from passes.prepare.cost.facts import OpFacts, rounds_rows

PER_ELEMENT: Mapping[str, float] = {
    # Functions of the C library, or polynomials longer than the flops say.
    "Div": 0.4, "Reciprocal": 0.4, "Sqrt": 0.4,
    "Atan": 2, "Cos": 4, "Elu": 4, "Log": 4, "Mish": 30, "Sin": 4, "Softplus": 28, "Tan": 35,
    # Branches on values, which the processor cannot foresee, and kernels in several passes.
    "com.microsoft.BiasGelu": 1, "Floor": 1, "HardSwish": 1, "LeakyRelu": 1, "PRelu": 13, "Sign": 4, "Softsign": 1, "Where": 3,
    # Reductions without vector code, per element that they read.
    "ArgMax": 3.5, "ArgMin": 3.5, "ReduceL1": 1.5, "ReduceL2": 1.5, "ReduceLogSumExp": 11,
    "ReduceProd": 6, "ReduceSumSquare": 1.5,
    "LRN": 85, "LpNormalization": 2.5, "MeanVarianceNormalization": 1.5, "GroupNormalization": 4,
    "com.microsoft.SkipLayerNormalization": 14, "com.microsoft.SkipSimplifiedLayerNormalization": 14,
    # Elements that are computed or placed one by one.
    "DepthToSpace": 7, "OneHot": 8, "SpaceToDepth": 2, "DFT": 35, "STFT": 35, "RoiAlign": 30,
    "RandomNormal": 33, "RandomNormalLike": 33, "RandomUniform": 33, "RandomUniformLike": 33, "Range": 3,
}  # fmt: skip
"""Steps per element of the first operand or, where that is more, of the first result."""
LIBRARY_POWER = 12
"""Steps per element of Pow, but for squares and cubes."""
SPAN = 36
"""Steps to set up each span of a broadcast: the innermost elements along which all operands advance, or stand still, alike."""
PIECE = 10
"""Steps for each contiguous piece that a kernel copies."""
INTEGER_QUOTIENT, INTEGER_SUM, HALF = 8, 7, 2
"""Steps per element of Div and of Mod of integers, which have no vector instruction; of a sum of 64-bit integers; and of an
elementwise op on f16, which is converted to f32 and back."""
WIDE_CAST = 1.5
"""Steps per element of a Cast between 64 bits and others, integers among themselves aside."""
SHORT_RESULT = 9
"""Steps for each result of a reduction."""
SOFTMAX_ROW, SOFTMAX_ASIDE = 45, 4
"""Steps for each row of a softmax, and per element where it goes along another axis than the last, which is moved there."""
COLUMNS = 16
"""Products have kernels of so many columns: fewer take as long, but for one row, or one column that is no weight."""
PRODUCT, PACKED = 400, 1
"""Steps to begin each product of a batch, and per element of a second factor that is no weight, which is packed first."""
ONE_ROW, SCORE = 0.35, 11
"""Steps per element of a second factor that is no weight and meets one row, for each product, and per score of attention by
one query. Measured on an AMD EPYC (Zen 5): GroupQueryAttention of a query of 64 on 1,024 positions of 16 heads took 14 ns for
each score, of 32 8 ns, of 128 26 ns, as long where two cores did so at once; MatMul of such a row by values 5 ns."""
UNPACKED, UNPACKED_ONCE = 0.4, 0.1
"""Steps to unpack a weight of a few bits, for many rows and for one, which multiplies it in a register."""
GATED = 40
"""Steps per element of the activation inside QMoE, a function of the C library."""
UNFOLDED = 0.8
"""Steps per element of the matrix that a convolution unfolds its input into (im2col), or a transposed one folds (col2im)."""
BLOCK = 16
"""Channels in a block of the layout in which convolutions and pools of images run without unfolding, on a CPU with AVX-512."""

LINES = 1024
"""Lines of the nearest cache, rounded."""

Steps = Callable[[OpFacts], float]


def scalar_steps(facts: OpFacts) -> int:
    """The steps of an op, rounded; 0 for one whose kernel is all vector code. Raises as formulas do."""
    name = facts.op.name.removeprefix("onnx.")
    steps = PER_ELEMENT.get(name, 0) * max(facts.size(0), facts.size(-1))
    if name in _STEPS:
        steps += _STEPS[name](facts)
    if operators.has(facts.op, operators.ELEMENTWISE):
        steps += _elementwise(facts)
    return round(steps)


def _elementwise(facts: OpFacts) -> float:
    n = facts.size(-1)
    spans = n // max(1, _span(facts)) if len(facts.operands) > 1 else 1
    steps = SPAN * (spans - 1.0)
    if _bits(facts, -1) == 16 and facts.is_float(-1) and facts.op.name != "onnx.Cast":
        steps += HALF * n
    return max(0.0, steps)


def _span(facts: OpFacts) -> int:
    """Elements of the innermost dimensions along which each operand is either broadcast or not."""
    made = facts.shape(-1)
    shapes = [facts.shape(i) for i in range(len(facts.operands)) if facts.present(i)]
    span, pattern = 1, None
    for place in range(1, len(made) + 1):
        if made[-place] == 1:
            continue
        here = [len(shape) >= place and shape[-place] != 1 for shape in shapes]
        if pattern is not None and here != pattern:
            break
        span, pattern = span * made[-place], here
    return span


def _bits(facts: OpFacts, index: int) -> int:
    type_ = facts.type(index)
    return type_.dtype.bits if isinstance(type_, TensorType) else 0


def _power(facts: OpFacts) -> float:
    return {2.0: 0.7, 3.0: 1.5}.get(float(facts.number(1) or 0), LIBRARY_POWER) * facts.size(-1)


def _where(facts: OpFacts) -> float:
    """Elements of 8 bytes take twice as long: the kernel selects twice and merges."""
    return PER_ELEMENT["Where"] * facts.size(-1) * max(0, _bits(facts, -1) // 32 - 1)


def _quotient(facts: OpFacts) -> float:
    return INTEGER_QUOTIENT * facts.size(-1) if not facts.is_float(-1) else 0


def _remainder(facts: OpFacts) -> float:
    return 1.6 * INTEGER_QUOTIENT * facts.size(-1)


def _cast(facts: OpFacts) -> float:
    widths = {_bits(facts, 0), _bits(facts, -1)}
    return WIDE_CAST * facts.size(-1) if len(widths) > 1 and 64 in widths and facts.is_float(0) | facts.is_float(-1) else 0


def _several(facts: OpFacts) -> float:
    """Sum, Mean, Max, Min: operands after the second are added in passes of their own."""
    return facts.size(-1) * max(0, len(facts.operands) - 2)


def _reduction(facts: OpFacts) -> float:
    """A reduction of the last axis is begun for each result."""
    axes = facts.numbers(1, "axes")
    wide = INTEGER_SUM * facts.size(0) if not facts.is_float(0) else 0
    return SHORT_RESULT * facts.size(-1) * (facts.size(0) > facts.size(-1)) * (not axes or _is_last(facts, axes[-1])) + wide


def _maximum(facts: OpFacts) -> float:
    """A maximum over the first axis has no vector code."""
    axes = facts.numbers(1, "axes")
    return _reduction(facts) + (2 * facts.size(0) if axes and int(axes[0]) in (0, -len(facts.shape(0))) else 0)


def _is_last(facts: OpFacts, axis: float) -> bool:
    return int(axis) in (-1, len(facts.shape(0)) - 1)


def _softmax(facts: OpFacts) -> float:
    shape, axis = facts.shape(0), int(facts.op.get("axis", -1))
    aside = SOFTMAX_ASIDE * facts.size(0) if not _is_last(facts, axis) else 0
    return SOFTMAX_ROW * facts.size(0) / max(1, shape[axis]) + aside


def _topk(facts: OpFacts) -> float:
    """Each element is compared with the least of a heap, and what is kept is sorted."""
    kept = facts.shape(-1)[int(facts.op.get("axis", -1))]
    return 6 * facts.size(0) + 15 * facts.size(-1) * math.log2(max(2, kept))


def _suppression(facts: OpFacts) -> float:
    return 1.5 * facts.size(1) * math.log2(max(2, facts.size(1)))


def _nonzero(facts: OpFacts) -> float:
    """Per element a look, per place that is found an index for each dimension."""
    return 4 * facts.size(0) + 21 * facts.size(-1)


def _pieces(facts: OpFacts, index: int, axis: int) -> float:
    """Contiguous pieces of operand or result ``index`` where an axis is cut."""
    shape = facts.shape(index)
    return math.prod(shape[: axis % max(1, len(shape))])


def _concat(facts: OpFacts) -> float:
    axis = int(facts.op.get("axis", 0))
    return PIECE * sum(_pieces(facts, i, axis) for i in range(len(facts.operands)))


def _split(facts: OpFacts) -> float:
    axis = int(facts.op.get("axis", 0))
    return PIECE * sum(_pieces(facts, -1 - i, axis) for i in range(len(facts.results)))


def _slice(facts: OpFacts) -> float:
    """Whole rows are pieces; with a step along the last axis each element is one."""
    steps, axes = facts.numbers(4, "steps"), facts.numbers(3, "axes")
    if any(step != 1 and (not axes or _is_last(facts, axis)) for step, axis in zip(steps, axes or steps, strict=False)):
        return 4 * facts.size(-1)
    before, after = facts.shape(0), facts.shape(-1)
    cut = max((place for place, (a, b) in enumerate(zip(before, after, strict=True)) if a != b), default=0)
    return PIECE * math.prod(after[:cut])


def _pad(facts: OpFacts) -> float:
    return 5 * PIECE * facts.size(-1) / max(1, facts.shape(-1)[-1])


def _transpose(facts: OpFacts) -> float:
    """Where the last axis stays, its rows are pieces. Else each element of a row of the result is from another cache line,
    which is read again for the next row where a row has more lines than the nearest cache."""
    rank = len(facts.shape(0))
    order = facts.ints("perm", tuple(reversed(range(rank))))
    kept = 1
    for place in reversed(range(rank)):
        if order[place] != place:
            break
        kept *= facts.shape(0)[place]
    n = facts.size(0)
    if kept > 1:
        return PIECE * n / kept if kept < n else 0
    row, place = 1, rank
    while place and (place == rank or order[place - 1] + 1 == order[place]):
        place -= 1
        row *= facts.shape(-1)[place]
    return (0.8 if row <= LINES else 3.5) * n


def _gather(facts: OpFacts) -> float:
    axis = int(facts.op.get("axis", 0))
    return 12 * facts.size(-1) / max(1, math.prod(facts.shape(0)[axis % max(1, len(facts.shape(0))) + 1 :]))


def _gather_nd(facts: OpFacts) -> float:
    return 35 * facts.size(1) / max(1, facts.shape(1)[-1])


def _gather_elements(facts: OpFacts) -> float:
    return 4 * facts.size(-1)


def _running(facts: OpFacts) -> float:
    """CumSum, CumProd: along the last axis each element waits for the one before."""
    axis = facts.number(1)
    return 7 * facts.size(0) if axis is None or _is_last(facts, axis) else 0


def _requantised(facts: OpFacts) -> float:
    """Sums of products are brought back to 8 bits."""
    return facts.size(-1)


def _scatter(facts: OpFacts) -> float:
    return 18 * facts.size(2)


def _resize(facts: OpFacts) -> float:
    """Interpolation computes each element's neighbours; the cubic one their weights too."""
    return {"nearest": 0.7, "linear": 5, "cubic": 210}.get(str(facts.op.get("mode", "nearest")), 5) * facts.size(-1)


def _grid_sample(facts: OpFacts) -> float:
    return {"nearest": 22, "cubic": 60, "bicubic": 60}.get(str(facts.op.get("mode", "linear")), 7) * facts.size(-1)


def _pool(facts: OpFacts) -> float:
    """Pools of images are vector code; of sound and volumes a loop."""
    kernel = facts.ints("kernel_shape")
    return 2 * facts.size(-1) * math.prod(kernel) if kernel and len(kernel) != 2 else 0


def _matmul(facts: OpFacts) -> float:
    rows = facts.shape(0)[-2] if len(facts.shape(0)) > 1 else 1
    return _product(facts, rows, facts.shape(0)[-1])


def _gemm(facts: OpFacts) -> float:
    shape = facts.shape(0)
    return _product(facts, *(reversed(shape) if facts.op.get("transA", 0) else shape))


def _product(facts: OpFacts, rows: int, inner: int) -> float:
    columns = facts.shape(-1)[-1]
    if rows == 1:
        return 0 if facts.is_resource(1) or columns == 1 else ONE_ROW * facts.size(-1) * inner
    left = facts.size(-1) // max(1, columns) * inner
    held = facts.is_resource(1)
    steps = left * max(0, COLUMNS - columns) / COLUMNS if held or columns > 1 else 0
    if not held:
        batch = math.prod(facts.shape(-1)[:-2])
        steps += PRODUCT * max(0, batch - 1) + (PACKED * facts.size(1) if columns > 1 else 0)
    return steps


def _attention(facts: OpFacts) -> float:
    """onnx.Attention packs keys and values."""
    return PACKED * sum(facts.size(i) for i in (1, 2, 4, 5) if facts.present(i))


def _grouped_attention(facts: OpFacts) -> float:
    """Each head multiplies by its keys and values; for several queries it packs them first."""
    batch, queries, _ = facts.shape(0)
    heads, _, width, _, seen = grouped_sizes(facts)
    met = batch * heads * seen
    if queries == 1:
        return (SCORE + 2 * width * ONE_ROW) * met
    return 2 * (PACKED * width * met + PRODUCT * batch * heads)


def _einsum(facts: OpFacts) -> float:
    """Operands and result are transposed around a product."""
    return facts.size(-1) + sum(facts.size(i) for i in range(len(facts.operands))) if len(facts.operands) > 1 else 0


def _unpacked(facts: OpFacts) -> float:
    """Rows that are rounded to 8 bits meet weights as they are packed."""
    if rounds_rows(facts):
        return 0
    rows = math.prod(facts.shape(0)[:-1])
    return (UNPACKED if rows > 1 else UNPACKED_ONCE) * int(facts.op.get("K", facts.shape(0)[-1])) * facts.shape(-1)[-1]


def _packed_experts(facts: OpFacts) -> float:
    """QMoE(input [.., H], router, weights [experts, ..], .., weights [experts, H, packed ffn], ..): weights of the experts that
    a token meets are unpacked, and each token passes ``k`` activations of ffn elements."""
    stacked = [i for i in (2, 5, 8) if facts.present(i)]
    count, in_byte = facts.shape(2)[0], 8 // int(facts.op.get("expert_weight_bits", 4))
    passes = math.prod(facts.shape(0)[:-1]) * int(facts.op.get("k", 1))
    met = min(count, passes)
    weights = in_byte * met * sum(math.prod(facts.shape(i)[1:]) for i in stacked)
    return (UNPACKED if passes > met else UNPACKED_ONCE) * weights + GATED * passes * in_byte * facts.shape(5)[-1]


def _conv(facts: OpFacts) -> float:
    """Steps to unfold the input, where the convolution does not run in blocks of channels: of sound and volumes, in groups, and
    to few channels."""
    weight, group = facts.shape(1), int(facts.op.get("group", 1))
    made, each, kernel = weight[0], weight[1], weight[2:]
    if len(kernel) == 2 and facts.is_resource(1):
        if group == 1 and made >= BLOCK and (each < BLOCK or each % 4 == 0):
            return 0
        if group > 1 and made % BLOCK == 0 and (each == 1 == made // group or each % BLOCK == 0 == made // group % BLOCK):
            return 0
    if math.prod(kernel) == 1 and set(facts.ints("strides", (1,))) == {1}:
        return 0
    return UNFOLDED * (facts.size(-1) // made) * each * group * math.prod(kernel)


def _conv_transpose(facts: OpFacts) -> float:
    weight = facts.shape(1)
    return UNFOLDED * facts.size(0) / weight[0] * weight[1] * int(facts.op.get("group", 1)) * math.prod(weight[2:])


_STEPS: Mapping[str, Steps] = {
    "Attention": _attention,
    "AveragePool": _pool,
    "Cast": _cast,
    "Concat": _concat,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "CumProd": _running,
    "CumSum": _running,
    "Div": _quotient,
    "Einsum": _einsum,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Gemm": _gemm,
    "GridSample": _grid_sample,
    "LogSoftmax": _softmax,
    "LpPool": _pool,
    "MatMul": _matmul,
    "Max": _several,
    "MaxPool": _pool,
    "Mean": _several,
    "Min": _several,
    "Mod": _remainder,
    "NonMaxSuppression": _suppression,
    "NonZero": _nonzero,
    "Pad": _pad,
    "Pow": _power,
    "QLinearConv": _requantised,
    "ReduceMax": _maximum,
    "ReduceMean": _reduction,
    "ReduceMin": _maximum,
    "ReduceSum": _reduction,
    "Resize": _resize,
    "Scatter": _scatter,
    "ScatterElements": _scatter,
    "Slice": _slice,
    "Softmax": _softmax,
    "Split": _split,
    "Sum": _several,
    "TopK": _topk,
    "Transpose": _transpose,
    "Upsample": _resize,
    "Where": _where,
    "com.microsoft.FusedMatMul": _matmul,
    "com.microsoft.GroupQueryAttention": _grouped_attention,
    "com.microsoft.MatMulNBits": _unpacked,
    "com.microsoft.QMoE": _packed_experts,
}
