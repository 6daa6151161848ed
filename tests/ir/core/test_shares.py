"""How ranges are cut by shares, against a plain account of the elements dealt one by one."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ir
from ir.core.shares import Shares, cut, equal, foremost, hindmost, largest, nested_cut, none_empty, proportional

shares_of = st.lists(st.integers(1, 6), min_size=1, max_size=5).map(tuple)


def dealt(length: int, shares: Shares) -> list[int]:
    """Each element to the member that is done with it first, then to the smaller share, then to the first."""
    held = [0] * len(shares)
    for _ in range(length):
        held[min(range(len(shares)), key=lambda i: (Fraction(held[i] + 1, shares[i]), shares[i], i))] += 1
    return held


@given(st.integers(0, 60), shares_of)
def test_parts_are_those_dealt_one_by_one(length: int, shares: Shares) -> None:
    parts = [cut(length, shares, part) for part in range(len(shares))]
    assert [size for _, size in parts] == dealt(length, shares)
    assert [start for start, _ in parts] == [sum(size for _, size in parts[:i]) for i in range(len(parts))]
    assert sum(size for _, size in parts) == length


@given(st.integers(0, 1000), st.integers(1, 40))
def test_equal_shares_cut_balanced_ranges(length: int, count: int) -> None:
    least, more = divmod(length, count)
    for part in range(count):
        assert cut(length, equal(count), part) == (part * least + min(part, more), least + (part < more))
        assert cut(length, (7,) * count, part)[1] in (least, least + 1)


@given(st.integers(1, 9), shares_of)
def test_the_largest_load_is_least(length: int, shares: Shares) -> None:
    load = max(Fraction(cut(length, shares, i)[1], share) for i, share in enumerate(shares))
    if len(shares) <= 3:
        ways = (way for way in product(range(length + 1), repeat=len(shares)) if sum(way) == length)
        assert load == min(max(Fraction(size, share) for size, share in zip(way, shares, strict=True)) for way in ways)


@given(st.integers(0, 80), st.lists(shares_of, min_size=1, max_size=2))
def test_what_holds_of_all_members(length: int, axes: list[Shares]) -> None:
    """The largest and the smallest part, exact proportions, and parts that grow with the range."""
    places = list(product(*(range(len(shares)) for shares in axes)))
    sizes = [nested_cut(length, zip(axes, place, strict=True))[1] for place in places]
    assert largest(length, axes) == max(sizes)
    assert none_empty(length, axes) == (min(sizes) > 0)
    whole = [Fraction(math.prod(s[p] for s, p in zip(axes, place, strict=True))) for place in places]
    exact = [length * one / sum(whole) for one in whole]
    if proportional(length, axes):
        assert sizes == exact
    shares = axes[0]
    for part in range(len(shares)):
        mine = cut(length, shares, part)[1]
        assert cut(length, shares, hindmost(shares))[1] <= mine <= cut(length, shares, foremost(shares))[1]
        assert mine <= cut(length + 1, shares, part)[1]


MESH = """module @m {{
  topology @top {{
    type cpu {{rates = {{f32 = 100.0}}}}
    host h
    device a {{type = cpu, host = h}}
    device b {{type = cpu, host = h}}
    device c {{type = cpu, host = h}}
    device d {{type = cpu, host = h}}
    link l {{ends = [a, b, c, d], bandwidth = 1.0}}
  }}
  mesh @mesh [{axes}] on [a, b, c, d]
}}
"""


def test_shares_stand_where_the_size_does() -> None:
    module = ir.load_module(MESH.format(axes="x = [3, 1], y = 2"))
    (mesh,) = module.of_type(ir.Mesh)
    assert (mesh.axes, mesh.shares, mesh.cuts) == ((("x", 2), ("y", 2)), ((3, 1), (1, 1)), ((3, 1), (1, 1)))
    assert "mesh @mesh [x = [3, 1], y = 2] on" in ir.print_module(module)
    (plain,) = ir.load_module(MESH.format(axes="x = [1, 1], y = 2")).of_type(ir.Mesh)
    assert plain.shares == ()
    assert plain.cuts == ((1, 1), (1, 1))


@pytest.mark.parametrize(
    ("axes", "told"),
    [
        ("x = [6, 2], y = 2", "INV15: in @mesh: axis 'x' has shares [6, 2], which [3, 1] says too"),
        ("x = [3, 0], y = 2", "INV15: in @mesh: axis 'x' has shares [3, 0], integers from 1 to 1000 expected"),
        ("x = [3, 1001], y = 2", "INV15: in @mesh: axis 'x' has shares [3, 1001], integers from 1 to 1000 expected"),
        ("x = [3, 1, 1], y = 2", "INV15: in @mesh: its axes have 6 places for 4 devices"),
        ("x = [3, 1.5], y = 2", "axis 'x' needs its size, an integer, or the shares of its members such as [3, 1]"),
        ("x = [], y = 2", "axis 'x' needs its size, an integer, or the shares of its members such as [3, 1]"),
        ("x = 1000000000000, y = [3, 1]", "INV15: in @mesh: its axes have 2000000000000 places for 4 devices"),
    ],
)
def test_faults_of_shares(axes: str, told: str) -> None:
    with pytest.raises(ir.InvalidInput) as caught:
        ir.load_module(MESH.format(axes=axes))
    (fault,) = caught.value.diagnostics
    assert fault.message.removeprefix("INV15: ") == told.removeprefix("INV15: ") or told in str(fault)
    assert fault.span is not None
    assert fault.span.line == 11


def test_parts_cross_between_equal_shares_only() -> None:
    """INV17: two members get 3/4 and 1/4 of what was cut in halves."""
    text = MESH.format(axes="x = 4").replace("  mesh @mesh [x = 4] on [a, b, c, d]\n", CROSSING)
    assert ir.verify(ir.parse_module(text.replace("x = [3, 1]", "x = 2"))) == []
    (fault,) = ir.verify(ir.parse_module(text))
    assert "channel 0 sends tensor<8xf32, @one[S(0)]> but receives tensor<8xf32, @two[S(0)]>" in str(fault)


CROSSING = """  mesh @one [x = 2] on [a, b]
  mesh @two [x = [3, 1]] on [c, d]
  stage @stage0 index 0 on [a, b] mesh @one (%x : tensor<8xf32>) -> () {
    %y = comm.slice(%x) {axis = "x", dim = 0, mesh = @one} : tensor<8xf32, @one[S(0)]>
    comm.send(%y) {channel = 0, peer = 1}
  }
  stage @stage1 index 1 on [c, d] mesh @two () -> (%z : tensor<8xf32, @two[S(0)]>) {
    %y = comm.recv() {channel = 0, peer = 0} : tensor<8xf32, @two[S(0)]>
    %z = onnx.Relu(%y) : tensor<8xf32, @two[S(0)]> shard<"d0">
  }
"""
