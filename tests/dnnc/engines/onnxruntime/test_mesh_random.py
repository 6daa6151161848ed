"""Random functions under random decisions, written as builds: their members check, and run as processes.

Every kind of chain of collectives, terms, uneven parts, stages on meshes of equal and unequal shape and on single devices,
results that are arguments or weights.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnnc.build.build import Build
from dnnc.check.check import check_build
from dnnc.engines.onnxruntime import Pipeline
from dnnc.engines.onnxruntime.write import write_build
from ir.core.module import Module
from passes.programs.schedule import SchedulePass
from tests.passes.meshes.graphs import random_module
from tests.passes.meshes.members import localized
from tests.passes.meshes.planning import inputs_of, lowered, random_plan, through

SHAPES: list[tuple[int, ...]] = [(2,), (3,), (2, 2), (4,)]


def written(out: Path, seed: int, ops: int, shapes: list[tuple[int, ...]], weights: str) -> tuple[Module, Build]:
    uneven = any(size == 3 for sizes in shapes for size in sizes)
    module = random_module(seed, ops, uneven=uneven)
    decided, _ = random_plan(module, shapes, np.random.default_rng(seed))
    scheduled = through(decided, SchedulePass())
    write_build(localized(lowered(scheduled)), out, "", out / "build", weights=weights)
    return module, Build.open(out / "build")


def small(sizes: list[tuple[int, ...]]) -> bool:
    return sum(map(math.prod, sizes)) <= 6


@pytest.mark.slow
@settings(deadline=None, max_examples=10)
@given(
    st.integers(0, 10**6),
    st.integers(3, 12),
    st.lists(st.sampled_from([*SHAPES, (1,)]), min_size=1, max_size=2).filter(small),
    st.sampled_from(["shared", "per-stage"]),
)
def test_builds_check(seed: int, ops: int, shapes: list[tuple[int, ...]], weights: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        report = check_build(written(Path(folder), seed, ops, shapes, weights)[1])
        assert report.passed, report.error()


def same(left: np.ndarray, right: np.ndarray) -> bool:
    if left.dtype.kind != "f":
        return bool((left == right).all())
    scale = float(np.abs(left[np.isfinite(left)]).max(initial=1e-6))
    return bool(np.allclose(left, right, rtol=1e-3, atol=2e-4 * scale, equal_nan=True))


def runs(folder: Path, seed: int, ops: int, shapes: list[tuple[int, ...]]) -> None:
    """Processes give what the members give one after the other in a check: the unsplit model's outputs."""
    from tests.passes.running import run

    module, build = written(folder, seed, ops, shapes, "shared")
    inputs = [inputs_of(module, number) for number in range(3)]
    with Pipeline(build) as pipeline:
        found = pipeline.run(inputs).outputs
    for given_, outputs in zip(inputs, found, strict=True):
        expected = run(module, given_, folder)
        assert outputs.keys() == expected.keys()
        assert all(same(expected[name], outputs[name]) for name in expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "ops", "shapes"),
    [(1, 10, [(2,)]), (2, 12, [(2, 2)]), (3, 12, [(2,), (3,)]), (4, 12, [(2,), (1,)]), (5, 12, [(1,), (2,), (2,)])],
)
def test_builds_run(tmp_path: Path, seed: int, ops: int, shapes: list[tuple[int, ...]]) -> None:
    runs(tmp_path, seed, ops, shapes)


@pytest.mark.slow
@settings(deadline=None, max_examples=12)
@given(
    st.integers(0, 10**6),
    st.integers(3, 14),
    st.lists(st.sampled_from([*SHAPES, (1,)]), min_size=1, max_size=3).filter(small),
)
def test_any_build_runs(seed: int, ops: int, shapes: list[tuple[int, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        runs(Path(folder), seed, ops, shapes)
