"""Stages against the unsplit model: whole compiles of small models, then builds with one fault each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from dnnc.build.build import Build
from dnnc.check.check import CheckOptions, check_build
from dnnc.check.verdict import CheckReport
from dnnc.compile.driver import CompileOptions, compile_model
from dnnc.engines.onnxruntime import RuntimeFailure, run_build
from dnnc.onnx.elements import user_dtype
from ir.core.diagnostics import CheckFailed, ExitCode, InvalidInput
from tests.dnnc.sealing import refresh

SHARED = Path(__file__).resolve().parents[4] / "shared" / "models"
DIMS = {
    "bert": {"s72": 2, "s53": 16, "s43": 16},
    "gpt2": {"s72": 2, "s70": 16},
    "llama": {"s72": 2, "s70": 16},
    "resnet": {"s99": 2},
    "vit": {"s99": 2},
}
HEADER = '<ir_version: 10, opset_import: ["" : 20]>\n'
CHAIN = """g (float[4,8] x) => (float[4,8] y) <float[8,8] w1, float[8,8] w2, float[8,8] w3> {
    a = MatMul(x, w1)  b = Relu(a)  c = MatMul(b, w2)  d = Tanh(c)  e = MatMul(d, w3)  y = Add(e, b) }"""


def save(folder: Path, text: str, **weights: np.ndarray) -> Path:
    model = onnx.parser.parse_model(HEADER + text)
    for tensor in list(model.graph.initializer):
        if tensor.name in weights:
            model.graph.initializer.remove(tensor)
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in weights.items())
    path = folder / "model.onnx"
    onnx.save(model, str(path))
    return path


def weights(*names: str, seed: int = 0) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {name: generator.standard_normal((8, 8)).astype(np.float32) for name in names}


def compiled(model: Path | str, out: Path, stages: int, **options: object) -> Build:
    compile_model(CompileOptions(str(model), f"preset:cpu-{stages}", out, stages=stages, **options))  # type: ignore[arg-type]
    return Build.open(out)


def chain(folder: Path, stages: int = 3) -> Build:
    text = CHAIN.replace(" <float[8,8] w1, float[8,8] w2, float[8,8] w3>", "")
    return compiled(save(folder, text, **weights("w1", "w2", "w3")), folder / "build", stages)


def worst(report: CheckReport) -> float:
    return max(max(c.alone or 0.0, c.chained or 0.0) for c in report.comparisons)


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_a_model_and_its_stages_agree(tmp_path: Path, stages: int) -> None:
    report = check_build(chain(tmp_path, stages), CheckOptions(samples=2))
    assert report.passed
    assert report.error() is None
    assert report.original
    assert {c.stage for c in report.comparisons} == set(range(stages))
    assert [c.tensor for c in report.comparisons if c.kind == "output"] == ["y"]
    assert all(c.verdict == "ok" and c.alone is not None and c.chained is not None for c in report.comparisons)
    assert report.to_json()["first_diverging_stage"] is None


@pytest.mark.parametrize(
    ("name", "stages"),
    [pytest.param("bert", 2, marks=pytest.mark.slow), pytest.param("gpt2", 3, marks=pytest.mark.slow), ("resnet", 4)],
)
def test_shared_models(tmp_path: Path, name: str, stages: int) -> None:
    path = SHARED / f"{name}.onnx"
    if not path.is_file():
        pytest.skip("the shared models are not beside the repository")
    report = check_build(compiled(path, tmp_path / "build", stages, dims=DIMS[name]))
    assert report.passed, report.error()
    assert report.original
    assert {c.stage for c in report.comparisons} == set(range(stages))
    assert worst(report) < 1e-5


@pytest.mark.parametrize(
    "spec",
    [
        "zoo:mlp",
        "zoo:bert-base,layers=2,hidden=64,seq=16",
        pytest.param("zoo:gpt2,layers=2,hidden=64,seq=16", marks=pytest.mark.slow),
    ],
)
def test_zoo_models_are_made_again(tmp_path: Path, spec: str) -> None:
    report = check_build(compiled(spec, tmp_path / "build", 2))
    assert report.passed, report.error()
    assert report.reference == f"the model {spec} (made again)"


def break_stage(build: Build, stage: int) -> Build:
    """The build with a stage that sends the sine of its first output."""
    name_of_model = build.stages[stage].model
    assert name_of_model
    path = build.folder / name_of_model
    model = onnx.load(str(path), load_external_data=False)
    name = model.graph.output[0].name
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [f"{n}_right" if n == name else n for n in names]
    model.graph.node.append(onnx.helper.make_node("Sin", [f"{name}_right"], [name]))
    path.write_bytes(model.SerializeToString())
    return Build.open(refresh(build.folder, name_of_model))


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_the_first_wrong_stage_is_named(tmp_path: Path, stage: int) -> None:
    build = chain(tmp_path)
    build = break_stage(build, stage)
    report = check_build(build)
    error = report.error()
    assert isinstance(error, CheckFailed)
    assert error.exit_code is ExitCode.CHECK_FAILED
    assert error.diagnostics[0].where == f"stage {stage} on {build.stages[stage].device}"
    assert f"stage {stage} is the first that diverges" in str(error)
    assert "on the inputs that the unsplit model gives it" in str(error)
    assert report.to_json()["first_diverging_stage"] == stage
    wrong = {c.stage for c in report.comparisons if c.alone is not None and c.alone > c.allowed}
    assert wrong == {stage}  # later stages are right on right inputs, though the chain carries the error on
    assert all(c.chained is not None and c.chained > c.allowed for c in report.comparisons if c.stage == 2)


def test_without_the_original(tmp_path: Path) -> None:
    build = chain(tmp_path)
    (tmp_path / "model.onnx").unlink()
    report = check_build(build)
    assert report.passed
    assert not report.original
    assert report.reference.startswith("annotated.onnx")
    assert any("made from the build's own weights" in note and "is gone" in note for note in report.notes)


def test_a_stage_that_cannot_run(tmp_path: Path) -> None:
    build = chain(tmp_path)
    (build.folder / "stages/stage1.onnx").write_bytes(b"\x08\x0a\x3a\x04\x0a\x02\x08\x01")
    build = Build.open(refresh(build.folder, "stages/stage1.onnx"))
    with pytest.raises(RuntimeFailure, match=r"stage 1 on .*: error\[E1210\]: the stage does not run") as caught:
        check_build(build)
    assert caught.value.exit_code is ExitCode.INVALID_INPUT  # onnxruntime refuses it, as it does in a run


@pytest.mark.parametrize(
    ("error", "code", "hint"),
    [
        (MemoryError(), ExitCode.INVALID_INPUT, "no more memory"),
        (OSError(24, "Too many open files"), ExitCode.INVALID_INPUT, "ulimit -n"),
        (KeyError("x"), ExitCode.INTERNAL, ""),
    ],
)
def test_a_stage_that_the_machine_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, code: ExitCode, hint: str
) -> None:
    build = chain(tmp_path)

    def fails(self: object, *arguments: object) -> None:
        raise error

    monkeypatch.setattr("dnnc.check.check._State._run_model", fails)
    with pytest.raises(RuntimeFailure, match=r"stage 0 on .*: error\[E1210\]: the stage does not run") as caught:
        check_build(build)
    assert caught.value.exit_code is code
    assert hint in caught.value.diagnostics[0].hint


@pytest.mark.parametrize(
    ("dtype", "node", "lacks"),
    [
        ("bfloat16", "Sub(x, x)", r"onnxruntime has no CPU kernel for Sub \(version 14\)"),
        ("float", "acme.Foo(x)", r"onnxruntime does not know the operator acme\.Foo"),
    ],
)
def test_what_onnxruntime_does_not_take(tmp_path: Path, dtype: str, node: str, lacks: str) -> None:
    """It is planned all the same; running and checking it say what is missing, as a fault of the input."""
    text = f"g ({dtype}[4,8] x) => ({dtype}[4,8] y) {{ y = {node} }}"
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(HEADER.replace("]", ', "acme": 1]', 1) + text), str(path))
    build = compiled(path, tmp_path / "build", 1, load_test=False)
    with pytest.raises(InvalidInput, match="nothing to compare: " + lacks):
        check_build(build)
    with pytest.raises(InvalidInput, match=r"stage 0 on cpu0: error\[E0625\]: its model cannot be run: " + lacks):
        run_build(build, {"x": np.zeros((4, 8), user_dtype(dtype if dtype != "float" else "float32"))})


def test_nodes_of_one_name(tmp_path: Path) -> None:
    """ONNX allows them, onnxruntime does not: neither in the unsplit model nor in a stage."""
    path = save(tmp_path, "g (float[4,8] x) => (float[4,8] y) { a = Tanh(x)  b = Neg(a)  y = Abs(b) }")
    model = onnx.load(str(path))
    for node in model.graph.node:
        node.name = "same"
    onnx.save(model, str(path))
    for stages in (1, 2):
        report = check_build(compiled(path, tmp_path / f"build{stages}", stages))
        assert report.passed
        assert report.original


def test_random_inputs_that_the_model_does_not_accept(tmp_path: Path) -> None:
    """Nobody could guess the shape; the message says that inputs can be given."""
    path = save(tmp_path, "g (float[4,4] x, int64[2] s) => (float[n,m] y) { y = Reshape(x, s) }")
    build = compiled(path, tmp_path / "build", 1)
    with pytest.raises(InvalidInput, match="--inputs"):
        check_build(build)
    np.savez(tmp_path / "x.npz", x=np.ones((4, 4), np.float32), s=np.array([2, 8]))
    assert check_build(build, CheckOptions(inputs=tmp_path / "x.npz")).passed
    np.savez(tmp_path / "x.npz", x=np.ones((4, 4), np.float32), s=np.array([3, 8]))
    with pytest.raises(InvalidInput, match="E1206") as raised:
        check_build(build, CheckOptions(inputs=tmp_path / "x.npz"))
    assert "random" not in raised.value.diagnostics[0].hint


def test_given_inputs(tmp_path: Path) -> None:
    build = chain(tmp_path)
    np.savez(tmp_path / "x.npz", x=np.ones((3, 4, 8), np.float32))
    report = check_build(build, CheckOptions(inputs=tmp_path / "x.npz"))
    assert report.passed
    assert (report.samples, report.random_inputs) == (3, False)
    np.savez(tmp_path / "bad.npz", x=np.ones((4, 9), np.float32))
    with pytest.raises(InvalidInput, match="shape 4 x 9"):
        check_build(build, CheckOptions(inputs=tmp_path / "bad.npz"))


def test_random_ops_are_named_and_left_out(tmp_path: Path) -> None:
    text = """g (float[4,8] x) => (float[4,8] y, float[4,8] z) {
        a = Tanh(x)  r = RandomNormalLike(a)  b = Add(a, r)  y = Relu(b)  c = Neg(a)  z = Abs(c) }"""
    report = check_build(compiled(save(tmp_path, text), tmp_path / "build", 2))
    assert report.passed
    assert any("RandomNormalLike" in text for text in report.random)
    verdicts = {c.tensor: c.verdict for c in report.comparisons}
    assert verdicts["y"] == "random"
    assert verdicts["z"] == "ok"


def test_quantised_and_exact_values(tmp_path: Path) -> None:
    text = """g (float[4,8] x) => (uint8[4,8] q, int64[4,1] top, float[4,8] y) <float s = {0.05}, uint8 z = {128}> {
        a = MatMul(x, w1)  q = QuantizeLinear(a, s, z)  d = DequantizeLinear(q, s, z)  y = MatMul(d, w2)
        top = ArgMax <axis = 1> (a) }"""
    report = check_build(compiled(save(tmp_path, text, **weights("w1", "w2")), tmp_path / "build", 2))
    allowed = {c.tensor: c.allowed for c in report.comparisons if c.kind == "output"}
    assert report.passed
    assert allowed["q"] == 1
    assert allowed["top"] == 0
    assert allowed["y"] == pytest.approx(1 / 255)


@pytest.mark.parametrize(("name", "allowed"), [("float16", 1e-3), ("bfloat16", 1e-2)])
def test_half_precision(tmp_path: Path, name: str, allowed: float) -> None:
    number = {"float16": 10, "bfloat16": 16}[name]
    text = f"""g ({name}[4,8] x) => ({name}[4,8] y) {{
        f = Cast <to = 1> (x)  a = MatMul(f, w1)  h = Cast <to = {number}> (a)  k = Cast <to = 1> (h)
        b = MatMul(k, w2)  t = Tanh(b)  y = Cast <to = {number}> (t) }}"""
    report = check_build(compiled(save(tmp_path, text, **weights("w1", "w2")), tmp_path / "build", 2))
    assert report.passed, report.error()
    assert {c.allowed for c in report.comparisons if c.kind == "output"} == {allowed}


def test_a_build_without_weights(tmp_path: Path) -> None:
    path = save(tmp_path, CHAIN.replace(" <float[8,8] w1, float[8,8] w2, float[8,8] w3>", ""), **weights("w1", "w2", "w3"))
    with pytest.raises(InvalidInput, match="without weights"):
        check_build(compiled(path, tmp_path / "build", 2, weights="none"))
