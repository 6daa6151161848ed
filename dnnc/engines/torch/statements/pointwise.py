"""Emitters of elementwise ops."""

from __future__ import annotations

from collections.abc import Mapping

from dnnc.engines.torch.statements.call import Call, Emitter
from dnnc.engines.torch.statements.faults import DropoutInTraining
from ir.core.types import DType

# ONNX gives the operands and the result of these ops one element type, so torch never promotes.
_TEMPLATES: Mapping[str, str] = {
    "Abs": "torch.abs({0})",
    "Acos": "torch.acos({0})",
    "Acosh": "torch.acosh({0})",
    "Add": "{0} + {1}",
    "And": "torch.logical_and({0}, {1})",
    "Asin": "torch.asin({0})",
    "Asinh": "torch.asinh({0})",
    "Atan": "torch.atan({0})",
    "Atanh": "torch.atanh({0})",
    "BitwiseAnd": "{0} & {1}",
    "BitwiseNot": "~{0}",
    "BitwiseOr": "{0} | {1}",
    "BitwiseXor": "{0} ^ {1}",
    "Ceil": "torch.ceil({0})",
    "Cos": "torch.cos({0})",
    "Cosh": "torch.cosh({0})",
    "Erf": "torch.erf({0})",
    "Exp": "torch.exp({0})",
    "Floor": "torch.floor({0})",
    "HardSwish": "F.hardswish({0})",
    "Identity": "{0}",
    "IsNaN": "torch.isnan({0})",
    "Log": "torch.log({0})",
    "Mish": "F.mish({0})",
    "Mul": "{0} * {1}",
    "Neg": "-{0}",
    "Not": "torch.logical_not({0})",
    "Or": "torch.logical_or({0}, {1})",
    "Reciprocal": "torch.reciprocal({0})",
    "Relu": "torch.relu({0})",
    "Round": "torch.round({0})",
    "Sigmoid": "torch.sigmoid({0})",
    "Sign": "torch.sign({0})",
    "Sin": "torch.sin({0})",
    "Sinh": "torch.sinh({0})",
    "Softplus": "F.softplus({0}, threshold=100.0)",
    "Softsign": "F.softsign({0})",
    "Sqrt": "torch.sqrt({0})",
    "Sub": "{0} - {1}",
    "Tan": "torch.tan({0})",
    "Tanh": "torch.tanh({0})",
    "Where": "torch.where({0}, {1}, {2})",
    "Xor": "torch.logical_xor({0}, {1})",
    "com.microsoft.BiasGelu": "F.gelu({0} + {1})",
    "com.microsoft.Gelu": "F.gelu({0})",
}
_COMPARISONS = {
    "Equal": "torch.eq", "Greater": "torch.gt", "GreaterOrEqual": "torch.ge", "Less": "torch.lt", "LessOrEqual": "torch.le",
}  # fmt: skip


def _template(text: str) -> Emitter:
    return lambda call: text.format(*call.names)


def _comparison(function: str) -> Emitter:
    return lambda call: f"{function}({call.arg(0)}, {call.arg(1)})"


def _div(call: Call) -> str:
    """Integer division truncates towards zero, as ONNX's does."""
    if call.is_float(0):
        return f"{call.arg(0)} / {call.arg(1)}"
    return f'torch.div({call.arg(0)}, {call.arg(1)}, rounding_mode="trunc")'


def _mod(call: Call) -> str:
    """The result has the sign of the dividend if attribute ``fmod`` is set, else of the divisor."""
    return f"torch.{'fmod' if call.get('fmod', 0) else 'remainder'}({call.arg(0)}, {call.arg(1)})"


def _pow(call: Call) -> str:
    """The result has the base's element type; the exponent may have another. A constant exponent is written as a number: torch
    then computes a square as one product."""
    numbers = call.numbers(1)
    if call.is_float(0) and numbers is not None and len(numbers) == 1 and call.rank(1) <= call.rank(0):
        return f"torch.pow({call.arg(0)}, {float(numbers[0])!r})"
    power = f"torch.pow({call.arg(0)}, {call.arg(1)})"
    return power if call.type(0).dtype is call.type(1).dtype else f"{power}.to({call.dtype(-1)})"


def _cast(call: Call) -> str:
    return f"{call.arg(0)}.to({call.dtype(-1)})"


def _clip(call: Call) -> str:
    """Bounds are attributes before opset 11, scalar operands from then on."""
    low, high = (call.float(key, 0.0) if call.get(key) is not None else call.arg(i) for i, key in ((1, "min"), (2, "max")))
    if low == "None" and high == "None":
        return call.arg(0)
    for i, name in ((1, low), (2, high)):
        if (numbers := call.numbers(i)) is not None and name == call.arg(i):
            text = repr(float(numbers[0])) if call.is_float(0) else str(int(numbers[0]))
            low, high = (text, high) if i == 1 else (low, text)
    if ("None" in (low, high)) or _is_number(low) == _is_number(high):  # torch.clamp takes two numbers or two tensors
        return f"torch.clamp({call.arg(0)}, {low}, {high})"
    return f"torch.clamp(torch.clamp({call.arg(0)}, min={low}), max={high})"


def _is_number(text: str) -> bool:
    return not text.isidentifier()


def _fold_left(function: str) -> Emitter:
    """An op of any number of operands as nested calls of a function of two."""

    def emit(call: Call) -> str:
        result, *others = call.args
        for other in others:
            result = function.format(result, other)
        return result

    return emit


def _mean(call: Call) -> str:
    return f"({' + '.join(call.args)}) / {len(call.args)}"


def _gelu(call: Call) -> str:
    approximate = call.word("approximate", "none", "none", "tanh")
    return f"F.gelu({call.arg(0)})" if approximate == '"none"' else f"F.gelu({call.arg(0)}, approximate={approximate})"


def _fast_gelu(call: Call) -> str:
    x = call.arg(0) + (f" + {call.arg(1)}" if call.present(1) else "")
    return f'F.gelu({x}, approximate="tanh")'


def _swish(default: float) -> Emitter:
    def emit(call: Call) -> str:
        x, alpha = call.arg(0), call.float("alpha", default)
        return f"F.silu({x})" if alpha == "1.0" else f"{x} * torch.sigmoid({alpha} * {x})"

    return emit


def _prelu(call: Call) -> str:
    x = call.arg(0)
    return f"torch.where({x} < 0, {call.arg(1)} * {x}, {x})"


def _shrink(call: Call) -> str:
    """x - bias above lambd, x + bias below -lambd, else 0."""
    x, bias, lambd = call.arg(0), call.float("bias", 0.0), call.float("lambd", 0.5)
    return f"torch.where({x} < -{lambd}, {x} + {bias}, torch.where({x} > {lambd}, {x} - {bias}, torch.zeros_like({x})))"


def _hard_sigmoid(call: Call) -> str:
    return f"torch.clamp({call.float('alpha', 0.2)} * {call.arg(0)} + {call.float('beta', 0.5)}, 0.0, 1.0)"


def _selu(call: Call) -> str:
    alpha, gamma = call.float("alpha", 1.6732631921768188), call.float("gamma", 1.0507010221481323)
    return f"{gamma} * F.elu({call.arg(0)}, {alpha})"


def _is_inf(call: Call) -> str:
    x = call.arg(0)
    if call.get("detect_negative", 1) and call.get("detect_positive", 1):
        return f"torch.isinf({x})"
    return f"torch.isposinf({x})" if call.get("detect_positive", 1) else f"torch.isneginf({x})"


_WIDER = {DType.U16: DType.I32, DType.U32: DType.I64, DType.U64: DType.I64}


def _shift(call: Call) -> str:
    """torch cannot shift unsigned integers of 16 bits or more, so these are shifted as signed ones (wider, up to 64 bits)."""
    direction = "left" if call.get("direction") == "LEFT" else "right"
    wide = _WIDER.get(call.type(0).dtype)
    x, by = (name if wide is None else f"{name}.to({call.torch_dtype(wide)})" for name in (call.arg(0), call.arg(1)))
    shifted = f"torch.bitwise_{direction}_shift({x}, {by})"
    if wide is None:
        return shifted
    mask = f" & {(1 << call.type(0).dtype.bits) - 1}" if call.type(0).dtype is not DType.U64 else ""
    return f"({shifted}{mask}).to({call.dtype(-1)})"


def _dropout(call: Call) -> str:
    """The identity, as in inference. Raises InvalidInput for a dropout in training mode: its mask must be an op of its own."""
    if call.present(2) and call.numbers(2) != (0,):
        raise call.fault(DropoutInTraining(call.op.name))
    mask = f"torch.ones_like({call.arg(0)}, dtype=torch.bool)"
    return call.arg(0) if len(call.op.results) == 1 else f"{call.arg(0)}, {mask}"


EMITTERS: dict[str, Emitter] = {
    **{f"onnx.{name}": _template(text) for name, text in _TEMPLATES.items()},
    **{f"onnx.{name}": _comparison(function) for name, function in _COMPARISONS.items()},
    "onnx.BitShift": _shift,
    "onnx.Cast": _cast,
    "onnx.CastLike": _cast,
    "onnx.Celu": lambda call: f"F.celu({call.arg(0)}, {call.float('alpha', 1.0)})",
    "onnx.Clip": _clip,
    "onnx.Div": _div,
    "onnx.Dropout": _dropout,
    "onnx.Elu": lambda call: f"F.elu({call.arg(0)}, {call.float('alpha', 1.0)})",
    "onnx.Gelu": _gelu,
    "onnx.HardSigmoid": _hard_sigmoid,
    "onnx.IsInf": _is_inf,
    "onnx.LeakyRelu": lambda call: f"F.leaky_relu({call.arg(0)}, {call.float('alpha', 0.01)})",
    "onnx.Max": _fold_left("torch.maximum({}, {})"),
    "onnx.Mean": _mean,
    "onnx.Min": _fold_left("torch.minimum({}, {})"),
    "onnx.Mod": _mod,
    "onnx.PRelu": _prelu,
    "onnx.Pow": _pow,
    "onnx.Selu": _selu,
    "onnx.Shrink": _shrink,
    "onnx.Sum": lambda call: " + ".join(call.args),
    "onnx.Swish": _swish(1.0),
    "onnx.ThresholdedRelu": lambda call: f"F.threshold({call.arg(0)}, {call.float('alpha', 1.0)}, 0.0)",
    "onnx.com.microsoft.FastGelu": _fast_gelu,
    "onnx.com.microsoft.QuickGelu": _swish(1.702),
    "onnx.com.microsoft.ScaledSiLU": _swish(1.0),
}
"""Full name of an op -> its emitter."""
