"""Symbolic dimensions: binding is substitution followed by arithmetic, and never guesses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ir.core.diagnostics import UsageError
from ir.core.dims import bind, resolve, symbols


@pytest.mark.parametrize(
    ("dim", "bindings", "bound"),
    [
        ("n", {"n": 4}, 4),
        ("n", {"n": "batch"}, "batch"),
        ("n", {"m": 4}, "n"),
        (7, {"n": 4}, 7),
        (None, {"n": 4}, None),
        ("s70*s72", {"s70": 3, "s72": 5}, 15),
        ("s70*s72", {"s70": 3}, "3*s72"),
        ("Min(512, s53)", {"s53": 16}, 16),
        ("Max(a, b) // 2 + 1", {"a": 3, "b": 8}, 5),
        ("floor(n/2)", {"n": 7}, 3),
        ("-(-n // 2)", {"n": 7}, 4),
        ("n - 9", {"n": 4}, "4 - 9"),
        ("n // m", {"n": 4, "m": 0}, "4 // 0"),
        ("n/2", {"n": 5}, "5/2"),
        ("batch-size", {"batch": 2}, "batch-size"),
        ("batch-size", {"batch-size": 2}, 2),
        ("what is this?", {"what": 2}, "what is this?"),
        ("__import__('os')", {"n": 2}, "__import__('os')"),
        ("n.real", {"n": 2}, "n.real"),
    ],
)
def test_bind(dim: int | str | None, bindings: dict[str, int | str], bound: int | str | None) -> None:
    assert bind(dim, bindings) == bound


def test_symbols() -> None:
    assert symbols("Min(512, s53 + 2*s70) * s53") == ("s53", "s70")
    assert symbols("batch-size") == ("batch-size",)
    assert symbols("two words") == ("two words",)


@given(st.integers(1, 100), st.integers(1, 100), st.integers(1, 9))
def test_arithmetic_is_that_of_integers(a: int, b: int, c: int) -> None:
    assert bind("a*b + c", {"a": a, "b": b, "c": c}) == a * b + c
    assert bind("(a + b)//c", {"a": a, "b": b, "c": c}) == (a + b) // c
    assert bind(bind("a*b + c", {"b": b}), {"a": a, "c": c}) == a * b + c


def test_aliases_are_followed_to_their_end() -> None:
    assert resolve({"a": "b", "b": "c", "c": 3}, ["a", "x"]) == {"a": 3, "b": 3, "c": 3}
    assert resolve({"a": "new"}, ["a"]) == {"a": "new"}


@pytest.mark.parametrize(
    ("requested", "words"),
    [({"sq": 1}, "--dim seq=1"), ({"seq": -2}, "cannot be -2"), ({"seq": "a", "a": "seq"}, "seq -> a -> seq")],
)
def test_faults(requested: dict[str, int | str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        resolve(requested, ["seq", "batch"])


@pytest.mark.parametrize("target", [-1, 1 << 63, "2.5", "0x10", "3 * 4"])
def test_what_no_dimension_can_be(target: int | str) -> None:
    with pytest.raises(UsageError, match="dimension 'a' cannot be"):
        resolve({"a": target}, ["a"])
