"""Models compiled for a mesh: they check, they run as processes, and a member that is wrong is told from the others."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from dnnc.build.build import Build
from dnnc.check.check import CheckOptions, check_build
from dnnc.compile.driver import CompileOptions, compile_model
from dnnc.data.generate import random_inputs
from dnnc.engines.onnxruntime import Pipeline, RuntimeFailure
from ir.core.diagnostics import CheckFailed
from tests.dnnc.sealing import change, refresh

DIMS = {
    "bert": {"s72": 1, "s53": 16, "s43": 16},
    "gpt2": {"s72": 1, "s70": 16},
    "llama": {"s72": 1, "s70": 16},
    "resnet": {"s99": 1},
    "vit": {"s99": 1},
}


def compiled(model: str, out: Path, mesh: str, stages: int = 1, **options: Any) -> Build:
    """With one sample at a time nothing is gained by splitting the batch, so tensors are."""
    options.setdefault("time_limit", 5.0)
    count = int(np.prod([int(size) for size in mesh.split("x")])) * stages
    compile_model(
        CompileOptions(model, f"preset:cpu-{count}", out, mesh=mesh, stages=stages if stages > 1 else None, **options)
    )
    return Build.open(out)


def shared(name: str, folder: Path) -> str:
    return str(folder / "models" / f"{name}.onnx")


def runs_like_one_session(build: Build, model: str, samples: int = 3) -> None:
    """Its processes give what onnxruntime gives of the whole model, within the tolerance of a check."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    inputs = [random_inputs(build, seed=seed) for seed in range(samples)]
    with Pipeline(build) as pipeline:
        found = pipeline.run(inputs).outputs
    names = [output.name for output in session.get_outputs()]
    for given, outputs in zip(inputs, found, strict=True):
        for name, wanted in zip(names, session.run(names, given), strict=True):
            scale = float(wanted.max() - wanted.min()) or 1.0
            assert outputs[name].shape == wanted.shape
            assert float(np.abs(outputs[name] - wanted).max()) <= 1e-5 * scale


def kinds(build: Build) -> set[str]:
    return {collective.kind for stage in build.stages for collective in stage.collectives}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mesh", "options"),
    [
        ("gpt2", "2", {"strategy": "megatron"}),
        ("vit", "2x2", {}),
    ],
)
def test_shared_models(tmp_path: Path, shared_dir: Path, name: str, mesh: str, options: dict[str, Any]) -> None:
    build = compiled(shared(name, shared_dir), tmp_path / "build", mesh, dims=DIMS[name], **options)
    assert kinds(build)
    report = check_build(build)
    assert report.passed, report.error()
    assert report.original
    runs_like_one_session(build, shared(name, shared_dir))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mesh", "stages"),
    [
        ("llama", "2x2", 1),
        ("resnet", "4", 1),
        ("vit", "2x2", 2),
    ],
)
def test_every_shared_model(tmp_path: Path, shared_dir: Path, name: str, mesh: str, stages: int) -> None:
    build = compiled(shared(name, shared_dir), tmp_path / "build", mesh, stages, dims=DIMS[name])
    assert len(build.stages) == stages
    report = check_build(build, CheckOptions(samples=2))
    assert report.passed, report.error()
    assert {c.stage for c in report.comparisons} == set(range(stages))
    runs_like_one_session(build, shared(name, shared_dir))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "resnet"])
def test_unequal_parts(tmp_path: Path, shared_dir: Path, name: str) -> None:
    build = compiled(shared(name, shared_dir), tmp_path / "build", "3", dims=DIMS[name])
    report = check_build(build)
    assert report.passed, report.error()
    runs_like_one_session(build, shared(name, shared_dir))


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["shared", "per-stage"])
def test_weights_of_members(tmp_path: Path, shared_dir: Path, weights: str) -> None:
    """Either way it runs; shared, what is not contiguous lies once however many hold it; per stage each member has its own."""
    model = shared("vit", shared_dir)
    build = compiled(model, tmp_path / "build", "2x2", dims=DIMS["vit"], weights=weights, strategy="megatron")
    assert check_build(build).passed
    data = {path.name for path in (tmp_path / "build/stages").glob("*.data")}
    own = {f"stage0.member{member}.data" for member in range(4)}
    assert data == ({"weights.data", "parts.data"} if weights == "shared" else {"whole.data", *own})
    if weights == "per-stage":  # what only annotated.onnx reads is not needed to run
        (tmp_path / "build/stages/whole.data").unlink()
        change(tmp_path / "build", lambda manifest: manifest["files"].pop("stages/whole.data"))
        runs_like_one_session(Build.open(tmp_path / "build"), model, 1)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory, shared_dir: Path) -> Path:
    """A build of gpt2 on two devices, to be copied."""
    folder = tmp_path_factory.mktemp("mesh") / "build"
    compiled(shared("gpt2", shared_dir), folder, "2", dims=DIMS["gpt2"], strategy="megatron")
    return folder


@pytest.mark.slow
def test_equal_builds_for_equal_input(tmp_path: Path, shared_dir: Path, gpt2: Path) -> None:
    compiled(shared("gpt2", shared_dir), tmp_path / "two", "2", dims=DIMS["gpt2"], strategy="megatron")
    one, two = (
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in (gpt2, tmp_path / "two")
    )
    assert one == two


def spoil(build: Build, member: int, level: int) -> None:
    """Doubles the first large weight that one member's segment holds."""
    segment = next(s for s in build.stages[0].members[member].segments if s.level == level)
    path = build.folder / segment.model
    model = onnx.load_model(str(path))
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype == np.float32 and values.ndim == 2 and np.abs(values).max() < 100:
            tensor.CopyFrom(numpy_helper.from_array(values * 2, tensor.name))
            break
    onnx.save_model(model, str(path))
    refresh(build.folder, segment.model)


@pytest.mark.parametrize("member", [1])
def test_a_wrong_member_is_named(tmp_path: Path, gpt2: Path, member: int) -> None:
    """Whose result every member gets by a collective: a closer look finds where the parts first differ."""
    build = Build.open(shutil.copytree(gpt2, tmp_path / "build"))
    spoil(build, member, build.stages[0].members[member].segments[1].level)
    report = check_build(Build.open(build.folder))
    assert not report.passed
    first = report.first
    assert first is not None
    assert first.members == ((member, f"cpu{member}"),)
    assert first.origin
    error = report.error()
    assert isinstance(error, CheckFailed)
    assert error.diagnostics[0].where == f"stage 0 member {member} on cpu{member}"
    assert f"the first value that differs inside it is '{first.origin}'" in str(error)
    assert report.to_json()["comparisons"][0]["members"] == [{"member": member, "device": f"cpu{member}"}]


def test_a_member_that_does_not_run_is_named(tmp_path: Path, gpt2: Path) -> None:
    build = Build.open(shutil.copytree(gpt2, tmp_path / "build"))
    segment = build.stages[0].members[1].segments[1]
    (build.folder / segment.model).write_bytes(b"\x08\x0a\x3a\x04\x0a\x02\x08\x01")
    refresh(build.folder, segment.model)
    with pytest.raises(RuntimeFailure) as caught:
        check_build(Build.open(build.folder))
    assert caught.value.diagnostics[0].where == "stage 0 member 1 on cpu1"


def test_16_bit_floats_may_differ_more_behind_collectives(tmp_path: Path) -> None:
    """By the root of how often the stages so far rounded: each border and what is moved once, each sum twice."""
    model = "zoo:bert-base,layers=4,hidden=64,heads=4,seq=16,vocab=100,dtype=f16"
    build = compiled(model, tmp_path / "build", "2", stages=2)
    report = check_build(build)
    assert report.passed, report.error()
    own = [sum(2 if one.reduction else 1 for one in stage.collectives if one.element == 10) for stage in build.stages]
    assert any(own)
    for index, before in enumerate((0, 1 + own[0])):
        found = [c for c in report.comparisons if c.stage == index and c.type.endswith("f16>")]
        assert found
        assert {c.allowed for c in found} == {1e-3 * (1 + own[index] ** 0.5)}
        assert {c.allowed_chained for c in found} == {1e-3 * (1 + (before + own[index]) ** 0.5)}
