"""Models that rounding alone changes: a check passes them, and still sees their faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from dnnc.build.build import Build
from dnnc.check.check import check_build
from dnnc.check.compare import CAP, CAP_TYPICAL, Difference
from dnnc.check.noise import FACTOR, QUIET, Noise
from dnnc.check.verdict import CheckReport, judge
from dnnc.compile.driver import CompileOptions, compile_model
from tests.dnnc.check.rounding_models import (
    chaotic,
    dynamically_quantised,
    half_with_a_float_head,
    quantised_convolutions,
)
from tests.dnnc.sealing import refresh

MESH = {"mesh": "2", "strategy": "megatron"}
PLAIN = """
version = 1
[types.core]
rates = { f32 = "120 GFLOP/s" }
memory_bandwidth = "22 GB/s"
[[devices]]
name = "cpu"
count = 8
type = "core"
[[links]]
ends = ["host", "devices of host"]
bandwidth = "2 TB/s"
"""
"""Machines on which 8 stages of the quantised model are cut at results of convolutions too, whatever the presets say."""
MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], int, dict[str, Any]]] = {
    "quantised convolutions": (quantised_convolutions, 0, {"stages": 8}),
    "16 bits with a float head": (half_with_a_float_head, 3, {"stages": 3}),
    "dynamic quantisation": (lambda: dynamically_quantised(8, gain=2.5, rows=512), 2, MESH),
    "chaotic": (lambda: chaotic(gain=3.0), 2, MESH),
    "very chaotic": (lambda: chaotic(gain=4.0), 2, MESH),
    "the best of many": (lambda: chaotic(gain=4.0, choose=True), 2, MESH),
}


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Build]:
    """Builds by the name of their model, each compiled once."""
    made: dict[str, Build] = {}

    def build(name: str) -> Build:
        if name not in made:
            folder = tmp_path_factory.mktemp("noise")
            make, devices, options = MODELS[name]
            onnx.save(make(), str(folder / "model.onnx"))
            (folder / "plain.toml").write_text(PLAIN)
            machines = f"preset:cpu-{devices}" if devices else str(folder / "plain.toml")
            compile_model(CompileOptions(str(folder / "model.onnx"), machines, folder / "build", **options))
            made[name] = Build.open(folder / "build")
        return made[name]

    return build


def by_types_alone(report: CheckReport) -> bool:
    """Whether the check would have passed if floats had the tolerance of their own type, and nothing was measured."""
    own = {"f32": 1e-5, "f16": 1e-3, "u8": 1.0}
    quantised = {c.allowed for c in report.comparisons if c.allowed == pytest.approx(1 / 255)}
    return all(
        max(c.alone or 0.0, c.chained or 0.0) <= max(own.get(c.type.strip("<>").split("x")[-1], 0.0), *quantised, 0.0)
        and c.noise == (QUIET, QUIET)
        for c in report.comparisons
    )


@pytest.mark.parametrize("name", MODELS)
def test_rounding_is_no_fault(builds: Callable[[str], Build], name: str) -> None:
    report = check_build(builds(name))
    assert report.passed, report.error()
    assert {c.verdict for c in report.comparisons} == {"ok"}
    assert not by_types_alone(report)


def mutants(build: Build) -> Iterator[tuple[str, Path, bytes]]:
    """Some models of stages or members with one fault each: a weight cut one row too far, or two operands exchanged."""
    files = [build.folder / stage.model for stage in build.stages if stage.model]
    files += [
        build.folder / segment.model for stage in build.stages for member in stage.members[:1] for segment in member.segments
    ]
    for number, path in enumerate(files):
        model = onnx.load(str(path))
        large = [tensor for tensor in model.graph.initializer if len(tensor.dims) >= 2]
        for tensor in large[number % 2 :: 3]:
            mutant = onnx.ModelProto.FromString(model.SerializeToString())
            weight = next(t for t in mutant.graph.initializer if t.name == tensor.name)
            rolled = np.ascontiguousarray(np.roll(numpy_helper.to_array(weight), 1, axis=0))
            weight.CopyFrom(numpy_helper.from_array(rolled, tensor.name))
            yield f"slice of {tensor.name} in {path.name}", path, mutant.SerializeToString()
        pairs = [(a.name, b.name) for a, b in pairwise(large) if a.dims == b.dims and a.data_type == b.data_type]
        for left, right in pairs[:1]:
            mutant = onnx.ModelProto.FromString(model.SerializeToString())
            for node in mutant.graph.node:
                node.input[:] = [right if name == left else left if name == right else name for name in node.input]
            yield f"{left} and {right} in {path.name}", path, mutant.SerializeToString()


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_faults_of_the_same_models_are_caught(builds: Callable[[str], Build], name: str) -> None:
    build = builds(name)
    missed, tried = [], 0
    for fault, path, data in list(mutants(build))[:8]:
        kept = path.read_bytes()
        path.write_bytes(data)
        refresh(build.folder, path.relative_to(build.folder).as_posix())
        report = check_build(Build.open(build.folder))
        if report.first is None:
            missed.append(fault)
        path.write_bytes(kept)
        refresh(build.folder, path.relative_to(build.folder).as_posix())
        tried += 1
    assert tried >= 3
    assert not missed


@pytest.mark.parametrize("name", ["dynamic quantisation", "the best of many"])
@pytest.mark.parametrize("which", [0, -1])
def test_a_dropped_collective_is_caught(builds: Callable[[str], Build], name: str, which: int) -> None:
    """Each member keeps its own term in the place of the sum."""
    build = builds(name)
    stage = build.stages[0]
    collectives = list(stage.collectives)
    assert collectives[which].kind == "all_reduce"
    collectives[which] = replace(collectives[which], groups=((0,), (1,)))
    report = check_build(replace(build, stages=(replace(stage, collectives=tuple(collectives)), *build.stages[1:])))
    assert report.first is not None


def test_what_only_rounding_decides_is_said_to_be_so(tmp_path: Path) -> None:
    """A result that has nothing to do with the unsplit model's, as that has nothing to do with its own."""
    onnx.save(chaotic(gain=7.0), str(tmp_path / "model.onnx"))
    compile_model(CompileOptions(str(tmp_path / "model.onnx"), "preset:cpu-2", tmp_path / "build", **MESH))  # type: ignore[arg-type]
    report = check_build(tmp_path / "build")
    assert [c.verdict for c in report.comparisons] == ["unstable"]
    assert not report.passed
    error = report.error()
    assert error is not None
    assert "nothing was compared" in str(error)
    assert "rounding alone changes it by more than a check can allow" in str(error)


def test_plain_models_have_the_tolerance_of_their_type(tmp_path: Path) -> None:
    onnx.save(chaotic(layers=2, gain=1.0), str(tmp_path / "model.onnx"))
    compile_model(CompileOptions(str(tmp_path / "model.onnx"), "preset:cpu-2", tmp_path / "build", **MESH))  # type: ignore[arg-type]
    report = check_build(tmp_path / "build")
    assert report.passed
    assert {(c.allowed, c.allowed_chained, c.noise) for c in report.comparisons} == {(1e-5, 1e-5, (QUIET, QUIET))}


@pytest.mark.parametrize(
    ("value", "typical", "floor", "verdict"),
    [
        (0.5e-5, 0.5e-5, QUIET, "ok"),
        (2e-5, 2e-5, QUIET, "diverges"),
        (2e-5, 2e-5, Noise(1e-5, 1e-5), "ok"),
        (1e-3, 1e-3, Noise(1e-5, 1e-5), "diverges"),
        (CAP, CAP, Noise(CAP / FACTOR, 1e-3), "ok"),
        (CAP * 1.01, CAP, Noise(CAP / FACTOR, CAP), "diverges"),  # the largest difference decides as long as it can
        (0.9, 0.01, Noise(0.5, 0.01), "ok"),  # a few elements flip
        (0.9, 0.9, Noise(0.5, 0.01), "diverges"),  # most are wrong
        (0.9, CAP_TYPICAL * 1.01, Noise(0.9, CAP_TYPICAL), "unstable"),
        (float("inf"), float("inf"), Noise(0.9, 1.0), "diverges"),
        (float("inf"), float("inf"), Noise(float("inf"), float("inf")), "unstable"),  # how many are found depends on rounding
    ],
)
def test_verdicts(value: float, typical: float, floor: Noise, verdict: str) -> None:
    judged = judge(Difference(value, 1e-5, typical=typical), floor)
    assert judged.verdict == verdict
    assert judged.allowed <= max(CAP, CAP_TYPICAL)
