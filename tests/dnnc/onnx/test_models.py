"""The main job on real models: compile and check at 1, 2, 3 and 4 stages, not each model at each number.

Three families: shared exports (skipped where that folder is absent), the ``onnx`` package's light models with random weights
(as they come, every weight is one constant, and so is every output: they would prove nothing), and small zoo configurations.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dnnc.check.check import CheckOptions, check_build
from dnnc.check.verdict import CheckReport
from dnnc.compile.driver import CompileOptions, compile_model
from tests.dnnc.engines.onnxruntime.light_models import NAMES, randomised

SHARED_DIMS = {
    "bert": {"s72": 2, "s53": 16, "s43": 16},
    "gpt2": {"s72": 2, "s70": 16},
    "llama": {"s72": 2, "s70": 16},
    "resnet": {"s99": 2},
    "vit": {"s99": 2},
}


def compile_and_check(model: str, stages: int, out: Path, dims: dict[str, int] | None = None) -> CheckReport:
    """Compiles to ``stages`` of one local worker each and compares every cut and output with the unsplit model."""
    options = CompileOptions(
        model, "preset:cpu-4", out, dims=dims or {}, stages=stages, replicas=1, mesh="none", time_limit=5.0
    )
    result = compile_model(options)
    assert len(result.plan.stages) == stages
    assert 0 < result.plan.bound <= result.plan.value * (1 + 1e-9)
    report = check_build(out, CheckOptions(samples=1))
    assert report.passed, report.error()
    assert report.original, "the check compared with the annotated copy, not with the model that was compiled"
    assert any(comparison.kind == "output" for comparison in report.comparisons)
    assert {comparison.kind for comparison in report.comparisons} >= ({"cut"} if stages > 1 else set())
    return report


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "stages"),
    [("bert", 3), ("gpt2", 1), ("llama", 3), ("resnet", 4), ("vit", 4)],
)
def test_shared_model(name: str, stages: int, shared_dir: Path, tmp_path: Path) -> None:
    """Exports of real architectures run split as they run whole."""
    compile_and_check(str(shared_dir / "models" / f"{name}.onnx"), stages, tmp_path / "build", SHARED_DIMS[name])


@pytest.mark.parametrize(
    ("spec", "stages"),
    [
        ("zoo:mlp", 2),
        pytest.param("zoo:resnet50,width=8,image=32,classes=10", 3, marks=pytest.mark.slow),
        ("zoo:bert-base,layers=2,hidden=32,heads=2,seq=8,vocab=50", 4),
        ("zoo:gpt2,layers=2,hidden=32,heads=2,seq=8,vocab=50", 2),
    ],
)
def test_zoo_quick(spec: str, stages: int, tmp_path: Path) -> None:
    """One split of each zoo family, small."""
    compile_and_check(spec, stages, tmp_path / "build")


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec",
    [
        "zoo:mlp",
        "zoo:resnet50,image=32,classes=10",
        "zoo:bert-base,layers=2,hidden=32,heads=2,seq=8,vocab=50",
        "zoo:gpt2,layers=2,hidden=32,heads=2,seq=8,vocab=50",
    ],
)
def test_zoo_in_half_precision(spec: str, tmp_path: Path) -> None:
    """Every family in f16: onnxruntime has no bf16 kernels on the CPU for most operators."""
    compile_and_check(f"{spec},dtype=f16", 3, tmp_path / "build")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_light_model(name: str, tmp_path: Path) -> None:
    """Published convolutional networks, IR version 3, opset 9: a first, a middle and a last stage."""
    compile_and_check(str(randomised(name, tmp_path / "model.onnx")), 3, tmp_path / "build")
