"""Random functions under random decisions: members compute what the entry does, and collectives cost what was charged."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ir.module import Module
from passes.shard.written import Staged
from passes.spmd import count
from tests.passes.spmd.graphs import random_module
from tests.passes.spmd.planning import check_runs, lowered, random_plan

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
