"""Random functions under random decisions: members compute what the entry does, and collectives cost what was charged."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ir
from ir.module import Module
from passes.cost import CostPass
from passes.shard.written import Staged
from passes.spmd import count
from tests.passes.spmd.graphs import random_module
from tests.passes.spmd.planning import check_runs, lowered, random_plan, through

SHAPES: list[tuple[int, ...]] = [(2,), (4,), (2, 2), (4, 2)]


def check_count(module: Module, staged: Staged) -> None:
    """Of one stage: the bill's seconds, and its collectives one by one."""
    found = count(module)
    charged = [(one.kind, one.axis, one.size, one.seconds) for one in staged.bill.collectives]
    counted = [(one.kind, one.axis, one.size, one.seconds) for one in found]
    assert len(counted) == len(charged)
    for one, other in zip(sorted(counted), sorted(charged), strict=True):
        assert one[:2] == other[:2]
        assert one[2:] == pytest.approx(other[2:], rel=1e-9)
    assert math.fsum(one.seconds for one in found) == pytest.approx(staged.bill.communication, rel=1e-9)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 12), st.sampled_from(SHAPES))
def test_members_compute_what_the_entry_does(seed: int, ops: int, sizes: tuple[int, ...]) -> None:
    module = random_module(seed, ops)
    decided, (staged,) = random_plan(module, [sizes], np.random.default_rng(seed))
    check_count(check_runs(module, decided, Path(), seed), staged)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 12), st.sampled_from([(2,), (3,), (4,), (2, 2)]))
def test_uneven_shards(seed: int, ops: int, sizes: tuple[int, ...]) -> None:
    module = random_module(seed, ops, uneven=True)
    decided, (staged,) = random_plan(module, [sizes], np.random.default_rng(seed), uneven=True)
    check_count(check_runs(module, decided, Path(), seed), staged)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(3, 12), st.lists(st.sampled_from([(1,), (2,), (2, 2), (4,)]), min_size=2, max_size=3))
def test_stages(seed: int, ops: int, shapes: list[tuple[int, ...]]) -> None:
    """On meshes of equal and unequal shape, and single devices."""
    module = random_module(seed, ops)
    decided, _ = random_plan(module, shapes, np.random.default_rng(seed))
    check_runs(module, decided, Path(), seed)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 20), st.sampled_from([*SHAPES, (8,), (2, 4), (2, 2, 2)]))
def test_the_count_is_the_bill(seed: int, ops: int, sizes: tuple[int, ...]) -> None:
    module = random_module(seed, ops)
    decided, (staged,) = random_plan(module, [sizes], np.random.default_rng(seed))
    check_count(lowered(decided), staged)


ODD = """
module @m {opset.onnx = 20} {
  resource @w : tensor<64x256xf32> = random(normal, seed = 1)
  func @main(%x : tensor<8x64xf32>) -> (%n : tensor<2 x ? x i64>, %y : tensor<8x256xf32>, %c : tensor<2 x ? x i64>) {
    %h = onnx.MatMul(%x, @w) : tensor<8x256xf32>
    %y = onnx.Relu(%h) : tensor<8x256xf32>
    %n = onnx.NonZero(%y) : tensor<2 x ? x i64>
    %q = onnx.SplitToSequence(%h) {axis = 0, keepdims = 1} : seq<tensor<1x256xf32>>
    %i = onnx.Constant() {value_int = 2} : tensor<i64>
    %e = onnx.SequenceAt(%q, %i) : tensor<1x256xf32>
    %f = onnx.Relu(%e) : tensor<1x256xf32>
    %c = onnx.NonZero(%f) : tensor<2 x ? x i64>
  }
}
"""


@pytest.mark.parametrize("shapes", [[(2,)], [(2, 2)], [(2,), (2,)], [(2,), (1,)], [(1,), (4,)]])
def test_what_has_no_known_shape_is_whole(shapes: list[tuple[int, ...]]) -> None:
    """Sequences and lengths that depend on data, made by ops without a rule, within a stage and across stages."""
    module = through(ir.load_module(ODD), CostPass())
    for seed in range(3):
        check_runs(module, random_plan(module, shapes, np.random.default_rng(seed))[0], Path())
