"""How far apart two values are, by element type."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from dnnc.runtime.codec import from_user
from dnnc.runtime.compare import QUANTISED_STEP, compare

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("dtype", "allowed"),
    [(np.float64, 1e-5), (np.float32, 1e-5), (np.float16, 1e-3), (ml_dtypes.bfloat16, 1e-2)],
)
def test_floats_are_measured_over_the_range(dtype: type, allowed: float) -> None:
    expected = np.array([-50, 0, 50], dtype)
    found = np.array([-50, 1, 50], dtype)
    difference = compare(from_user(expected), from_user(found))
    assert difference.value == pytest.approx(0.01)
    assert difference.allowed == allowed
    assert difference.ok == (allowed >= 0.01)
    assert compare(from_user(expected), from_user(expected)).value == 0


def test_equal_elements_are_measured_over_their_size() -> None:
    assert compare(from_user(np.full(3, 4.0)), from_user(np.full(3, 5.0))).value == pytest.approx(0.25)
    assert compare(from_user(np.zeros(3)), from_user(np.full(3, 2.0))).value == pytest.approx(2)


def test_nearly_equal_elements_may_differ_in_their_last_places() -> None:
    """Averages of what a softmax gives are all the same but for rounding: their range is no measure."""
    expected = np.array([0.5, np.nextafter(np.float32(0.5), np.float32(1)), 0.5], np.float32)
    assert compare(from_user(expected), from_user(expected[::-1] - np.float32(1.2e-7))).ok
    assert not compare(from_user(expected), from_user(expected + np.float32(1e-6))).ok


@pytest.mark.parametrize(
    ("expected", "found", "same"),
    [
        ([1, NAN, INF], [1, NAN, INF], True),
        ([1, NAN, INF], [1, INF, NAN], False),
        ([1, INF, 2], [1, -INF, 2], False),
        ([1, 2, 3], [1, NAN, 3], False),
        ([NAN, NAN], [NAN, NAN], True),
    ],
)
def test_nan_and_infinity_keep_their_places(expected: list[float], found: list[float], same: bool) -> None:
    # The bits of the first element differ, so that equality of bits does not decide.
    left, right = np.array([0.0, *expected], np.float32), np.array([-0.0, *found], np.float32)
    assert compare(from_user(left), from_user(right)).ok is same


def test_integers_booleans_and_strings_are_exact() -> None:
    for left, right in (
        (np.array([1, 2]), np.array([1, 3])),
        (np.array([True, False]), np.array([True, True])),
        (np.array(["a", "b"], object), np.array(["a", "c"], object)),
    ):
        assert not compare(from_user(left), from_user(right)).ok
        assert compare(from_user(left), from_user(left)).ok


def test_quantised_values_may_be_one_step_apart() -> None:
    base = np.array([0, 100, 200], np.uint8)
    assert compare(from_user(base), from_user(base + np.uint8(1)), quantised=True).ok
    assert not compare(from_user(base), from_user(base + np.uint8(2)), quantised=True).ok
    assert not compare(from_user(base), from_user(base + np.uint8(1))).ok
    floats = np.array([0.0, 255.0], np.float32)
    assert compare(from_user(floats), from_user(floats + np.float32(0.9)), quantised=True).ok
    assert compare(from_user(floats), from_user(floats + np.float32(0.9)), quantised=True).allowed == QUANTISED_STEP
    assert not compare(from_user(floats), from_user(floats + np.float32(2)), quantised=True).ok


def test_unlike_values_say_how() -> None:
    x = from_user(np.zeros((2, 3), np.float32))
    assert "shape [3, 2] found, [2, 3] expected" in compare(x, from_user(np.zeros((3, 2), np.float32))).reason
    assert "int64 found, float32 expected" in compare(x, from_user(np.zeros((2, 3), np.int64))).reason
    assert "1 items found, 2 expected" in compare([x, x], [x]).reason
    assert not compare(None, x).ok
    assert compare([x, x], [x, x]).ok
    assert compare({"a": 1.0}, {"a": 1.0}).ok
    assert not compare({"a": 1.0}, {"b": 1.0}).ok


def test_a_chain_of_16_bit_floats_may_round_once_more_per_border() -> None:
    """A border rounds to 16 bits, one session does not; 32-bit floats gain nothing by it."""
    for dtype, allowed in ((np.float16, 3e-3), (np.float32, 1e-5)):
        expected = from_user(np.array([0, 1], dtype))
        found = from_user(np.array([0, 1.0025], dtype))
        difference = compare(expected, found, borders=2)
        assert difference.allowed == pytest.approx(allowed)
        assert difference.ok == (dtype is np.float16)
        assert not compare(expected, found).ok
