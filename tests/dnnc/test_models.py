"""The main job on real models: compile and check at 1, 2, 3 and 4 stages.

Three families: shared exports (skipped where that folder is absent), the ``onnx`` package's light models with random weights
(as they come, every weight is one constant, and so is every output: they would prove nothing), and small zoo configurations.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from dnnc.driver import CompileOptions, compile_model
from dnnc.runtime import CheckOptions, CheckReport, check_build

STAGES = (1, 2, 3, 4)
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
LIGHT_MODELS = (
    "bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet", "vgg19", "zfnet512",
)  # fmt: skip
SHARED_DIMS = {
    "bert": {"s72": 2, "s53": 16, "s43": 16},
    "gpt2": {"s72": 2, "s70": 16},
    "llama": {"s72": 2, "s70": 16},
    "resnet": {"s99": 2},
    "vit": {"s99": 2},
}


def compile_and_check(model: str, stages: int, out: Path, dims: dict[str, int] | None = None) -> CheckReport:
    """Compiles to ``stages`` local workers and compares every cut and output with the unsplit model."""
    result = compile_model(
        CompileOptions(model=model, topology="preset:cpu-4", out=out, dims=dims or {}, stages=stages, time_limit=5.0)
    )
    assert len(result.plan.stages) == stages
    assert 0 < result.plan.bound <= result.plan.value * (1 + 1e-9)
    report = check_build(out, CheckOptions(samples=1))
    assert report.passed, report.error()
    assert report.original, "the check compared with the annotated copy, not with the model that was compiled"
    assert any(comparison.kind == "output" for comparison in report.comparisons)
    assert {comparison.kind for comparison in report.comparisons} >= ({"cut"} if stages > 1 else set())
    return report


@pytest.mark.slow
@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("name", sorted(SHARED_DIMS))
def test_shared_model(name: str, stages: int, shared_dir: Path, tmp_path: Path) -> None:
    """Exports of real architectures run split as they run whole."""
    compile_and_check(str(shared_dir / "models" / f"{name}.onnx"), stages, tmp_path / "build", SHARED_DIMS[name])


@pytest.mark.parametrize(
    ("spec", "stages"),
    [
        ("zoo:mlp", 2),
        ("zoo:resnet50,image=32,classes=10", 3),
        ("zoo:bert-base,layers=2,hidden=32,heads=2,seq=8,vocab=50", 4),
        ("zoo:gpt2,layers=2,hidden=32,heads=2,seq=8,vocab=50", 2),
    ],
)
def test_zoo_quick(spec: str, stages: int, tmp_path: Path) -> None:
    """One split of each zoo family, small."""
    compile_and_check(spec, stages, tmp_path / "build")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize(
    "spec",
    [
        "zoo:mlp",
        "zoo:resnet50,image=32,classes=10",
        "zoo:bert-base,layers=2,hidden=32,heads=2,seq=8,vocab=50",
        "zoo:gpt2,layers=2,hidden=32,heads=2,seq=8,vocab=50",
    ],
)
def test_zoo(spec: str, stages: int, dtype: str, tmp_path: Path) -> None:
    """Every family, element type and number of stages."""
    compile_and_check(f"{spec},dtype={dtype}", stages, tmp_path / "build")


def randomised(name: str, folder: Path) -> Path:
    """A light model whose weights (ConstantOfShape outputs, all one constant) are random initializers of sensible scale."""
    model = onnx.load(LIGHT / f"light_{name}.onnx")
    graph = model.graph
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    rng = np.random.default_rng(len(name))
    kept, unused = [], set()
    for node in graph.node:
        if node.op_type != "ConstantOfShape":
            kept.append(node)
            continue
        shape = tuple(int(size) for size in shapes[node.input[0]])
        if len(shape) == 1:  # biases, and scale and variance of normalisations, which must stay positive
            weight = rng.uniform(0.5, 1.5, shape)
        else:
            weight = rng.normal(0, np.sqrt(2 / np.prod(shape[1:])), shape)
        graph.initializer.append(numpy_helper.from_array(weight.astype(np.float32), node.output[0]))
        graph.input.append(helper.make_tensor_value_info(node.output[0], onnx.TensorProto.FLOAT, shape))  # as IR 3 asks
        unused.add(node.input[0])
    assert len(kept) < len(graph.node)
    del graph.node[:]
    graph.node.extend(kept)
    for repeated in (graph.initializer, graph.input):
        remaining = [item for item in repeated if item.name not in unused]
        del repeated[:]
        repeated.extend(remaining)
    path = folder / f"{name}.onnx"
    onnx.save(model, path)
    return path


@pytest.fixture(scope="module")
def light_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return randomised(request.param, tmp_path_factory.mktemp("light"))


@pytest.mark.slow
@pytest.mark.parametrize("light_model", LIGHT_MODELS, indirect=True)
def test_light_model(light_model: Path, tmp_path: Path) -> None:
    """Published convolutional networks, IR version 3, opset 9."""
    for stages in STAGES:
        compile_and_check(str(light_model), stages, tmp_path / "build")
