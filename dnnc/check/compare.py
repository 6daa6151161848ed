"""The difference of two values, and the largest difference that passes.

The *measure* of a difference is a share, so that one tolerance serves every type but the narrow integers:

- floats, and 32-bit sums of quantised values: the largest difference over the range of the expected values (their largest
  magnitude if all are equal). If all are nearly equal, a few units in the last place of the largest value pass. NaN and
  infinities must be at the same places;
- integers of at most 16 bits that are quantised values: the largest difference, in steps;
- other integers, booleans and strings: the share of elements that are not equal.

The difference that always passes follows from the precision of a value: that of its type, or a lower one that it was computed
from. In one session, onnxruntime keeps the excess precision of its 32-bit kernels between ops of 16 bits; a border between
stages rounds to 16 bits. After n such roundings, whose errors are independent, (1 + sqrt(n)) tolerances pass (Higham and Mary,
SIAM J. Sci. Comput. 41(5), 2019: sqrt(n) replaces n). A border rounds once, and so does a collective that moves a value. A
collective that sums rounds twice, terms and sum: the errors of the terms add up to about one rounding of the sum. Larger
effects of rounding are measured for each model (``noise.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dnnc.build.collective import Collective
from dnnc.build.members import Box, is_whole
from dnnc.engines.onnxruntime.transport.codec import Raw, to_user
from dnnc.onnx.elements import BY_NUMBER, Array, Element

TOLERANCES = {
    "float64": 1e-5,
    "float32": 1e-5,
    "complex64": 1e-5,
    "complex128": 1e-5,
    "float16": 1e-3,
    "bfloat16": 1e-2,
    "float8_e4m3fn": 2**-3,
    "float8_e4m3fnuz": 2**-3,
    "float8_e5m2": 2**-2,
    "float8_e5m2fnuz": 2**-2,
    "float8_e8m0fnu": 1.0,
    "float4_e2m1fn": 2**-1,
    "float6_e2m3fn": 2**-3,
    "float6_e3m2fn": 2**-2,
}
"""Largest difference over the range that passes, by element type. For narrow floats it is one rounding step."""
SIXTEEN_BITS = ("float16", "bfloat16")
LAST_PLACES = 4
"""Units in the last place by which 32- and 64-bit floats may differ even if the range is tiny: sums in another order."""
QUANTISED_STEP = 1 / 255
"""Tolerance of floats that are computed from quantised values: one step of 8 bits."""


CAP = 0.1
"""Largest tolerance that a measured noise floor may lead to, as a share."""
CAP_TYPICAL = 0.25
"""The same for the typical difference: a tensor that has nothing to do with the expected one is off by 1.4 deviations."""


@dataclass(frozen=True, slots=True)
class Precision:
    """The precision that a value was computed with. ``narrow``: float types below 32 bits that its inputs were rounded to;
    ``quantised``: whether small integers stood for real numbers on the way; ``rounded``: whether floats were computed with."""

    narrow: frozenset[str] = frozenset()
    quantised: bool = False
    rounded: bool = False

    def __or__(self, other: Precision) -> Precision:
        return Precision(self.narrow | other.narrow, self.quantised or other.quantised, self.rounded or other.rounded)


EXACT = Precision()


@dataclass(frozen=True, slots=True)
class Difference:
    """``value``: the measure of the difference; ``inf`` if the values cannot be compared, and ``reason`` says why. ``allowed``:
    the largest value that passes. ``typical``: root mean square of the difference over the standard deviation of the expected
    values; a few elements change it little. ``unit``: a share of 1 in the measure of ``value``: 1, or the number of steps
    of a quantised integer. ``elements``: how many elements were compared; only finite ones count."""

    value: float
    allowed: float
    reason: str = ""
    typical: float = 0.0
    unit: float = 1.0
    elements: int = 1

    @property
    def ok(self) -> bool:
        return self.value <= self.allowed


def roundings_of(collectives: Iterable[Collective]) -> int:
    """Roundings to 16 bits on a path through all of these collectives: the most that a value can have."""
    sixteen = (one for one in collectives if BY_NUMBER[one.element].name in SIXTEEN_BITS)
    return sum(2 if one.reduction == "sum" else 1 for one in sixteen)


def compare(expected: Any, actual: Any, precision: Precision = EXACT, roundings: int = 0) -> Difference:
    """The difference of two values as ``codec`` decodes them: tensors, strings, lists of those, maps, None. ``roundings``: how
    often ``actual`` was rounded to 16 bits where ``expected`` was not."""
    if isinstance(expected, Raw) and isinstance(actual, Raw):
        return _tensors(expected, actual, precision, roundings)
    if isinstance(expected, list) and isinstance(actual, list):
        if len(expected) != len(actual):
            return _unlike(f"{len(actual)} items found, {len(expected)} expected")
        parts = [compare(e, f, precision, roundings) for e, f in zip(expected, actual, strict=True)]
        worst = max(parts, key=lambda d: (not d.ok, d.value), default=Difference(0.0, 0.0))
        return replace(worst, elements=sum(part.elements for part in parts))
    if isinstance(expected, np.ndarray) and isinstance(actual, np.ndarray):
        if expected.shape != actual.shape:
            return _unlike(f"shape {list(actual.shape)} found, {list(expected.shape)} expected")
        return _unequal(expected, actual, "strings ")
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        if expected.keys() != actual.keys():
            return _unlike("the keys differ")
        return compare(_values(expected), _values(actual), precision, roundings)
    if expected is None and actual is None:
        return Difference(0.0, 0.0, elements=0)
    return _unlike("the kinds of value differ")


def compare_part(expected: Raw, box: Box, actual: Raw, precision: Precision = EXACT, roundings: int = 0) -> Difference:
    """The difference between a part of a tensor and ``box`` of the expected tensor, as ``compare`` measures it, over the range
    of the whole tensor."""
    if not box or is_whole(box, expected.shape):
        return compare(expected, actual, precision, roundings)
    here = tuple(slice(start, start + length) for start, length in box)
    part = expected.data[here]
    if part.shape != actual.data.shape or expected.element != actual.element:
        return _unlike(f"shape {list(actual.shape)} found, {list(part.shape)} expected")
    data = expected.data.copy()
    data[here] = actual.data
    return _tensors(expected, Raw(expected.element, expected.shape, data), precision, roundings)


def _values(mapping: Mapping[Any, Any]) -> Any:
    array = np.array([mapping[key] for key in mapping])
    if array.dtype.kind in "OU":
        return array.astype(object)
    wide = array.astype(np.float32 if array.dtype.kind == "f" else np.int64)
    return Raw(1 if array.dtype.kind == "f" else 7, wide.shape, wide)


def _unlike(reason: str) -> Difference:
    return Difference(math.inf, 0.0, reason, math.inf)


def _tensors(expected: Raw, actual: Raw, precision: Precision, roundings: int) -> Difference:
    element = BY_NUMBER[expected.element]
    if expected.element != actual.element:
        return _unlike(f"{BY_NUMBER[actual.element].name} found, {element.name} expected")
    if expected.shape != actual.shape:
        return _unlike(f"shape {list(actual.shape)} found, {list(expected.shape)} expected")
    allowed = _allowed(element, precision, roundings)
    steps = precision.quantised and element.name != "bool" and element.name not in TOLERANCES and element.bits <= 16
    unit = float((1 << element.bits) - 1) if steps else 1.0
    if np.array_equal(_bits(expected.data), _bits(actual.data)):
        return Difference(0.0, allowed, unit=unit, elements=_finite(expected))
    left, right = to_user(expected), to_user(actual)
    if element.name in TOLERANCES:
        return _floats(left, right, allowed)
    if allowed == 0:
        return _unequal(left, right)
    left, right = left.astype(np.float64), right.astype(np.float64)
    gap = np.abs(left - right)
    most = float(gap.max())
    reason = f"{int((gap > 0).sum())} of {left.size} differ, by up to {most:g}"
    if not steps:
        most /= float(left.max()) - float(left.min()) or float(np.abs(left).max()) or 1.0
    return Difference(most, allowed, reason, _typical(left, gap), unit, left.size)


def _bits(data: Array) -> Array:
    flat = np.ascontiguousarray(data).reshape(-1)
    return flat.view(np.uint8) if flat.size else flat


def _finite(value: Raw) -> int:
    """Number of elements of a tensor; 0 if none is finite."""
    size = math.prod(value.shape)
    if BY_NUMBER[value.element].name not in TOLERANCES or BY_NUMBER[value.element].bits < 16:
        return size
    flat = value.data.reshape(-1)
    for part in (flat[:1024], flat):  # nearly always one of the first is finite
        if np.isfinite(to_user(Raw(value.element, part.shape, part))).any():
            return size
    return 0


def _unequal(left: Array, right: Array, what: str = "") -> Difference:
    """The difference of values that are compared for equality: the share of unequal elements."""
    unequal = int((left != right).sum())
    reason = f"{unequal} of {left.size} {what}differ" if unequal else ""
    share = unequal / max(1, left.size)
    return Difference(share, 0.0, reason, share, elements=left.size)


def _allowed(element: Element, precision: Precision, roundings: int) -> float:
    """Largest difference that passes for a value of this type that was computed with this precision."""
    if element.name not in TOLERANCES:
        if not precision.quantised or element.name == "bool" or element.bits > 32:
            return 0.0
        return 1.0 if element.bits <= 16 else QUANTISED_STEP
    rounded = 1 + math.sqrt(roundings)
    narrow = (TOLERANCES[name] * (rounded if name in SIXTEEN_BITS else 1) for name in {element.name, *precision.narrow})
    return max(*narrow, QUANTISED_STEP if precision.quantised else 0.0)


def _floats(left: Array, right: Array, allowed: float) -> Difference:
    place = float(np.finfo(left.dtype).eps) if left.dtype in (np.float32, np.float64) else 0.0
    if left.dtype.kind != "c":
        left, right = left.astype(np.float64), right.astype(np.float64)
    odd = ~np.isfinite(left)
    if not np.array_equal(odd, ~np.isfinite(right)):
        return Difference(math.inf, allowed, "NaN or infinity at different places", math.inf)
    if odd.any():
        both_nan = np.isnan(left[odd]) & np.isnan(right[odd])
        if not (both_nan | (left[odd] == right[odd])).all():
            return Difference(math.inf, allowed, "NaN or infinity differ", math.inf)
        left, right = left[~odd], right[~odd]
    if left.size == 0 or np.array_equal(left, right):
        return Difference(0.0, allowed, elements=left.size)
    if left.dtype.kind == "c":
        scale = float(np.abs(left).max())
    else:
        largest = float(np.abs(left).max())
        scale = max(float(left.max() - left.min()) or largest, LAST_PLACES * place * largest / allowed)
    gap = np.abs(left - right)
    return Difference(float(gap.max()) / (scale or 1.0), allowed, "", _typical(left, gap), elements=left.size)


def _typical(expected: Array, gap: Array) -> float:
    """The root of the mean square of ``gap`` over the standard deviation of the expected values (their magnitude when all are
    equal)."""
    spread = float(expected.std()) or float(np.abs(expected).max()) or 1.0
    return float(np.linalg.norm(gap.reshape(-1))) / math.sqrt(gap.size) / spread
