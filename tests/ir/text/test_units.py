"""Numbers for people: three digits, the right unit, and nothing odd at the edges of a unit."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnc.report import bytes_text, count_text, percent_text, ratio_text, seconds_text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (1e-9, "1.00 ns"),
        (3.4e-7, "340 ns"),
        (999.6e-6, "1.00 ms"),
        (0.0123456, "12.3 ms"),
        (0.9996, "1.00 s"),
        (123.4, "123 s"),
        (math.inf, "inf"),
    ],
)
def test_seconds(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.50 KiB"), (1048575, "1.00 MiB"), (3 << 40, "3 TiB")],
)
def test_bytes(size: int, text: str) -> None:
    assert bytes_text(size) == text


def test_shares_and_ratios() -> None:
    assert [percent_text(x) for x in (0.0, 1e-5, 0.123, 1.0, math.inf)] == ["0.0 %", "< 0.1 %", "12.3 %", "100.0 %", "inf"]
    assert percent_text(-1.1e-16) == "0.0 %", "a rounding error has no sign"
    assert ratio_text(1.857) == "1.86x"
    assert count_text(1_240_000_000) == "1.24 G"


@given(st.floats(min_value=1e-9, max_value=1e6))
def test_seconds_text_is_within_one_percent(seconds: float) -> None:
    """What a person reads is the number, whatever unit was chosen."""
    number, unit = seconds_text(seconds).split()
    scale = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}[unit]
    assert float(number) * scale == pytest.approx(seconds, rel=0.01)


@given(st.integers(min_value=0, max_value=1 << 50))
def test_bytes_text_never_shows_more_than_four_digits(size: int) -> None:
    assert re.fullmatch(r"\d{1,4}(\.\d{1,2})? (B|KiB|MiB|GiB|TiB|PiB)", bytes_text(size))
