"""Rules of functions of one operand, element by element: the gradient of the result times the derivative."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ir.ops import operators
from ir.ops.grads import DETACH
from passes.differentiate.site import ZERO, Rule, Site

Gradients = Sequence[str | None]


def _times(slope: Callable[[Site], str]) -> Rule:
    """The rule of a function whose derivative ``slope`` emits."""

    def rule(site: Site) -> Gradients:
        return [site.mul(site.given, slope(site))]

    return rule


def _gated(condition: Callable[[Site], str]) -> Rule:
    """The rule of a function of slope 1 where the condition holds and 0 elsewhere."""

    def rule(site: Site) -> Gradients:
        return [site.where(condition(site), site.given, 0.0), None, None]

    return rule


def identity(site: Site) -> Gradients:
    """Identity: the gradient itself."""
    return [site.given]


def cast(site: Site) -> Gradients:
    """Cast between floats: the gradient in the operand's type."""
    return [site.cast(site.given, site.type(0).dtype), ZERO]


def neg(site: Site) -> Gradients:
    return [site.unary("Neg", site.given)]


def exp(site: Site) -> Gradients:
    return [site.mul(site.given, site.result())]


def log(site: Site) -> Gradients:
    return [site.div(site.given, site.operand(0))]


def sqrt(site: Site) -> Gradients:
    """1 / (2 sqrt x)."""
    return [site.div(site.mul(site.given, 0.5), site.result())]


def reciprocal(site: Site) -> Gradients:
    """-1 / x^2."""
    return [site.unary("Neg", site.mul(site.given, site.mul(site.result(), site.result())))]


def absolute(site: Site) -> Gradients:
    return [site.mul(site.given, site.unary("Sign", site.operand(0)))]


def _sigmoid(site: Site) -> str:
    """s (1 - s)."""
    return site.mul(site.result(), site.sub(1.0, site.result()))


def _tanh(site: Site) -> str:
    """1 - t^2."""
    return site.sub(1.0, site.mul(site.result(), site.result()))


def _erf(site: Site) -> str:
    """2 / sqrt(pi) exp(-x^2)."""
    value = site.operand(0)
    return site.mul(site.unary("Exp", site.unary("Neg", site.mul(value, value))), 2.0 / math.sqrt(math.pi))


def _softplus(site: Site) -> str:
    return site.unary("Sigmoid", site.operand(0))


def _softsign(site: Site) -> str:
    """1 / (1 + |x|)^2."""
    inner = site.add(site.unary("Abs", site.operand(0)), 1.0)
    return site.unary("Reciprocal", site.mul(inner, inner))


def _root(name: str, sign: float, inner: float, outer: float) -> Callable[[Site], str]:
    """The slope ``outer / (inner + sign x^2)``, or of its square root where ``name`` says so."""

    def slope(site: Site) -> str:
        value = site.operand(0)
        squared = site.mul(site.mul(value, value), sign)
        below = site.add(squared, inner)
        below = site.unary("Sqrt", below) if name == "Sqrt" else below
        return site.mul(site.unary("Reciprocal", below), outer)

    return slope


def _tan(site: Site) -> str:
    """1 + tan^2."""
    return site.add(site.mul(site.result(), site.result()), 1.0)


def _minus_sin(site: Site) -> str:
    return site.unary("Neg", site.unary("Sin", site.operand(0)))


def leaky_relu(site: Site) -> Gradients:
    """Slope ``alpha`` below 0."""
    given = site.given
    low = site.mul(given, site.op.get("alpha", 0.01))
    return [site.where(site.compare("Greater", site.operand(0), 0.0), given, low)]


def elu(site: Site) -> Gradients:
    """Elu: result + alpha below 0. Celu: exp(x / alpha). Selu: gamma, and result + gamma alpha below 0. The operand is read
    only where the result does not tell its sign."""
    result, given = site.result(), site.given
    positive = site.compare("Greater", result if operators.keeps_sign(site.op) else site.operand(0), 0.0)
    if site.op.name == "onnx.Celu":
        alpha = site.op.get("alpha", 1.0)
        low = site.add(site.mul(result, 1.0 / alpha), 1.0)
        return [site.where(positive, given, site.mul(given, low))]
    if site.op.name == "onnx.Selu":
        alpha, gamma = site.op.get("alpha", 1.67326319217681884765625), site.op.get("gamma", 1.05070102214813232421875)
        return [site.mul(given, site.where(positive, gamma, site.add(result, alpha * gamma)))]
    return [site.where(positive, given, site.mul(given, site.add(result, site.op.get("alpha", 1.0))))]


def hard_sigmoid(site: Site) -> Gradients:
    """Slope ``alpha`` where the result lies strictly between 0 and 1."""
    inside = site.compare("And", site.compare("Greater", site.result(), 0.0), site.compare("Less", site.result(), 1.0))
    return [site.where(inside, site.mul(site.given, site.op.get("alpha", 0.2)), 0.0)]


def hard_swish(site: Site) -> Gradients:
    """x / 3 + 1 / 2 between -3 and 3, 1 above."""
    value, given = site.operand(0), site.given
    slope = site.add(site.mul(value, 1.0 / 3.0), 0.5)
    inner = site.where(site.compare("Greater", value, 3.0), given, site.mul(given, slope))
    return [site.where(site.compare("Less", value, -3.0), 0.0, inner)]


def _within(site: Site, low: float | str | None, high: float | str | None) -> str | None:
    """Where the operand is not beyond either of two limits; None without limits."""
    condition = None
    for name, limit in (("Less", low), ("Greater", high)):
        if limit is not None:
            truth = site.unary("Not", site.compare(name, site.operand(0), limit))
            condition = truth if condition is None else site.compare("And", condition, truth)
    return condition


def clip(site: Site) -> Gradients:
    """The gradient where the operand is not beyond a limit; a limit that is trained gets what it stood for."""
    given, value = site.given, site.operand(0)
    limits: list[float | str | None] = [site.op.get("min"), site.op.get("max")]
    for number in (1, 2):
        if site.present(number):
            limits[number - 1] = site.operand(number)
    gradients: list[str | None] = [None, None, None]
    if site.wants(0):
        inside = _within(site, *limits)
        gradients[0] = given if inside is None else site.where(inside, given, 0.0)
    for number, name in ((1, "Less"), (2, "Greater")):
        if site.wants(number):
            beyond = site.where(site.compare(name, value, site.operand(number)), given, 0.0)
            gradients[number] = site.summed(beyond, number)
    return gradients


def shrink(site: Site) -> Gradients:
    """Slope 1 beyond ``lambd`` on either side."""
    beyond = site.compare("Greater", site.unary("Abs", site.operand(0)), site.op.get("lambd", 0.5))
    return [site.where(beyond, site.given, 0.0)]


def mish(site: Site) -> Gradients:
    """x tanh(softplus(x)): t + x (1 - t^2) sigmoid(x), with t = tanh(softplus(x))."""
    value = site.operand(0)
    inner = site.unary("Tanh", site.unary("Softplus", value))
    slope = site.mul(site.sub(1.0, site.mul(inner, inner)), site.unary("Sigmoid", value))
    return [site.mul(site.given, site.add(inner, site.mul(value, slope)))]


def swish(site: Site) -> Gradients:
    """x sigmoid(alpha x): s + alpha x s (1 - s)."""
    value, alpha = site.operand(0), site.op.get("alpha", 1.702 if "Quick" in site.op.name else 1.0)
    scaled = value if alpha == 1.0 else site.mul(value, alpha)
    inner = site.unary("Sigmoid", scaled)
    slope = site.add(inner, site.mul(scaled, site.mul(inner, site.sub(1.0, inner))))
    return [site.mul(site.given, slope)]


def dropout(site: Site) -> Gradients:
    """Dropout that drops nothing."""
    trains = site.numbers(2)
    if (site.present(2) and trains != (0,)) or not site.has_opset(12):
        raise site.fault("it may drop elements at random", "run 'training' first: it drops it, or makes it a mask")
    return [site.given, ZERO, ZERO]


def no_gradient(site: Site) -> Gradients:
    """Steps and comparisons: constant wherever they have a derivative."""
    return [ZERO] * len(site.op.operands)


RULES: dict[str, Rule] = {
    "onnx.Abs": absolute,
    "onnx.Acos": _times(_root("Sqrt", -1.0, 1.0, -1.0)),
    "onnx.Asin": _times(_root("Sqrt", -1.0, 1.0, 1.0)),
    "onnx.Asinh": _times(_root("Sqrt", 1.0, 1.0, 1.0)),
    "onnx.Acosh": _times(_root("Sqrt", 1.0, -1.0, 1.0)),
    "onnx.Atan": _times(_root("", 1.0, 1.0, 1.0)),
    "onnx.Atanh": _times(_root("", -1.0, 1.0, 1.0)),
    "onnx.Cast": cast,
    "onnx.CastLike": cast,
    "onnx.Celu": elu,
    "onnx.Clip": clip,
    "onnx.Cos": _times(_minus_sin),
    "onnx.Cosh": _times(lambda site: site.unary("Sinh", site.operand(0))),
    "onnx.Dropout": dropout,
    "onnx.Elu": elu,
    "onnx.Erf": _times(_erf),
    "onnx.Exp": exp,
    "onnx.HardSigmoid": hard_sigmoid,
    "onnx.HardSwish": hard_swish,
    DETACH: no_gradient,
    "onnx.Identity": identity,
    "onnx.LeakyRelu": leaky_relu,
    "onnx.Log": log,
    "onnx.Mish": mish,
    "onnx.Neg": neg,
    "onnx.Reciprocal": reciprocal,
    "onnx.Selu": elu,
    "onnx.Shrink": shrink,
    "onnx.Sigmoid": _times(_sigmoid),
    "onnx.Sin": _times(lambda site: site.unary("Cos", site.operand(0))),
    "onnx.Sinh": _times(lambda site: site.unary("Cosh", site.operand(0))),
    "onnx.Softplus": _times(_softplus),
    "onnx.Softsign": _times(_softsign),
    "onnx.Sqrt": sqrt,
    "onnx.Swish": swish,
    "onnx.Tan": _times(_tan),
    "onnx.Tanh": _times(_tanh),
    "onnx.ThresholdedRelu": _gated(lambda site: site.compare("Greater", site.operand(0), site.op.get("alpha", 1.0))),
    "onnx.com.microsoft.QuickGelu": swish,
    **{f"onnx.{name}": no_gradient for name in ("Ceil", "Floor", "Round", "Sign")},
}
