"""How far apart two values are, by element type."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from dnnc.build.collective import Collective
from dnnc.check.compare import QUANTISED_STEP, Precision, compare, roundings_of
from dnnc.engines.onnxruntime.transport.codec import from_user
from dnnc.onnx.elements import BY_NAME, Array

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
    assert compare(from_user(base), from_user(base + np.uint8(1)), Precision(quantised=True)).ok
    assert not compare(from_user(base), from_user(base + np.uint8(2)), Precision(quantised=True)).ok
    assert not compare(from_user(base), from_user(base + np.uint8(1))).ok
    floats = np.array([0.0, 255.0], np.float32)
    assert compare(from_user(floats), from_user(floats + np.float32(0.9)), Precision(quantised=True)).ok
    assert compare(from_user(floats), from_user(floats + np.float32(0.9)), Precision(quantised=True)).allowed == QUANTISED_STEP
    assert not compare(from_user(floats), from_user(floats + np.float32(2)), Precision(quantised=True)).ok


def test_unlike_values_say_how() -> None:
    x = from_user(np.zeros((2, 3), np.float32))
    assert "shape [3, 2] found, [2, 3] expected" in compare(x, from_user(np.zeros((3, 2), np.float32))).reason
    assert "int64 found, float32 expected" in compare(x, from_user(np.zeros((2, 3), np.int64))).reason
    assert "1 items found, 2 expected" in compare([x, x], [x]).reason
    assert not compare(None, x).ok
    assert compare([x, x], [x, x]).ok
    assert compare({"a": 1.0}, {"a": 1.0}).ok
    assert not compare({"a": 1.0}, {"b": 1.0}).ok


def test_16_bit_floats_may_differ_by_the_root_of_how_often_they_were_rounded() -> None:
    """32-bit floats gain nothing by it."""
    for dtype, allowed in ((np.float16, 3e-3), (np.float32, 1e-5)):
        expected = from_user(np.array([0, 1], dtype))
        found = from_user(np.array([0, 1.0025], dtype))
        difference = compare(expected, found, roundings=4)
        assert difference.allowed == pytest.approx(allowed)
        assert difference.ok == (dtype is np.float16)
        assert not compare(expected, found).ok


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_layers_that_round_differ_as_the_formula_says(dtype: type, ranks: int) -> None:
    """Products in 32 bits of which each is rounded, or the terms of its sum over ranks and the sum, against no rounding but the
    last: within what is allowed, and sixteen times as many make about four times the difference."""
    rng = np.random.default_rng(ranks)
    each = 1 if ranks == 1 else 2
    right: Array = rng.standard_normal((16, 64)).astype(dtype).astype(np.float32)
    found: Array = right
    seen = {}
    for layer in range(1, 65):
        weight = np.linalg.qr(rng.standard_normal((64, 64)))[0].astype(np.float32)
        right = right @ weight
        parts = zip(np.split(found, ranks, axis=1), np.split(weight, ranks), strict=True)
        terms = [(part @ own).astype(dtype).astype(np.float32) for part, own in parts]
        found = sum(terms, np.zeros_like(right)).astype(dtype).astype(np.float32)
        difference = compare(from_user(right.astype(dtype)), from_user(found.astype(dtype)), roundings=layer * each)
        assert difference.ok, (layer, difference)
        seen[layer] = difference.value
    assert 2 < seen[64] / seen[4] < 8


def test_collectives_round_what_they_move_once_and_sums_twice() -> None:
    def of(kind: str, reduction: str, element: str) -> Collective:
        number = BY_NAME[element].number
        return Collective(kind, 0, 0, "a", "b", number, ((0, 1),), ((2, 2),) * 2, ((2, 2),) * 2, reduction, 0, 0)

    gather, added = of("all_gather", "", "float16"), of("all_reduce", "sum", "bfloat16")
    largest, exact = of("all_reduce", "max", "float16"), of("reduce_scatter", "sum", "float32")
    assert [roundings_of([one]) for one in (gather, added, largest, exact)] == [1, 2, 1, 0]
    assert roundings_of([gather, added, exact]) == 3
