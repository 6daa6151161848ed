"""Quantities of topology files: numbers with units, read and written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnc.machines.topology.quantities import Quantity, parse_memory, parse_quantity, quantity_text


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("80 GiB", Quantity.MEMORY, 80 * 2**30),
        ("80GB", Quantity.MEMORY, 80e9),
        ("1.2 TB/s", Quantity.BANDWIDTH, 1.2e12),
        ("25 Gbit/s", Quantity.BANDWIDTH, 3.125e9),
        ("400 Gbps", Quantity.BANDWIDTH, 50e9),
        ("1 Gibit/s", Quantity.BANDWIDTH, 2**30 / 8),
        ("5 us", Quantity.TIME, 5e-6),
        ("5 µs", Quantity.TIME, 5e-6),
        (".5 ms", Quantity.TIME, 5e-4),
        ("0", Quantity.TIME, 0.0),
        (0, Quantity.TIME, 0.0),
        ("312 TFLOP/s", Quantity.RATE, 312e12),
        ("624 TOP/s", Quantity.RATE, 624e12),
        ("1e3 GFLOPS", Quantity.RATE, 1e12),
    ],
)
def test_quantities(text: object, kind: Quantity, value: float) -> None:
    assert parse_quantity(text, kind) == value


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("80 GB/s", Quantity.MEMORY, "found a bandwidth, '80 GB/s', expected an amount of memory"),
        ("80 Gb", Quantity.MEMORY, "write 'Gbit' or 'GB'"),
        ("80 gib", Quantity.MEMORY, "did you mean 'GiB'?"),
        ("80", Quantity.MEMORY, "without a unit"),
        (80, Quantity.MEMORY, "the number 80 without a unit"),
        (True, Quantity.MEMORY, "found the number True"),
        ("-1 B", Quantity.MEMORY, "not negative"),
        ("nan GB", Quantity.MEMORY, "found 'nan GB'"),
        ("1e999 GB/s", Quantity.BANDWIDTH, "too large"),
        ("5 m", Quantity.TIME, "unknown unit 'm'"),
        ("5 TB/s", Quantity.RATE, "found a bandwidth"),
        ([], Quantity.RATE, "found []"),
    ],
)
def test_wrong_quantities(text: object, kind: Quantity, words: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        parse_quantity(text, kind)
    assert words in str(caught.value)


@given(st.floats(min_value=0, allow_nan=False, allow_infinity=False), st.sampled_from(list(Quantity)))
def test_quantities_round_trip(value: float, kind: Quantity) -> None:
    assert parse_quantity(quantity_text(value, kind), kind) == value


@given(st.integers(0, 1 << 90))
def test_memory_round_trips_to_the_byte(size: int) -> None:
    assert parse_memory(quantity_text(size, Quantity.MEMORY)) == size
