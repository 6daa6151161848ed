"""Cost of everything that is no product: elementwise ops, reductions, normalisations, pooling, and data that only moves.

Most of it is a table: flops per element forward and backward, and what the backward pass keeps. Where a formula from an op's
specification needs several steps per element, the steps are named beside the number.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

from ir.ops import operators
from ir.ops.opdefs import COMMUNICATION, OPDEFS
from passes.prepare.cost.contractions import SOFTMAX
from passes.prepare.cost.facts import TRANSCENDENTAL as T
from passes.prepare.cost.facts import Formula, OpFacts, Work, split_gradients

Saved = Literal["", "in", "out"]
CROSS_ENTROPY = SOFTMAX + 2
"""Flops per score of the gradient of a cross entropy: probabilities, less one at the label, times the gradient."""


def elementwise(forward: int, backward: int = 0, saved: Saved = "") -> Formula:
    """``forward`` flops per result element; per operand ``backward`` flops, and a sum over what was broadcast."""

    def formula(facts: OpFacts) -> Work:
        n = facts.size(-1)
        # An operand smaller than the result was broadcast: its gradient is a sum over the copies.
        per_operand = {
            i: n * backward + (n if facts.size(i) < n else 0) for i in range(len(facts.operands)) if facts.present(i)
        }
        inputs, weights = split_gradients(facts, per_operand)
        return Work("elementwise", n * forward, inputs, weights, _saved(facts, saved))

    return formula


def power(facts: OpFacts) -> Work:
    """Pow: exp(y log x), but for the constant exponents 2 and 3, which are products. The base is kept, the exponent where the
    base has a gradient, and the result where the exponent has one."""
    exponent = facts.number(1)
    work = elementwise(int(exponent) - 1 if exponent in (2, 3) else 2 * T, 2 * T + 2)(facts)
    if not facts.has_gradient():
        return work
    base, above = (0 if facts.is_resource(i) or not facts.is_float(i) else facts.bytes(i) for i in range(2))
    above *= _learns(facts, 0) and facts.op.operands[0] != facts.op.operands[1]
    return replace(work, saved=base + above + _learns(facts, 1) * facts.bytes(-1))


def _learns(facts: OpFacts, i: int) -> bool:
    """Whether operand ``i`` has a gradient."""
    return facts.trainable(i) if facts.is_resource(i) else facts.needs(i)


def quotient(facts: OpFacts) -> Work:
    """Div: the divisor is kept, and the result where the divisor has a gradient."""
    work = elementwise(1, 2)(facts)
    if not facts.has_gradient():
        return work
    divisor = 0 if facts.is_resource(1) else facts.bytes(1)
    return replace(work, saved=divisor + _learns(facts, 1) * facts.bytes(-1))


def linear_unit(forward: int) -> Formula:
    """Celu, Elu, Selu: the result is kept, and the operand where the result does not tell its sign."""

    def formula(facts: OpFacts) -> Work:
        work = elementwise(forward, 2, "out")(facts)
        signless = facts.has_gradient() and not operators.keeps_sign(facts.op)
        return replace(work, saved=work.saved + signless * facts.activations())

    return formula


def variadic(forward: int, backward: int) -> Formula:
    """Sum, Mean, Max, Min of k operands: k - 1 steps per element, one comes extra for Mean."""

    def formula(facts: OpFacts) -> Work:
        n, count = facts.size(-1), len(facts.operands)
        inputs, weights = split_gradients(facts, {i: n * backward for i in range(count)})
        return Work("elementwise", n * max(0, count - 1) + n * forward, inputs, weights, facts.activations() if backward else 0)

    return formula


def reduction(forward: int, backward: int = 1, saved: Saved = "") -> Formula:
    """``forward`` flops per *operand* element."""

    def formula(facts: OpFacts) -> Work:
        n = facts.size(0)
        inputs, weights = split_gradients(facts, {0: n * backward})
        return Work("reduce", n * forward, inputs, weights, _saved(facts, saved))

    return formula


def normalization(
    forward: int, backward: int, weight_backward: int, *, skip: bool = False, statistics: bool = False
) -> Formula:
    """Flops per element of the input; ``weight_backward`` for scale and bias; ``skip`` adds another operand first.
    ``statistics``: of each row the mean and the inverse of the deviation are kept too, in 32 bits at least."""

    def formula(facts: OpFacts) -> Work:
        n = facts.size(0)
        inputs, _ = split_gradients(facts, {0: n * (backward + skip)})
        trained = any(facts.trainable(i) for i in range(1, len(facts.operands)))
        weights = n * weight_backward if trained and facts.has_gradient() else 0
        saved = facts.activations()
        if statistics:
            rows = math.prod(facts.shape(0)[: int(facts.op.get("axis", -1)) % len(facts.shape(0))])
            saved += 2 * rows * max(4, facts.bytes(0) // max(1, n))
        return Work("norm", n * (forward + skip), inputs, weights, saved if facts.has_gradient() else 0)

    return formula


def softmax(forward: int) -> Formula:
    """Along one axis; backward from the result alone: product, sum, difference, product per element."""

    def formula(facts: OpFacts) -> Work:
        n = facts.size(0)
        inputs, weights = split_gradients(facts, {0: 4 * n})
        return Work("softmax", forward * n, inputs, weights, _saved(facts, "out"))

    return formula


def pool(forward: int, backward: int, *, linear: bool = False) -> Formula:
    """``forward`` flops per element of each window. Global pooling, without ``kernel_shape``, has one window per channel. A
    ``linear`` one keeps nothing."""

    def formula(facts: OpFacts) -> Work:
        kernel = facts.ints("kernel_shape")
        steps = facts.size(-1) * math.prod(kernel) if kernel else facts.size(0)
        inputs, _ = split_gradients(facts, {0: backward * steps})
        saved = facts.activations() if facts.has_gradient() and not linear else 0
        return Work("pool", forward * steps, inputs, saved=saved)

    return formula


def interpolation(facts: OpFacts) -> Work:
    """Resize, Upsample: nearest reads one element, linear 2 per scaled axis, cubic 4, each with a multiply-add."""
    flops = interpolated(facts, facts.shape(0), facts.shape(-1))
    inputs, _ = split_gradients(facts, {0: max(flops, facts.size(-1))})
    return Work("pool", flops, inputs)


def interpolated(facts: OpFacts, before: tuple[int, ...], after: tuple[int, ...]) -> int:
    """Flops of a resizing of ``before`` to ``after``."""
    scaled = sum(a != b for a, b in zip(before, after, strict=True))
    taps = {"nearest": 0, "linear": 2, "cubic": 4}.get(str(facts.op.get("mode", "nearest")), 4)
    return int(2 * math.prod(after) * taps**scaled) if taps else 0


def grid_sample(facts: OpFacts) -> Work:
    """2 taps per spatial axis (4 if cubic), each a multiply-add, and 4 flops per coordinate."""
    flops = sampled(facts, -1, 1)
    backward = 2 * flops if facts.has_gradient() and (facts.needs(0) or facts.needs(1)) else 0
    return Work("pool", flops, backward, saved=facts.activations())


def sampled(facts: OpFacts, out: int, grid: int) -> int:
    """Flops of GridSample, whose result is the tensor ``out``."""
    taps = {"nearest": 1, "cubic": 4, "bicubic": 4}.get(str(facts.op.get("mode", "linear")), 2)
    per_element = math.prod(taps for _ in facts.shape(out)[2:])
    return 2 * facts.size(out) * per_element + 4 * facts.size(grid)


def roi_align(facts: OpFacts) -> Work:
    """4 bilinear taps (8 flops) per sampling point; an adaptive sampling ratio (0) is taken as 2 by 2."""
    ratio = int(facts.op.get("sampling_ratio", 0)) or 2
    flops = 8 * facts.size(-1) * ratio * ratio
    inputs, _ = split_gradients(facts, {0: flops})
    return Work("pool", flops, inputs)


def lrn(facts: OpFacts) -> Work:
    """Squares of ``size`` channels, a power and a quotient per element."""
    n, size = facts.size(0), int(facts.op.get("size", 1))
    inputs, _ = split_gradients(facts, {0: n * (2 * size + 2 * T + 4)})
    return Work("norm", n * (2 * size + 2 * T + 2), inputs, saved=facts.activations() if facts.has_gradient() else 0)


def view(facts: OpFacts) -> Work:
    """The same bytes under another shape: nothing is computed or moved."""
    return Work("view", read=0, write=0, weight=0)


def move(facts: OpFacts) -> Work:
    """Every operand read, every result written, nothing computed. Backward moves them again."""
    return Work("move")


def selection(facts: OpFacts) -> Work:
    """Gather, Slice and kin: of the data only what ends in the results is read; indices are read whole. The gradient of the
    data adds each element once."""
    taken = sum(facts.bytes(-1 - i) for i in range(len(facts.results)))
    others = _others(facts)
    inputs, weights = split_gradients(facts, {0: facts.size(-1)})
    resources = sum(facts.bytes(i) for i in range(1, len(facts.operands)) if facts.is_resource(i))
    weight = resources + (taken if facts.is_resource(0) else 0)
    saved = others if facts.has_gradient() else 0  # the indices
    return Work("gather", 0, inputs, weights, saved, read=taken + others, weight=weight)


def slicing(facts: OpFacts) -> Work:
    """Slice: as ``selection``; its bounds are no data to keep."""
    work = selection(facts)
    return Work("move", 0, 0, 0, 0, read=work.read, weight=work.weight)


def scatter(facts: OpFacts) -> Work:
    """Scatter* (data, indices, updates): a copy of the data with updates written over, or added to it."""
    adds = str(facts.op.get("reduction", "none")) != "none"
    return Work("gather", facts.size(2) if adds else 0)


def tensor_scatter(facts: OpFacts) -> Work:
    """TensorScatter(cache, update, positions): writes the update into a cache that is a state of the program, copies any
    other."""
    if not facts.is_resource(0):
        return Work("gather")
    weight = sum(facts.bytes(i) for i in (1, 2) if facts.is_resource(i))
    return Work("gather", read=facts.bytes(1) + facts.bytes(2), write=facts.bytes(1), weight=weight)


def generated(per_element: int) -> Formula:
    """Results made from nothing or from a shape: only written. Operands only tell a shape or a bound."""
    return lambda facts: Work("move" if not per_element else "random", per_element * facts.size(-1), read=0, weight=0)


def topk(facts: OpFacts) -> Work:
    """A heap of k per row: n log2(k) comparisons."""
    axis = int(facts.op.get("axis", -1))
    k = facts.shape(-1)[axis] if facts.shape(-1) else 1
    n = facts.size(0)
    inputs, _ = split_gradients(facts, {0: facts.size(-1)})
    return Work("sort", n * max(1, math.ceil(math.log2(max(2, k)))), inputs, saved=facts.bytes(-2))


def sorting(facts: OpFacts) -> Work:
    """Unique: n log2(n) comparisons."""
    n = facts.size(0)
    return Work("sort", n * max(1, math.ceil(math.log2(max(2, n)))))


def non_max_suppression(facts: OpFacts) -> Work:
    """Boxes [B, N, 4], scores [B, C, N]: a sort and, per kept box, an intersection over union (16 flops) with every other; kept
    boxes are taken as ``min(N, result rows)``."""
    batch, classes, boxes = facts.shape(1)
    kept = max(1, min(boxes, facts.shape(-1)[0] if facts.shape(-1) else 1))
    return Work("sort", batch * classes * (boxes * max(1, math.ceil(math.log2(max(2, boxes)))) + 16 * boxes * kept))


def scan_search(facts: OpFacts) -> Work:
    """NonZero, Compress: one look at each element."""
    return Work("gather", facts.size(0))


def quantize(forward: int, wide: int | None = None) -> Formula:
    """Per element of the data; gradients pass straight through. ``wide``: the operand, or -1 the result, that is not moved: of
    QuantizeLinear and DequantizeLinear runtimes fuse the wide side with the op that makes or reads it, so they cost the narrow
    side, at the rate of an epilogue."""

    def formula(facts: OpFacts) -> Work:
        inputs, weights = split_gradients(facts, {0: facts.size(0)})
        kind, flops = "elementwise" if wide is None else "epilogue", forward * facts.size(0)
        if wide is None:
            return Work(kind, flops, inputs, weights)
        read = sum(facts.bytes(i) for i in range(len(facts.operands)) if i != wide)
        return Work(kind, flops, inputs, weights, read=read, write=0 if wide < 0 else facts.bytes(-1))

    return formula


def fourier(facts: OpFacts) -> Work:
    """FFT: 5 n log2(n) flops per transform of length n (Van Loan). DFT transforms along ``axis``, or the last dimension before
    the complex parts where that is an operand; STFT one window per frame, of which ``onesided`` keeps n / 2 + 1 bins."""
    made = facts.shape(-1)
    if facts.op.name == "onnx.STFT":
        axis = -2
        n = 2 * (made[axis] - 1) if facts.op.get("onesided", 1) else made[axis]
    else:
        axis = int(facts.op.get("axis", -2))
        n = max(facts.shape(0)[axis], made[axis])
    transforms = math.prod(made[:-1]) // max(1, made[axis])
    flops = math.ceil(5 * transforms * n * math.log2(max(2, n)))
    inputs, _ = split_gradients(facts, {0: flops})
    return Work("fft", flops, inputs)


def determinant(facts: OpFacts) -> Work:
    """LU: 2/3 n^3 per matrix."""
    n = facts.shape(0)[-1]
    flops = facts.size(-1) * (2 * n**3 // 3)
    inputs, _ = split_gradients(facts, {0: 3 * flops})
    return Work("matmul", flops, inputs, saved=facts.activations())


def loss(forward: int, backward: int, *, keeps_scores: bool) -> Formula:
    """Losses of scores [N, C, ..]; the labels are kept, and the scores where the gradient reads them."""

    def formula(facts: OpFacts) -> Work:
        n = facts.size(0)
        inputs, _ = split_gradients(facts, {0: backward * n})
        saved = facts.bytes(1) + (facts.activations() if keeps_scores else 0) if facts.has_gradient() else 0
        return Work("softmax", forward * n, inputs, saved=saved)

    return formula


def free(kind: str) -> Formula:
    """No arithmetic and no bytes of its own: control (its regions are summed into it), communication."""
    return lambda facts: Work(kind, read=0, write=0, weight=0)


def _others(facts: OpFacts) -> int:
    """Bytes of the operands behind the first."""
    return sum(facts.bytes(i) for i in range(1, len(facts.operands)))


def _saved(facts: OpFacts, what: Saved) -> int:
    if not facts.has_gradient():
        return 0
    return {"": 0, "in": facts.activations(), "out": facts.bytes(-1)}[what]


_ELEMENTWISE: dict[str, tuple[int, int, Saved]] = {
    # name: (flops forward, flops backward per operand, what the backward pass keeps)
    "Abs": (1, 2, "in"),
    "Add": (1, 0, ""),
    "And": (1, 0, ""),
    "Acos": (T, 4, "in"),
    "Acosh": (T, 4, "in"),
    "Asin": (T, 4, "in"),
    "Asinh": (T, 4, "in"),
    "Atan": (T, 3, "in"),
    "Atanh": (T, 3, "in"),
    "BitShift": (1, 0, ""),
    "BitwiseAnd": (1, 0, ""),
    "BitwiseNot": (1, 0, ""),
    "BitwiseOr": (1, 0, ""),
    "BitwiseXor": (1, 0, ""),
    "Cast": (1, 1, ""),
    "CastLike": (1, 1, ""),
    "Ceil": (1, 0, ""),
    "Clip": (2, 2, "in"),
    "Cos": (T, T + 1, "in"),
    "Cosh": (T + 2, T + 3, "in"),
    "Equal": (1, 0, ""),
    "Erf": (T, T + 3, "in"),
    "Exp": (T, 1, "out"),
    "Floor": (1, 0, ""),
    "Gelu": (T + 4, T + 8, "in"),  # x/2 (1 + erf(x / sqrt 2))
    "Greater": (1, 0, ""),
    "GreaterOrEqual": (1, 0, ""),
    "HardSigmoid": (4, 2, "out"),
    "HardSwish": (5, 4, "in"),
    "IsInf": (1, 0, ""),
    "IsNaN": (1, 0, ""),
    "LeakyRelu": (2, 2, "in"),
    "Less": (1, 0, ""),
    "LessOrEqual": (1, 0, ""),
    "Log": (T, 1, "in"),
    "Mish": (3 * T, 3 * T, "in"),
    "Mod": (2, 0, ""),
    "Mul": (1, 1, "in"),
    "Neg": (1, 1, ""),
    "Not": (1, 0, ""),
    "Or": (1, 0, ""),
    "PRelu": (2, 2, "in"),
    "Reciprocal": (1, 2, "out"),
    "Relu": (1, 1, "out"),
    "Round": (1, 0, ""),
    "Shrink": (3, 1, "in"),
    "Sigmoid": (T + 2, 3, "out"),
    "Sign": (1, 0, ""),
    "Sin": (T, T + 1, "in"),
    "Sinh": (T + 2, T + 3, "in"),
    "Softplus": (2 * T, T + 2, "in"),
    "Softsign": (3, 4, "in"),
    "Sqrt": (1, 2, "out"),
    "Sub": (1, 1, ""),
    "SwiGLU": (T + 4, T + 6, "in"),
    "Swish": (T + 3, T + 6, "in"),
    "Tan": (T, 3, "out"),
    "Tanh": (T, 3, "out"),
    "ThresholdedRelu": (2, 1, "in"),
    "Where": (1, 1, ""),
    "Xor": (1, 0, ""),
}

_REDUCTIONS: dict[str, tuple[int, int, Saved]] = {
    "ArgMax": (1, 0, ""),
    "ArgMin": (1, 0, ""),
    "CumProd": (1, 3, "in"),
    "CumSum": (1, 1, ""),
    "ReduceL1": (2, 2, "in"),
    "ReduceL2": (2, 2, "in"),
    "ReduceLogSum": (1, 1, "in"),
    "ReduceLogSumExp": (T + 2, 3, "in"),
    "ReduceMax": (1, 2, "in"),
    "ReduceMean": (1, 1, ""),
    "ReduceMin": (1, 2, "in"),
    "ReduceProd": (1, 3, "in"),
    "ReduceSum": (1, 1, ""),
    "ReduceSumSquare": (2, 2, "in"),
}

_NORMS: dict[str, Formula] = {
    # Layer: sum, difference, square and add, quotient, scale and shift: 7. RMS: square and add, quotient, scale: 4.
    "LayerNormalization": normalization(7, 9, 3, statistics=True),
    "InstanceNormalization": normalization(7, 9, 3),
    "GroupNormalization": normalization(7, 9, 3),
    "MeanVarianceNormalization": normalization(5, 7, 0),
    "RMSNormalization": normalization(4, 7, 2),
    "SimplifiedLayerNormalization": normalization(4, 7, 2),
    "BatchNormalization": normalization(2, 5, 3),  # running statistics fold into one multiply-add
    "LpNormalization": normalization(3, 5, 0),
    "LRN": lrn,
}

_VIEWS = (
    *("Constant", "Dropout", "Flatten", "Identity", "Optional", "OptionalGetElement", "OptionalHasElement", "Reshape"),
    *("SequenceLength", "Shape", "Size", "Squeeze", "Unsqueeze", "BitCast"),
)
_MOVES = (
    *("CenterCropPad", "Concat", "ConcatFromSequence", "DepthToSpace", "Expand", "Pad", "ReverseSequence", "SequenceAt"),
    *("SequenceConstruct", "SequenceErase", "SequenceInsert", "SpaceToDepth", "Split", "SplitToSequence", "Tile", "Transpose"),
    *("Trilu", "OneHot", "StringConcat", "StringSplit", "Col2Im"),
)

FORMULAS: dict[str, Formula] = {
    **{f"onnx.{name}": elementwise(*row) for name, row in _ELEMENTWISE.items()},
    **{f"onnx.{name}": reduction(*row) for name, row in _REDUCTIONS.items()},
    **{f"onnx.{name}": formula for name, formula in _NORMS.items()},
    **{f"onnx.{name}": view for name in _VIEWS},
    **{f"onnx.{name}": move for name in _MOVES},
    **{f"onnx.{name}": selection for name in ("Gather", "GatherElements", "GatherND")},
    **{f"onnx.{name}": scatter for name in ("Scatter", "ScatterElements", "ScatterND")},
    "onnx.TensorScatter": tensor_scatter,
    **{f"onnx.{name}": generated(0) for name in ("ConstantOfShape", "EyeLike", "SequenceEmpty")},
    **{f"onnx.{name}": generated(T) for name in ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")},
    **{f"onnx.{name}": generated(T) for name in ("BlackmanWindow", "HammingWindow", "HannWindow")},
    **{f"onnx.{name}": variadic(0, 1) for name in ("Max", "Min")},
    "onnx.Sum": variadic(0, 0),
    "onnx.Mean": variadic(1, 1),
    "onnx.Range": generated(0),
    "onnx.Bernoulli": elementwise(T),
    "onnx.Multinomial": elementwise(T),
    "onnx.Celu": linear_unit(T + 3),
    "onnx.Div": quotient,
    "onnx.Elu": linear_unit(T + 2),
    "onnx.Pow": power,
    "onnx.Selu": linear_unit(T + 3),
    "onnx.Slice": slicing,
    "onnx.Softmax": softmax(SOFTMAX),
    "onnx.LogSoftmax": softmax(SOFTMAX + 1),
    "onnx.Hardmax": softmax(2),
    "onnx.SoftmaxCrossEntropyLoss": loss(SOFTMAX, CROSS_ENTROPY, keeps_scores=True),
    "onnx.NegativeLogLikelihoodLoss": loss(1, 1, keeps_scores=False),
    "onnx.MaxPool": pool(1, 1),
    "onnx.AveragePool": pool(1, 1, linear=True),
    "onnx.LpPool": pool(3, 3),
    "onnx.GlobalAveragePool": pool(1, 1, linear=True),
    "onnx.GlobalMaxPool": pool(1, 1),
    "onnx.GlobalLpPool": pool(3, 3),
    "onnx.MaxRoiPool": pool(1, 1),
    "onnx.MaxUnpool": move,
    "onnx.Resize": interpolation,
    "onnx.Upsample": interpolation,
    "onnx.GridSample": grid_sample,
    "onnx.AffineGrid": elementwise(6),
    "onnx.RoiAlign": roi_align,
    "onnx.QuantizeLinear": quantize(3, 0),
    "onnx.DequantizeLinear": quantize(2, -1),
    "onnx.DynamicQuantizeLinear": quantize(5),  # extremes 2, then 3 as above
    "onnx.TopK": topk,
    "onnx.Unique": sorting,
    "onnx.NonMaxSuppression": non_max_suppression,
    "onnx.NonZero": scan_search,
    "onnx.Compress": scan_search,
    "onnx.DFT": fourier,
    "onnx.STFT": fourier,
    "onnx.Det": determinant,
    "onnx.If": free("control"),
    "onnx.Loop": free("control"),
    "onnx.Scan": free("control"),
    "onnx.SequenceMap": free("control"),
    **{name: free("comm") for name, definition in OPDEFS.items() if COMMUNICATION in definition.traits},
}
