"""Products of matrices by their sizes: never quicker than arithmetic and memory allow, and the same whole as in parts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ir.core.facets import Cost
from ir.core.ops import Op, Value
from ir.core.topology import DeviceType
from ir.core.types import DType, TensorType
from passes.costs.op_time import gradient_seconds, least_seconds, op_seconds
from passes.costs.products import BLOCKS, Product, product_of, product_seconds

CHIP = DeviceType(
    "chip",
    "gpu",
    (("f16", 1e14),),
    1e12,
    overhead=2e-6,
    efficiency=(("matmul", 0.8), ("memory", 0.5)),
    units=100,
    unit_bandwidth=5e12,
    store_bandwidth=4e12,
    step=5e-8,
    split=2e-6,
    balance=0.5,
)
SIZES = st.integers(1, 5000)


def product(batch: int, m: int, n: int, k: int) -> Product:
    return Product(batch, m, n, k, 2 * batch * (m * k + k * n + m * n), 2)


def matmul(*shape: int, k: int, weight: int = 1) -> Op:
    elements = 1
    for dim in shape:
        elements *= dim
    cost = Cost(2 * elements * k, 10**6, 2 * elements, weight, 2 * elements * k, 2 * elements * k, 0, "matmul")
    return Op("onnx.MatMul", ("%a", "%b"), (Value("%y", TensorType(DType.F16, shape)),)).with_facets(cost)


@given(st.integers(1, 40), SIZES, SIZES, SIZES, st.floats(1.0, 4.0))
def test_no_product_is_quicker_than_arithmetic_and_memory(batch: int, m: int, n: int, k: int, more: float) -> None:
    one = product(batch, m, n, k)
    seconds = product_seconds(one, CHIP, 8e13)
    assert seconds >= 2 * batch * m * n * k / 8e13 * (1 - 1e-9)
    assert seconds >= one.bytes / 0.5e12 * (1 - 1e-9)
    assert product_seconds(one, CHIP, 8e13 * more) <= seconds * (1 + 1e-12)
    assert product_seconds(one, replace(CHIP, unit_bandwidth=5e12 * more), 8e13) <= seconds * (1 + 1e-12)
    assert product_seconds(one, replace(CHIP, memory_bandwidth=1e12 * more), 8e13) <= seconds * (1 + 1e-12)


def test_tiles_that_do_not_fill_the_units_take_as_long_as_those_that_do() -> None:
    """10 x 10 tiles of 256 x 256 on 100 units, and one more row of the result."""
    full, one_more, half = (product_seconds(product(1, m, 2560, 4096), CHIP, 8e13) for m in (2560, 2561, 1280))
    assert one_more > full > half > 0.45 * full


@pytest.mark.parametrize(
    ("shape", "weight", "expected"),
    [
        ((8, 128, 768), 1, (1, 1024, 768)),  # rows of all samples meet one matrix of weights
        ((8, 12, 128, 64), 0, (96, 128, 64)),
        ((5,), 1, (1, 1, 5)),
    ],
)
def test_the_sizes_of_a_product_are_those_of_its_result(
    shape: tuple[int, ...], weight: int, expected: tuple[int, int, int]
) -> None:
    op = matmul(*shape, k=32, weight=weight)
    cost = op.facet(Cost)
    assert cost is not None
    found = product_of(op, cost)
    assert found is not None
    assert (found.batch, found.m, found.n, found.k, found.width) == (*expected, 32, 2)
    assert [(one.m, one.n, one.k) for one in found.gradients] == [
        (expected[1], 32, expected[2]),
        (32, expected[2], expected[1]),
    ]


def test_packed_weights_whose_rows_are_rounded_are_a_product_at_the_rate_of_floats() -> None:
    op = matmul(8, 1, 768, k=32, weight=1)
    cost = op.facet(Cost)
    assert cost is not None
    blocks = replace(cost, kind=f"{cost.kind}{BLOCKS}")
    assert product_of(op, blocks) == product_of(op, cost)
    assert op_seconds(op.with_facets(blocks), CHIP) == op_seconds(op, CHIP)


def test_weights_come_from_memory_though_they_would_fit_the_cache() -> None:
    """2 MB of weights and 100 kB of activations, of a product with little to compute."""
    cached = replace(CHIP, cache=10**7, cache_bandwidth=4e12)
    warm = Product(1, 16, 1024, 1024, 2_100_000, 2)
    cold = replace(warm, cold=2_000_000)
    arithmetic = product_seconds(replace(warm, bytes=0), cached, 8e13) - cached.overhead
    moved = 2_000_000 / 0.5e12 + 100_000 / 4e12
    expected = (arithmetic**4 + moved**4) ** 0.25 + cached.overhead
    assert product_seconds(cold, cached, 8e13) == pytest.approx(expected)
    assert product_seconds(warm, cached, 8e13) < 0.7 * expected
    op = matmul(16, 1024, k=1024, weight=2_000_000)
    cost = op.facet(Cost)
    assert cost is not None
    found = product_of(op, cost)
    assert found is not None
    assert found.cold == 2_000_000


def test_gradients_are_two_products_and_one_where_one_is_wanted() -> None:
    op = matmul(2048, 2048, k=2048)
    forward, both = op_seconds(op, CHIP), gradient_seconds(op, CHIP, 4 * 2048**3)
    assert both == pytest.approx(2 * forward)
    assert gradient_seconds(op, CHIP, 2 * 2048**3) == pytest.approx(forward)
    assert gradient_seconds(op, CHIP, 0) == 0.0


@given(st.integers(1, 4), st.integers(1, 64), st.integers(1, 64), st.integers(1, 8))
def test_parts_take_together_at_least_what_the_bound_says(cut: int, rows: int, columns: int, depth: int) -> None:
    whole = matmul(64 * rows * cut, 32 * columns, k=64 * depth)
    cost = whole.facet(Cost)
    assert cost is not None
    here = replace(cost, flops=cost.flops // cut, read=cost.read // cut, write=cost.write // cut)
    part = matmul(64 * rows, 32 * columns, k=64 * depth).with_facets(here)
    cached = replace(CHIP, cache=10**7, cache_bandwidth=4e12)
    for type_ in (CHIP, cached):
        assert (op_seconds(part, type_) - type_.overhead) * cut >= least_seconds(whole, type_) * (1 - 1e-6)
        gradients = 2 * cost.flops
        both = gradient_seconds(part, type_, gradients // cut) - 2 * type_.overhead
        assert both * cut >= least_seconds(whole, type_, gradients) * (1 - 1e-6)


def test_a_type_without_units_costs_what_it_did() -> None:
    plain = replace(CHIP, units=0, efficiency=(("matmul", 0.8),))
    op = matmul(256, 256, k=256)
    assert op_seconds(op, plain) == max(2 * 256**3 / 8e13, (10**6 + 2 * 256 * 256) / 1e12) + 2e-6
