"""Rules of arithmetic on several operands that broadcast."""

from __future__ import annotations

from collections.abc import Sequence

from passes.differentiate.site import Rule, Site

Gradients = Sequence[str | None]


def add(site: Site) -> Gradients:
    """Add, and Sum of any number of operands."""
    return [site.summed(site.given, i) if site.wants(i) else None for i in range(len(site.op.operands))]


def sub(site: Site) -> Gradients:
    """a - b."""
    given = site.given
    return (
        site.summed(given, 0) if site.wants(0) else None,
        site.unary("Neg", site.summed(given, 1)) if site.wants(1) else None,
    )


def mul(site: Site) -> Gradients:
    """a b."""
    given, one, other = site.given, site.operand(0), site.operand(1)
    return (
        site.summed(site.mul(given, other), 0) if site.wants(0) else None,
        site.summed(site.mul(given, one), 1) if site.wants(1) else None,
    )


def div(site: Site) -> Gradients:
    """a / b: the gradient of b is that of the result times -(a / b) / b."""
    quotient = site.div(site.given, site.operand(1))
    second = None
    if site.wants(1):
        second = site.unary("Neg", site.summed(site.mul(quotient, site.result()), 1))
    return site.summed(quotient, 0) if site.wants(0) else None, second


def power(site: Site) -> Gradients:
    """a^b: b a^(b - 1), and a^b log a, which is 0 where a is 0."""
    given, base, exponent = site.given, site.operand(0), site.operand(1)
    first = second = None
    if site.wants(0):
        first = site.summed(site.mul(given, _power_slope(site, base, exponent)), 0)
    if site.wants(1):
        positive = site.compare("Greater", base, 0.0)
        logarithm = site.where(positive, site.unary("Log", site.where(positive, base, 1.0)), 0.0)
        result = site.result()
        second = site.summed(site.mul(given, site.mul(result, logarithm)), 1)
        second = site.cast(second, site.type(1).dtype)
    return first, second


def _power_slope(site: Site, base: str, exponent: str) -> str:
    """b a^(b - 1); of a constant b without a power where b is 2, and where it is 3."""
    dtype = site.type(0).dtype
    numbers = site.numbers(1)
    if numbers is not None and len(set(numbers)) == 1 and numbers[0] in (1, 2, 3):
        if numbers[0] == 1:
            return site.scalar(1.0, dtype)
        slope = site.mul(base, float(numbers[0]))
        return slope if numbers[0] == 2 else site.mul(slope, base)
    exact = site.cast(exponent, dtype)
    lower = site.sub(exact, 1.0)
    raised = site.binary("Pow", base, lower)
    # 0 where b is 0, whatever a is: 0 times an infinity is no number.
    return site.where(site.compare("Equal", exact, 0.0), 0.0, site.mul(exact, raised))


def mean(site: Site) -> Gradients:
    """The mean of any number of operands."""
    part = site.mul(site.given, 1.0 / len(site.op.operands))
    return [site.summed(part, i) if site.wants(i) else None for i in range(len(site.op.operands))]


def extreme(site: Site) -> Gradients:
    """Max and Min: equal operands share the gradient equally, as torch's do."""
    result, count = site.result(), len(site.op.operands)
    dtype = site.type(-1).dtype
    reached = [site.cast(site.compare("Equal", site.operand(i), result), dtype) for i in range(count)]
    total = reached[0]
    for other in reached[1:]:
        total = site.add(total, other)
    part = site.div(site.given, total) if count > 1 else site.given
    return [site.summed(site.mul(part, reached[i]), i) if site.wants(i) else None for i in range(count)]


def where(site: Site) -> Gradients:
    """The gradient goes to the operand that was chosen."""
    given, condition = site.given, site.operand(0)
    return (
        None,
        site.summed(site.where(condition, given, 0.0), 1) if site.wants(1) else None,
        site.summed(site.where(condition, 0.0, given), 2) if site.wants(2) else None,
    )


def modulo(site: Site) -> Gradients:
    """Mod of floats (``fmod``): a - b trunc(a / b)."""
    given = site.given
    second = None
    if site.wants(1):
        quotient = site.div(site.operand(0), site.operand(1))
        # Truncated towards zero: the sign times the floor of the magnitude.
        whole = site.mul(site.unary("Sign", quotient), site.unary("Floor", site.unary("Abs", quotient)))
        second = site.unary("Neg", site.summed(site.mul(given, whole), 1))
    return site.summed(given, 0) if site.wants(0) else None, second


def prelu(site: Site) -> Gradients:
    """x where it is above 0, else slope x."""
    given, value, slope = site.given, site.operand(0), site.operand(1)
    positive = site.compare("Greater", value, 0.0)
    first = second = None
    if site.wants(0):
        first = site.summed(site.where(positive, given, site.mul(given, slope)), 0)
    if site.wants(1):
        second = site.summed(site.where(positive, 0.0, site.mul(given, value)), 1)
    return first, second


RULES: dict[str, Rule] = {
    "onnx.Add": add,
    "onnx.Div": div,
    "onnx.Max": extreme,
    "onnx.Mean": mean,
    "onnx.Min": extreme,
    "onnx.Mod": modulo,
    "onnx.Mul": mul,
    "onnx.PRelu": prelu,
    "onnx.Pow": power,
    "onnx.Sub": sub,
    "onnx.Sum": add,
    "onnx.Where": where,
}
