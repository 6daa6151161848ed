"""Every rule against central differences in f64, on random shapes: broadcasting, unused results and shared operands too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.passes.differentiate.numeric import Array, Case, check

Draw = Callable[[np.random.Generator, tuple[int, ...]], Case]


def distinct(random: np.random.Generator, shape: tuple[int, ...], low: float = -2.0, high: float = 2.0) -> Array:
    """Numbers in random order, so far from each other and from multiples of their distance that no step crosses a kink."""
    count = max(1, int(np.prod(shape)))
    values = low + (high - low) * (np.arange(count) + 0.37) / count
    return random.permutation(values).reshape(shape)


def integers(*values: int) -> Array:
    return np.array(values, np.int64)


UNARY: Mapping[str, tuple[float, float, dict[str, Any]]] = {
    "Abs": (-2, 2, {}), "Acos": (-0.9, 0.9, {}), "Acosh": (1.2, 3, {}), "Asin": (-0.9, 0.9, {}),
    "Asinh": (-2, 2, {}), "Atan": (-2, 2, {}), "Atanh": (-0.9, 0.9, {}), "Celu": (-2, 2, {"alpha": 0.5}),
    "Cos": (-2, 2, {}), "Cosh": (-2, 2, {}),

    "Elu": (-2, 2, {"alpha": 0.5}), "Erf": (-2, 2, {}), "Exp": (-2, 2, {}), "HardSigmoid": (-4, 4, {}),
    "HardSwish": (-4, 4, {}), "Identity": (-2, 2, {}), "LeakyRelu": (-2, 2, {"alpha": 0.25}), "Log": (0.5, 3, {}),
    "Mish": (-2, 2, {}), "Neg": (-2, 2, {}),
    "Reciprocal": (0.5, 2, {}), "Selu": (-2, 2, {}), "Shrink": (-2, 2, {"lambd": 0.5}),
    "Sigmoid": (-2, 2, {}), "Sin": (-2, 2, {}), "Sinh": (-2, 2, {}), "Softplus": (-2, 2, {}), "Softsign": (-2, 2, {}),
    "Sqrt": (0.5, 3, {}), "Tan": (-1, 1, {}), "Tanh": (-2, 2, {}), "ThresholdedRelu": (-2, 2, {"alpha": 0.5}),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(UNARY))
def test_unary(name: str) -> None:
    low, high, fields = UNARY[name]
    random = np.random.default_rng(3)
    # Attributes are IEEE single; the reference's Erf is a polynomial, good to 1e-7, its Softsign takes no scalar.
    tolerance = 2e-3 if name == "Erf" else 2e-4 if fields else 1e-5
    step = 1e-3 if name == "Erf" else 1e-6
    for shape in ((1,), (3,), (2, 3, 2)):
        check(Case(name, {0: distinct(random, shape, low, high)}, fields=fields), tolerance=tolerance, step=step)


@pytest.mark.parametrize("name", ["Celu", "Elu", "Selu"])
@pytest.mark.parametrize("sign", [1, -1])
def test_linear_units_of_either_sign(name: str, sign: int) -> None:
    """Where the result tells the sign of the operand, and where it does not: an Elu of negative ``alpha`` is never below 0."""
    operand = {0: distinct(np.random.default_rng(3), (2, 5))}
    check(Case(name, operand, fields={"alpha": 0.75 * sign}), tolerance=2e-4)


@pytest.mark.parametrize("alpha", [0.25, 0.0, -0.25])
def test_hard_sigmoid_of_either_slope(alpha: float) -> None:
    """It falls where ``alpha`` is negative, and has no limits where it is 0."""
    operand = {0: distinct(np.random.default_rng(3), (2, 5), -4, 4)}
    check(Case("HardSigmoid", operand, fields={"alpha": alpha}), tolerance=2e-4)


shapes = st.lists(st.integers(1, 3), min_size=0, max_size=3).map(tuple)


@st.composite
def broadcasts(draw: st.DrawFn, count: int) -> list[tuple[int, ...]]:
    """Shapes that broadcast together."""
    whole = draw(shapes)
    found = []
    for _ in range(count):
        kept = whole[draw(st.integers(0, len(whole))) :]
        found.append(tuple(draw(st.sampled_from((size, 1))) for size in kept))
    return found


@pytest.mark.parametrize("name", ["Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Mean", "Sum", "PRelu", "Where"])
@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_arithmetic_that_broadcasts(name: str, data: st.DataObject) -> None:
    several = 3 if name in ("Max", "Min", "Mean", "Sum") else 2
    sizes = data.draw(broadcasts(several))
    if name in ("PRelu", "Mean"):  # the reference adds to the first in place
        sizes = [np.broadcast_shapes(*sizes), *sizes[1:]]
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    low = 0.5 if name in ("Div", "Pow") else -2.0
    floats = {i: distinct(random, shape, low) + 0.01 * i for i, shape in enumerate(sizes)}
    if name == "Where":
        chosen = random.integers(0, 2, np.broadcast_shapes(*sizes)).astype(bool)
        check(Case(name, {i + 1: array for i, array in floats.items()}, {0: chosen}))
        return
    check(Case(name, floats))


@pytest.mark.parametrize("name", ["Add", "Sub", "Mul", "Div", "Pow", "MatMul"])
def test_an_operand_that_is_read_twice(name: str) -> None:
    array = distinct(np.random.default_rng(5), (3, 3), 0.5, 2)
    check(Case(name, {0: array, 1: array}, shared=True))


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_matmul_of_all_ranks(data: st.DataObject) -> None:
    rows, inner, columns = (data.draw(st.integers(1, 3)) for _ in range(3))
    batch, other = data.draw(broadcasts(2))
    left = (inner,) if data.draw(st.booleans()) and data.draw(st.booleans()) else (*batch, rows, inner)
    right = (inner,) if data.draw(st.booleans()) and data.draw(st.booleans()) else (*other, inner, columns)
    random = np.random.default_rng(0)
    check(Case("MatMul", {0: random.normal(size=left), 1: random.normal(size=right)}))


@pytest.mark.parametrize("turned", range(4))
@pytest.mark.parametrize("bias", [(), (4,), (3, 1), (3, 4), None])
def test_gemm(turned: int, bias: tuple[int, ...] | None) -> None:
    random = np.random.default_rng(0)
    left, right = ((2, 3) if turned & 1 else (3, 2)), ((4, 2) if turned & 2 else (2, 4))
    floats = {0: random.normal(size=left), 1: random.normal(size=right)}
    if bias is not None:
        floats[2] = random.normal(size=bias)
    fields = {"transA": turned & 1, "transB": turned >> 1, "alpha": 0.5, "beta": 2.0}
    check(Case("Gemm", floats, fields=fields))


@pytest.mark.parametrize(
    ("equation", "sizes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("bhid,bhjd->bhij", [(2, 2, 3, 2), (2, 2, 4, 2)]),
        ("abx,aby->xy", [(2, 3, 2), (2, 3, 4)]),
        ("ij->ji", [(2, 3)]),
        ("ijk->j", [(2, 3, 2)]),
        ("i,j,k", [(2,), (3,), (2,)]),
        ("ij,kj->i", [(2, 3), (4, 3)]),
        ("ij,ij->ij", [(2, 3), (1, 3)]),
        ("ij,jk->ik", [(2, 3), (1, 4)]),
        ("bij,bjk->ik", [(1, 2, 3), (4, 1, 2)]),
    ],
)
def test_einsum(equation: str, sizes: list[tuple[int, ...]]) -> None:
    random = np.random.default_rng(0)
    check(Case("Einsum", {i: random.normal(size=size) for i, size in enumerate(sizes)}, fields={"equation": equation}))


def _case(name: str, shape: tuple[int, ...], fixed: Mapping[int, Array] | None = None, **fields: Any) -> Case:
    return Case(name, {0: distinct(np.random.default_rng(7), shape)}, fixed or {}, fields)


MOVES = {
    "reshape": _case("Reshape", (2, 3, 2), {1: integers(4, -1)}),
    "flatten": _case("Flatten", (2, 3, 2), axis=2),
    "squeeze": _case("Squeeze", (1, 3, 1), {1: integers(0)}),
    "unsqueeze": _case("Unsqueeze", (3, 2), {1: integers(0, 2)}),
    "transpose": _case("Transpose", (2, 3, 4), perm=[1, 2, 0]),
    "transpose without an order": _case("Transpose", (2, 3, 4)),
    "expand": _case("Expand", (3, 1), {1: integers(2, 3, 4)}),
    "tile": _case("Tile", (2, 3), {1: integers(2, 3)}),
    "slice": _case("Slice", (4, 5), {1: integers(1, -4), 2: integers(3, 100), 3: integers(0, 1)}),
    "slice by steps": _case("Slice", (7, 5), {1: integers(1), 2: integers(7), 3: integers(0), 4: integers(2)}),
    "slice backward": _case("Slice", (7, 5), {1: integers(-1), 2: integers(-100), 3: integers(1), 4: integers(-2)}),
    "pad": _case("Pad", (3, 2), {1: integers(1, 0, 2, 3)}),
    "pad along one axis": _case("Pad", (3, 2), {1: integers(1, 2), 3: integers(1)}),
    "pad by the edge": _case("Pad", (3, 4), {1: integers(2, 1, 0, 3)}, mode="edge"),
    "pad by a reflection": _case("Pad", (3, 4), {1: integers(2, 1, 1, 3)}, mode="reflect"),
    "pad round": _case("Pad", (3, 4, 2), {1: integers(2, 1, 0, 2), 3: integers(0, -2)}, mode="wrap"),
    "depth to space": _case("DepthToSpace", (1, 8, 2, 3), blocksize=2),
    "depth to space by columns": _case("DepthToSpace", (1, 8, 2, 3), blocksize=2, mode="CRD"),
    "space to depth": _case("SpaceToDepth", (1, 2, 4, 6), blocksize=2),
    "trilu": _case("Trilu", (3, 4), {1: np.array(1)}, upper=0),
    "gather rows": _case("Gather", (5, 2), {1: np.array([[0, 3], [3, -1]])}),
    "gather along the middle": _case("Gather", (2, 4, 3), {1: np.array([[0, 3, 3], [1, 1, 0]])}, axis=1),
    "gather one": _case("Gather", (2, 4, 3), {1: np.array(2)}, axis=1),
    "gather some": _case("Gather", (2, 4, 3), {1: integers(3, 0)}, axis=-2),
    "gather elements": _case("GatherElements", (3, 4), {1: np.array([[0, 0], [2, 1], [1, 1]])}, axis=1),
    "gather nd": _case("GatherND", (3, 4, 2), {1: np.array([[0, 1], [2, 3], [0, 1]])}),
    "gather nd in batches": _case("GatherND", (2, 3, 4), {1: np.array([[[0], [2]], [[1], [1]]])}, batch_dims=1),
    "gather nd in two batches": _case("GatherND", (2, 3, 4), {1: np.array([[[3], [3], [0]], [[1], [2], [-1]]])}, batch_dims=2),
    "cumsum": _case("CumSum", (3, 4), {1: np.array(1)}),
    "cumsum from the end": _case("CumSum", (3, 4), {1: np.array(0)}, reverse=1, exclusive=1),
    "clip": _case("Clip", (3, 4), {1: np.array(-0.91), 2: np.array(1.13)}),
    "clip above": _case("Clip", (3, 4), {2: np.array(0.33)}),
    "top": Case("TopK", {0: distinct(np.random.default_rng(7), (3, 5))}, {1: integers(2)}, results=2),
    "split": Case("Split", {0: distinct(np.random.default_rng(7), (2, 5))}, {1: integers(1, 3, 1)}, {"axis": 1}, 3),
    "split, unused": Case(
        "Split", {0: distinct(np.random.default_rng(7), (2, 5))}, {1: integers(1, 3, 1)}, {"axis": 1}, 3, (1,)
    ),
    "global average": _case("GlobalAveragePool", (2, 3, 4, 2)),
}


FOURIER = {
    "of real numbers": Case("DFT", {0: distinct(np.random.default_rng(7), (2, 5, 1))}, {2: np.array(1)}),
    "of half the frequencies": Case(
        "DFT", {0: distinct(np.random.default_rng(7), (2, 6, 1))}, {2: np.array(1)}, {"onesided": 1}
    ),
    "inverse": Case("DFT", {0: distinct(np.random.default_rng(7), (4, 3, 2))}, {2: np.array(0)}, {"inverse": 1}),
    "of the half of six": Case(
        "DFT",
        {0: distinct(np.random.default_rng(7), (4, 2, 2))},
        {1: np.array(6), 2: np.array(0)},
        {"inverse": 1, "onesided": 1},
    ),
    "of the half of five": Case(
        "DFT", {0: distinct(np.random.default_rng(7), (3, 2))}, {1: np.array(5), 2: np.array(0)}, {"inverse": 1, "onesided": 1}
    ),
    "longer": Case("DFT", {0: distinct(np.random.default_rng(7), (2, 3, 2))}, {1: np.array(5), 2: np.array(-2)}),
    "shorter": Case("DFT", {0: distinct(np.random.default_rng(7), (2, 5, 1))}, {1: np.array(3), 2: np.array(1)}),
}


@pytest.mark.parametrize("name", FOURIER)
def test_fourier(name: str) -> None:
    check(FOURIER[name])


@pytest.mark.parametrize("name", MOVES)
def test_moves(name: str) -> None:
    check(MOVES[name])


@pytest.mark.parametrize("reduction", ["none", "add"])
@pytest.mark.parametrize("name", ["ScatterElements", "ScatterND"])
def test_scatter(name: str, reduction: str) -> None:
    random = np.random.default_rng(0)
    rows = np.array([[0], [2]]) if name == "ScatterND" else np.array([[0, 2, 1], [3, 1, 2]])
    updates = random.normal(size=(2, 3))
    check(Case(name, {0: random.normal(size=(4, 3)), 2: updates}, {1: rows}, {"reduction": reduction}))


@pytest.mark.parametrize("reduction", ["max", "min"])
def test_an_extreme_that_is_scattered(reduction: str) -> None:
    random = np.random.default_rng(0)
    arrays = {0: random.normal(size=(4, 3)), 2: random.normal(size=(2, 3))}
    check(Case("ScatterElements", arrays, {1: np.array([[0, 2, 1], [0, 1, 2]])}, {"reduction": reduction}))
    arrays[0] = random.normal(size=(2, 4))
    check(Case("ScatterElements", arrays, {1: np.array([[0, 2, 1], [1, 1, 2]])}, {"reduction": reduction, "axis": 1}))


def test_concat() -> None:
    random = np.random.default_rng(0)
    arrays = {i: random.normal(size=(2, size, 3)) for i, size in enumerate((1, 3, 2))}
    check(Case("Concat", arrays, fields={"axis": 1}))
    constant = arrays.pop(1)
    check(Case("Concat", arrays, {1: constant}, {"axis": -2}))


REDUCTIONS = ["L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"]


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize(("axes", "keep"), [((1,), 0), ((0, -1), 1), (None, 0), (None, 1)])
def test_reductions(name: str, axes: tuple[int, ...] | None, keep: int) -> None:
    low = 0.5 if name == "LogSum" else -2.0
    fixed = {} if axes is None else {1: integers(*axes)}
    check(Case(f"Reduce{name}", {0: distinct(np.random.default_rng(7), (2, 3, 2), low)}, fixed, {"keepdims": keep}))


def test_a_product_with_zeros() -> None:
    check(Case("ReduceProd", {0: np.array([[0.0, 2.0, 3.0], [0.0, 0.0, 1.0]])}, {1: integers(1)}, {"keepdims": 0}))


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0, 3.0, 0.5, -1.5])
def test_constant_powers(exponent: float) -> None:
    check(Case("Pow", {0: distinct(np.random.default_rng(7), (3, 2), 0.5, 2)}, {1: np.array(exponent)}))
