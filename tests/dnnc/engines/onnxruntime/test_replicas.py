"""Replicated stages as real processes: each microbatch on its turn's replica, results in order, also from run to run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dnnc.build.build import Build
from dnnc.engines.onnxruntime import Pipeline, RuntimeFailure
from tests.dnnc.engines.onnxruntime.builds import make_build, scheduled
from tests.dnnc.engines.onnxruntime.test_pipeline import SPLIT, _nothing_left, floats  # noqa: F401  (a fixture)

SIZELESS = (
    "g (float[n] x) => (float[n] h, float[n] skip) { h = Neg(x)  skip = Add(x,x) }",
    "g (float[n] h) => (float[n] h2) { h2 = Exp(h) }",
    "g (float[n] h2, float[n] skip) => (float[n] y) { y = Add(h2, skip) }",
)


def replicated(build: Build, counts: tuple[int, ...]) -> Build:
    """The build with so many devices per stage."""
    stages = tuple(
        replace(stage, devices=tuple(f"{stage.device}.{i}" for i in range(count)))
        for stage, count in zip(build.stages, counts, strict=True)
    )
    return scheduled(replace(build, stages=stages))


@pytest.mark.parametrize(
    ("stages", "counts"),
    [pytest.param(SPLIT, (1, 3, 2), marks=pytest.mark.slow), (SIZELESS, (2, 1, 3))],
    ids=["fixed, 1-3-2", "sizeless, 2-1-3"],
)
def test_microbatches_take_turns(tmp_path: Path, stages: tuple[str, ...], counts: tuple[int, ...]) -> None:
    build = replicated(make_build(tmp_path, *stages), counts)
    shape = (2, 3) if stages is SPLIT else (5,)
    with Pipeline(build) as pipeline:
        assert len(pipeline.processes) == sum(counts)
        begun = 0
        for count in (7, 1, 4):
            inputs = [{"x": floats(*shape, seed=begun + i)} for i in range(count)]
            result = pipeline.run(inputs)
            for given, found in zip(inputs, result.outputs, strict=True):
                np.testing.assert_allclose(found["y"], np.exp(-given["x"]) + 2 * given["x"], rtol=1e-6)
            ran = sorted((e.stage, e.microbatch, e.device) for e in result.events if e.action == "F")
            assert ran == sorted((s, m, f"cpu{s}.{(begun + m) % counts[s]}") for s in range(len(counts)) for m in range(count))
            assert len(result.cpu) == len(result.stage_seconds) == len(counts)
            assert all(done > 0 for done in result.completed)
            begun += count


@pytest.mark.slow
def test_a_large_message_of_unknown_size_finds_its_replica(tmp_path: Path) -> None:
    """Larger than a slot's area, so it streams through several slots of one edge while other edges wait."""
    build = replicated(make_build(tmp_path, *SIZELESS), (1, 2, 1))
    inputs = [{"x": floats(1_500_000 + i, seed=i)} for i in range(5)]
    with Pipeline(build) as pipeline:
        result = pipeline.run(inputs)
    for given, found in zip(inputs, result.outputs, strict=True):
        np.testing.assert_allclose(found["y"], np.exp(-given["x"]) + 2 * given["x"], rtol=1e-6)


def test_a_replica_that_fails_is_named(tmp_path: Path) -> None:
    """Microbatch 1 is the second replica's, and its index is out of range."""
    stages = (
        "g (int64[1] i) => (int64[1] j) { j = Neg(i) }",
        "g (int64[1] j) => (float[1] y) { t = Constant <value_floats = [1.0, 2.0]> ()  y = Gather(t, j) }",
    )
    build = replicated(make_build(tmp_path, *stages), (1, 2))
    with Pipeline(build) as pipeline, pytest.raises(RuntimeFailure, match="failed at microbatch 1") as raised:
        pipeline.run([{"i": np.array([i], np.int64)} for i in (0, 7, 1)])
    assert raised.value.diagnostics[0].where == "stage 1 on cpu1.1"
