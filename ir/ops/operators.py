"""Traits of ONNX's operators that their schemas do not state: one table for all passes.

A trait is a property of the operator itself. What one pass does with each operator, such as its cost formula, is a table of
functions of that pass. Names are those of ops without ``onnx.``, so an operator of ONNX Runtime's own domain is
``com.microsoft.Gelu``. An operator that is not listed has none of these traits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ir.core.ops import Op

ELEMENTWISE = "elementwise"
"""Each element of a result depends on the elements of the operands at its (broadcast) place."""
RANDOM = "random"
"""Draws random numbers, so runs differ. The ops in ``TRAINING_OPERAND`` do so in training only."""
SHAPE_ONLY = "shape-only"
"""The result is the first operand under another shape: the same elements in the same order."""
SELECTS = "selects"
"""Each element of a result is an element of the first operand, moved; so with ``SHAPE_ONLY``."""
QUANTISES = "quantises"
"""Rounds to few bits, inside or in its result."""
DEQUANTISES = "dequantises"
"""Widens what was rounded to few bits."""
PRODUCT = "product"
"""A matrix product whose second operand holds the weights, if any does."""
FUSES = "fuses"
"""A runtime computes the epilogues that follow it before it writes its result."""
KEEPS_RESULT = "keeps-result"
"""Its gradient is computed from its result, not from its operands; that of Elu and Selu where they ``keeps_sign``."""
EPILOGUE = "epilogue"
"""ONNX Runtime and TensorRT fuse it into the convolution or product before it."""

_SHAPE_ONLY = "Flatten Identity Reshape Squeeze Unsqueeze"
_OPERATORS: Mapping[str, str] = {
    KEEPS_RESULT: "Celu Elu Exp LogSoftmax Reciprocal Relu Selu Sigmoid Softmax Sqrt Tan Tanh",
    ELEMENTWISE: """
        Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike Ceil Celu
        Clip Cos Cosh Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish Identity IsInf IsNaN
        LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu Shrink Sigmoid
        Sign Sin Sinh Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor
        com.microsoft.BiasGelu com.microsoft.FastGelu com.microsoft.Gelu com.microsoft.QuickGelu com.microsoft.ScaledSiLU""",
    RANDOM: """
        Bernoulli Dropout Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike
        com.microsoft.BiasDropout com.microsoft.BitmaskBiasDropout com.microsoft.BitmaskDropout
        com.microsoft.Sampling com.microsoft.WhisperBeamSearch""",
    SHAPE_ONLY: _SHAPE_ONLY,
    SELECTS: f"""{_SHAPE_ONLY}
        Compress DepthToSpace Expand Gather GatherElements GatherND Slice SpaceToDepth Split Tile Transpose""",
    QUANTISES: """
        DynamicQuantizeLinear QLinearConv QLinearMatMul QuantizeLinear
        com.microsoft.DynamicQuantizeLSTM com.microsoft.DynamicQuantizeMatMul com.microsoft.MatMulNBits
        com.microsoft.MatMulNBitsMlp com.microsoft.MatMulNBitsQLoRA com.microsoft.MatMulNBitsQkv com.microsoft.QAttention
        com.microsoft.QGemm com.microsoft.QLinearAdd com.microsoft.QLinearAveragePool com.microsoft.QLinearConcat
        com.microsoft.QLinearConv com.microsoft.QLinearGlobalAveragePool com.microsoft.QLinearLeakyRelu
        com.microsoft.QLinearMul com.microsoft.QLinearReduceMean com.microsoft.QLinearSigmoid com.microsoft.QLinearSoftmax
        com.microsoft.QLinearWhere com.microsoft.QMoE com.microsoft.QuantizeLinear""",
    DEQUANTISES: "DequantizeLinear com.microsoft.DequantizeLinear",
    PRODUCT: "Gemm MatMul com.microsoft.FusedMatMul com.microsoft.MatMulNBits",
    FUSES: "Conv Gemm MatMul",
    EPILOGUE: "Add BatchNormalization Clip HardSigmoid HardSwish LeakyRelu Mul Relu Sigmoid Tanh",
}

TRAINING_OPERAND: Mapping[str, int] = {
    "onnx.Dropout": 2,
    "onnx.com.microsoft.BiasDropout": 4,
    "onnx.com.microsoft.BitmaskBiasDropout": 4,
    "onnx.com.microsoft.BitmaskDropout": 2,
}
"""Ops that are random in training only, and else return their operand: by full name, the operand that switches training on."""


def _by_name() -> dict[str, frozenset[str]]:
    traits_of: dict[str, set[str]] = {}
    for trait, names in _OPERATORS.items():
        for name in names.split():
            traits_of.setdefault(f"onnx.{name}", set()).add(trait)
    return {name: frozenset(traits) for name, traits in traits_of.items()}


TRAITS: Mapping[str, frozenset[str]] = _by_name()
"""Traits of each operator that has any, by the op's full name."""
_NONE: frozenset[str] = frozenset()


def has(op: Op, *traits: str) -> bool:
    """Whether the operator has one of these traits."""
    return not TRAITS.get(op.name, _NONE).isdisjoint(traits)


def names_with(trait: str) -> frozenset[str]:
    """Full names of the ops that have this trait."""
    return frozenset(name for name, traits in TRAITS.items() if trait in traits)


def keeps_sign(op: Op) -> bool:
    """Whether the result of this Celu, Elu or Selu is above 0 exactly where its operand is."""
    if op.name == "onnx.Celu":
        return True
    return bool(op.get("alpha", 1.0) >= 0 and op.get("gamma", 1.0) > 0)


def padded_places(mode: str, length: int, before: int, after: int) -> list[int] | None:
    """Where along a dimension of ``length`` each element of Pad's result lies in its operand; None for a mode that makes
    elements of its own, or that ONNX has not."""
    places = range(-before, length + after)
    if mode == "edge":
        return [min(max(place, 0), length - 1) for place in places]
    if mode == "wrap":
        return [place % length for place in places]
    if mode == "reflect":
        period = max(1, 2 * (length - 1))
        return [min(place % period, period - place % period) if length > 1 else 0 for place in places]
    return None


def einsum_terms(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """A letter per dimension of each operand of an Einsum, of these ranks, and of its result; the dimensions of an ellipsis are
    digits, numbered from the last one. Raises ValueError where an operand has fewer dimensions than its term has letters beside
    an ellipsis."""
    left, arrow, result = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow:
        letters = left.replace("...", "").replace(",", "")
        once = sorted(letter for letter in set(letters) if letters.count(letter) == 1)
        result = "..." * ("..." in left) + "".join(once)
    spread = [rank - len(term) + 3 if "..." in term else 0 for term, rank in zip(terms, ranks, strict=True)]
    if min(spread) < 0:
        raise ValueError(f"an operand has fewer dimensions than its term of '{equation}'")
    dots = ["".join(chr(ord("0") + i) for i in reversed(range(count))) for count in spread]
    return [term.replace("...", own) for term, own in zip(terms, dots, strict=True)], result.replace("...", max(dots, key=len))
