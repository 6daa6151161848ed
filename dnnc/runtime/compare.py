"""How far two values are apart, and how far they may be.

Floats: the largest difference over the range of the expected values (their largest magnitude when all are equal); where all
are nearly equal, a few units in the last place of the largest pass. NaN and infinities must stand at the same places.
Integers, booleans and strings are equal or not; 8-bit integers behind a quantisation may be one step apart, and whatever is
computed behind one may differ by one step of 8 bits (1/255 of the range).

16-bit floats may differ by more the oftener their inputs were rounded to 16 bits where onnxruntime inside one session keeps the
excess precision of its 32-bit kernels: by (1 + sqrt(n)) tolerances after n such roundings, whose errors are independent (Higham
and Mary, SIAM J. Sci. Comput. 41(5), 2019: the root of n takes the place of n). A border between stages rounds once, and so
does a collective that moves a value. One that adds terms rounds twice, each term and their sum: the errors of terms add up to
about that of one as large as the sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnnc.backend.members import Box, is_whole
from dnnc.runtime.codec import Raw, to_user
from dnnc.runtime.collectives import Collective
from dnnc.runtime.elements import BY_NUMBER, Array

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


@dataclass(frozen=True, slots=True)
class Difference:
    """``value``: how far apart, ``allowed``: how far they may be; ``inf`` where they cannot be compared, with the reason."""

    value: float
    allowed: float
    reason: str = ""

    @property
    def ok(self) -> bool:
        return self.value <= self.allowed


def roundings_of(collectives: Iterable[Collective]) -> int:
    """How often values are rounded to 16 bits by all of these, one behind the other at most."""
    sixteen = (one for one in collectives if BY_NUMBER[one.element].name in SIXTEEN_BITS)
    return sum(2 if one.reduction == "sum" else 1 for one in sixteen)


def compare(expected: Any, found: Any, *, quantised: bool = False, roundings: int = 0) -> Difference:
    """The difference of two values as they travel (``codec``): tensors, strings, lists of those, maps, None. ``roundings``: how
    often what the found one is made of was rounded to 16 bits, and the expected one was not."""
    if isinstance(expected, Raw) and isinstance(found, Raw):
        return _tensors(expected, found, quantised, roundings)
    if isinstance(expected, list) and isinstance(found, list):
        if len(expected) != len(found):
            return _unlike(f"{len(found)} items found, {len(expected)} expected")
        parts = [compare(e, f, quantised=quantised, roundings=roundings) for e, f in zip(expected, found, strict=True)]
        return max(parts, key=lambda d: (not d.ok, d.value), default=Difference(0.0, 0.0))
    if isinstance(expected, np.ndarray) and isinstance(found, np.ndarray):
        if expected.shape != found.shape:
            return _unlike(f"shape {list(found.shape)} found, {list(expected.shape)} expected")
        unequal = int((expected != found).sum())
        return Difference(float(unequal), 0.0, f"{unequal} strings differ" if unequal else "")
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        if expected.keys() != found.keys():
            return _unlike("the keys differ")
        return compare(_values(expected), _values(found), quantised=quantised, roundings=roundings)
    return Difference(0.0, 0.0) if expected is None and found is None else _unlike("the kinds of value differ")


def compare_part(expected: Raw, box: Box, found: Raw, *, quantised: bool = False, roundings: int = 0) -> Difference:
    """As ``compare``, of what lies in ``box`` of the expected tensor and a part that should be that; over the range of the
    whole tensor."""
    if not box or is_whole(box, expected.shape):
        return compare(expected, found, quantised=quantised, roundings=roundings)
    here = tuple(slice(start, start + length) for start, length in box)
    part = expected.data[here]
    if part.shape != found.data.shape or expected.element != found.element:
        return _unlike(f"shape {list(found.shape)} found, {list(part.shape)} expected")
    data = expected.data.copy()
    data[here] = found.data
    return _tensors(expected, Raw(expected.element, expected.shape, data), quantised, roundings)


def _values(mapping: Mapping[Any, Any]) -> Any:
    array = np.array([mapping[key] for key in mapping])
    if array.dtype.kind in "OU":
        return array.astype(object)
    wide = array.astype(np.float32 if array.dtype.kind == "f" else np.int64)
    return Raw(1 if array.dtype.kind == "f" else 7, wide.shape, wide)


def _unlike(reason: str) -> Difference:
    return Difference(float("inf"), 0.0, reason)


def _tensors(expected: Raw, found: Raw, quantised: bool, roundings: int) -> Difference:
    if expected.element != found.element:
        return _unlike(f"{BY_NUMBER[found.element].name} found, {BY_NUMBER[expected.element].name} expected")
    if expected.shape != found.shape:
        return _unlike(f"shape {list(found.shape)} found, {list(expected.shape)} expected")
    name = BY_NUMBER[expected.element].name
    allowed = _allowed(name, quantised, roundings)
    if np.array_equal(_bits(expected.data), _bits(found.data)):
        return Difference(0.0, allowed)
    left, right = to_user(expected), to_user(found)
    if name in TOLERANCES:
        return _floats(left, right, allowed)
    if name == "bool":
        unequal = int((left != right).sum())
        return Difference(float(unequal), 0.0, f"{unequal} of {left.size} differ")
    gap = np.abs(left.astype(np.float64) - right.astype(np.float64))
    steps = float(gap.max())
    if quantised and BY_NUMBER[expected.element].bits > 8:  # a sum of quantised values
        scale = float(left.max()) - float(left.min()) or float(np.abs(left.astype(np.float64)).max()) or 1.0
        return Difference(steps / scale, QUANTISED_STEP, f"{int((gap > 0).sum())} of {left.size} differ")
    return Difference(steps, allowed, f"{int((gap > 0).sum())} of {left.size} differ, by up to {steps:g}")


def _bits(data: Array) -> Array:
    flat = np.ascontiguousarray(data).reshape(-1)
    return flat.view(np.uint8) if flat.size else flat


def _allowed(name: str, quantised: bool, roundings: int) -> float:
    if name in TOLERANCES:
        tolerance = TOLERANCES[name] * (1 + math.sqrt(roundings) if name in SIXTEEN_BITS else 1)
        return max(tolerance, QUANTISED_STEP) if quantised else tolerance
    return 1.0 if quantised and name != "bool" else 0.0


def _floats(left: Array, right: Array, allowed: float) -> Difference:
    place = float(np.finfo(left.dtype).eps) if left.dtype in (np.float32, np.float64) else 0.0
    if left.dtype.kind != "c":
        left, right = left.astype(np.float64), right.astype(np.float64)
    odd = ~np.isfinite(left)
    if not np.array_equal(odd, ~np.isfinite(right)):
        return Difference(float("inf"), allowed, "NaN or infinity at different places")
    if odd.any():
        both_nan = np.isnan(left[odd]) & np.isnan(right[odd])
        if not (both_nan | (left[odd] == right[odd])).all():
            return Difference(float("inf"), allowed, "NaN or infinity differ")
        left, right = left[~odd], right[~odd]
    if left.size == 0:
        return Difference(0.0, allowed)
    if left.dtype.kind == "c":
        scale = float(np.abs(left).max())
    else:
        largest = float(np.abs(left).max())
        scale = max(float(left.max() - left.min()) or largest, LAST_PLACES * place * largest / allowed)
    return Difference(float(np.abs(left - right).max()) / (scale or 1.0), allowed)
