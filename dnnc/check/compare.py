"""How far two values are apart, and how far they may be.

The *measure* of a difference is a share, so that one tolerance serves every type but the narrow integers:

- floats, and 32-bit sums of quantised values: the largest difference over the range of the expected values (their largest
  magnitude when all are equal). Where all are nearly equal, a few units in the last place of the largest pass. NaN and
  infinities must stand at the same places;
- integers of at most 16 bits that are quantised values: the largest difference, in steps;
- other integers, booleans and strings: the share of elements that are not equal.

What is allowed at least depends on the precision of a value: that of its type, or a lower one that it was computed from. 16-bit
floats may differ by more the oftener their inputs were rounded to 16 bits where onnxruntime inside one session keeps the
excess precision of its 32-bit kernels: by (1 + sqrt(n)) tolerances after n such roundings, whose errors are independent (Higham
and Mary, SIAM J. Sci. Comput. 41(5), 2019: the root of n takes the place of n). A border between stages rounds once, and so
does a collective that moves a value. One that adds terms rounds twice, each term and their sum: the errors of terms add up to
about that of one as large as the sum. What rounding does to one model beyond that is measured (``noise.py``).
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
"""Largest difference over the range, by element type; narrow floats: one rounding step."""
SIXTEEN_BITS = ("float16", "bfloat16")
LAST_PLACES = 4
"""Units in the last place of a 32- or 64-bit float by which sums in another order may differ, however small the range is."""
QUANTISED_STEP = 1 / 255
"""Tolerance of floats that are computed from quantised values: one step of 8 bits."""


CAP = 0.1
"""Largest tolerance that a measured noise floor may give, as a share."""
CAP_TYPICAL = 0.25
"""The same for the typical difference: a tensor that has nothing to do with the expected one is off by 1.4 deviations."""


@dataclass(frozen=True, slots=True)
class Precision:
    """What a value was computed from. ``narrow``: float types of fewer bits than 32 that its inputs were rounded to;
    ``quantised``: whether integers of few bits stood for real numbers on the way; ``rounded``: whether floats did at all."""

    narrow: frozenset[str] = frozenset()
    quantised: bool = False
    rounded: bool = False

    def __or__(self, other: Precision) -> Precision:
        return Precision(self.narrow | other.narrow, self.quantised or other.quantised, self.rounded or other.rounded)


EXACT = Precision()


@dataclass(frozen=True, slots=True)
class Difference:
    """``value``: the measure of the difference, ``inf`` where the two cannot be compared, with the ``reason``; ``allowed``: the
    largest that passes; ``typical``: the root of the mean square over the standard deviation of the expected values, to which
    few elements add little; ``unit``: what a share of 1 is in the measure of ``value`` (1, or the number of steps of a
    quantised integer); ``elements``: how many were compared, without those that are not finite."""

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
    """How often values are rounded to 16 bits by all of these, one behind the other at most."""
    sixteen = (one for one in collectives if BY_NUMBER[one.element].name in SIXTEEN_BITS)
    return sum(2 if one.reduction == "sum" else 1 for one in sixteen)


def compare(expected: Any, found: Any, precision: Precision = EXACT, roundings: int = 0) -> Difference:
    """The difference of two values as they travel (``codec``): tensors, strings, lists of those, maps, None. ``roundings``: how
    often what the found one is made of was rounded to 16 bits, and the expected one was not."""
    if isinstance(expected, Raw) and isinstance(found, Raw):
        return _tensors(expected, found, precision, roundings)
    if isinstance(expected, list) and isinstance(found, list):
        if len(expected) != len(found):
            return _unlike(f"{len(found)} items found, {len(expected)} expected")
        parts = [compare(e, f, precision, roundings) for e, f in zip(expected, found, strict=True)]
        worst = max(parts, key=lambda d: (not d.ok, d.value), default=Difference(0.0, 0.0))
        return replace(worst, elements=sum(part.elements for part in parts))
    if isinstance(expected, np.ndarray) and isinstance(found, np.ndarray):
        if expected.shape != found.shape:
            return _unlike(f"shape {list(found.shape)} found, {list(expected.shape)} expected")
        return _unequal(expected, found, "strings ")
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        if expected.keys() != found.keys():
            return _unlike("the keys differ")
        return compare(_values(expected), _values(found), precision, roundings)
    if expected is None and found is None:
        return Difference(0.0, 0.0, elements=0)
    return _unlike("the kinds of value differ")


def compare_part(expected: Raw, box: Box, found: Raw, precision: Precision = EXACT, roundings: int = 0) -> Difference:
    """As ``compare``, of what lies in ``box`` of the expected tensor and a part that should be that; over the range of the
    whole tensor."""
    if not box or is_whole(box, expected.shape):
        return compare(expected, found, precision, roundings)
    here = tuple(slice(start, start + length) for start, length in box)
    part = expected.data[here]
    if part.shape != found.data.shape or expected.element != found.element:
        return _unlike(f"shape {list(found.shape)} found, {list(part.shape)} expected")
    data = expected.data.copy()
    data[here] = found.data
    return _tensors(expected, Raw(expected.element, expected.shape, data), precision, roundings)


def _values(mapping: Mapping[Any, Any]) -> Any:
    array = np.array([mapping[key] for key in mapping])
    if array.dtype.kind in "OU":
        return array.astype(object)
    wide = array.astype(np.float32 if array.dtype.kind == "f" else np.int64)
    return Raw(1 if array.dtype.kind == "f" else 7, wide.shape, wide)


def _unlike(reason: str) -> Difference:
    return Difference(math.inf, 0.0, reason, math.inf)


def _tensors(expected: Raw, found: Raw, precision: Precision, roundings: int) -> Difference:
    element = BY_NUMBER[expected.element]
    if expected.element != found.element:
        return _unlike(f"{BY_NUMBER[found.element].name} found, {element.name} expected")
    if expected.shape != found.shape:
        return _unlike(f"shape {list(found.shape)} found, {list(expected.shape)} expected")
    allowed = _allowed(element, precision, roundings)
    steps = precision.quantised and element.name != "bool" and element.name not in TOLERANCES and element.bits <= 16
    unit = float((1 << element.bits) - 1) if steps else 1.0
    if np.array_equal(_bits(expected.data), _bits(found.data)):
        return Difference(0.0, allowed, unit=unit, elements=_finite(expected))
    left, right = to_user(expected), to_user(found)
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
    """How many elements a tensor has; 0 where none is finite."""
    size = math.prod(value.shape)
    if BY_NUMBER[value.element].name not in TOLERANCES or BY_NUMBER[value.element].bits < 16:
        return size
    flat = value.data.reshape(-1)
    for part in (flat[:1024], flat):  # nearly always the first few tell
        if np.isfinite(to_user(Raw(value.element, part.shape, part))).any():
            return size
    return 0


def _unequal(left: Array, right: Array, what: str = "") -> Difference:
    """The difference of values of which each is either right or wrong."""
    unequal = int((left != right).sum())
    reason = f"{unequal} of {left.size} {what}differ" if unequal else ""
    share = unequal / max(1, left.size)
    return Difference(share, 0.0, reason, share, elements=left.size)


def _allowed(element: Element, precision: Precision, roundings: int) -> float:
    """What is allowed of a value of this type that was computed from values of this precision."""
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
