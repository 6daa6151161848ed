"""``dnnc check --prove``: valid builds are proven, damaged ones are not, and what is not known is told as such."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from dnnc.build.build import Build
from dnnc.check.proof import ProofReport, prove_build
from dnnc.cli import main
from dnnc.compile.driver import CompileOptions, compile_model
from tests.bench.damaged_programs import BUILDS, KINDS, branching, compiled, damaged
from tests.dnnc.engines.onnxruntime.test_mesh_random import written
from tests.dnnc.sealing import refresh


def proof(folder: Path) -> ProofReport:
    return prove_build(Build.open(folder))


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the builds of this file, each made at its first use."""
    return tmp_path_factory.mktemp("builds")


def build_of(name: str, builds: Path) -> Path:
    out = builds / name
    return out if out.exists() else compiled(name, out)


@pytest.mark.parametrize(
    "name", [name if name == "megatron" else pytest.param(name, marks=pytest.mark.slow) for name in BUILDS]
)
def test_valid_builds_are_proven(name: str, builds: Path) -> None:
    report = proof(build_of(name, builds))
    assert report.proven, report.failures
    assert report.error() is None


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 10, 17, 23])
def test_builds_of_random_decisions_are_proven(seed: int, tmp_path: Path) -> None:
    """Random functions with every kind of collective; of 23, a term of a sum leaves a stage without a collective."""
    shapes: list[tuple[int, ...]] = [(2,), (2,)] if seed == 23 else [(2, 2), (2,)]
    _, build = written(tmp_path, seed, 12, shapes, "shared")
    report = prove_build(build)
    assert report.proven, report.failures


def test_an_output_that_is_a_weight_is_proven(tmp_path: Path) -> None:
    """Its program calls it as a value, the stage as a weight: the runtime knows the name that both have."""
    relu, ones = helper.make_node("Relu", ["x"], ["y"]), helper.make_tensor("ones", TensorProto.FLOAT, [2], [1.0, 1.0])
    given, made = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
    outputs = [made, helper.make_tensor_value_info("ones", TensorProto.FLOAT, [2])]
    graph = helper.make_graph([relu], "g", [given], outputs, [ones])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), tmp_path / "m.onnx")
    compile_model(CompileOptions(str(tmp_path / "m.onnx"), "preset:cpu-2,cores=2", tmp_path / "b"))
    report = proof(tmp_path / "b")
    assert report.proven, report.failures


def test_a_stage_is_told_in_a_line(builds: Path) -> None:
    (stage,) = proof(build_of("megatron", builds)).stages
    assert str(stage) == "11 ops, 2 collectives, 8 weights: proven"


@pytest.mark.parametrize(
    "kind",
    ["other operator", "other attribute", "off by one", "swapped weights", "other bytes", "copied member"],
)
def test_damage_is_refuted(kind: str, builds: Path, tmp_path: Path) -> None:
    shutil.copytree(build_of("megatron", builds), tmp_path / "build")
    assert KINDS[kind](tmp_path / "build", random.Random(kind))
    report = proof(tmp_path / "build")
    assert report.verdict == "refuted"


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILDS)
def test_what_changes_outputs_is_not_proven(name: str, builds: Path, tmp_path: Path) -> None:
    """Each kind of damage at a place of each build."""
    build = build_of(name, builds)
    for kind in KINDS:
        folder = tmp_path / kind
        folder.mkdir()
        found = damaged(build, kind, 0, folder)
        assert found is None or not found.missed, (kind, found)
        shutil.rmtree(folder)


@pytest.mark.parametrize(("name", "seed"), [("pipeline", 0), ("pipeline", 1), ("pipeline", 2), ("megatron", 0)])
def test_a_value_is_what_the_runtime_calls_so(name: str, seed: int, builds: Path, tmp_path: Path) -> None:
    shutil.copytree(build_of(name, builds), tmp_path / "build")
    assert KINDS["misnamed value"](tmp_path / "build", random.Random(seed))
    assert proof(tmp_path / "build").verdict == "refuted"


def test_a_refutation_says_what_the_op_has_and_what_the_model_has(builds: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(build_of("megatron", builds), tmp_path / "build")
    name = "stages/stage0.member1.segment1.onnx"
    model = onnx.load(str(copy / name), load_external_data=False)
    relu = next(node for node in model.graph.node if node.op_type == "Relu" and node.output[0] == "relu3")
    relu.op_type = "Sigmoid"
    (copy / name).write_bytes(model.SerializeToString())
    refresh(copy, name)
    ((where, failure),) = proof(copy).failures
    assert where == "stage 0 on cpu0, cpu1"
    assert failure.message == (
        "Sigmoid, which makes 'relu3', does not follow: it has fc3 (the part along dimension 1 by axis x of %fc3); "
        "the model has Relu of %fc3 there"
    )
    assert failure.origin == f"{name}, node '/relu3'"


@pytest.mark.parametrize(("opset", "verdict"), [(11, "refuted"), (17, "proven")])
def test_an_operator_is_that_of_its_opset(opset: int, verdict: str, builds: Path, tmp_path: Path) -> None:
    """No operator of the model changed from opset 17 to 20; Gemm did after 11."""
    copy = shutil.copytree(build_of("megatron", builds), tmp_path / "build")
    name = "stages/stage0.member0.segment0.onnx"
    model = onnx.load(str(copy / name), load_external_data=False)
    model.opset_import[0].version = opset
    (copy / name).write_bytes(model.SerializeToString())
    refresh(copy, name)
    report = proof(copy)
    assert report.verdict == verdict
    assert all("the operator of opset 13 there and of opset 11 here" in failure.message for _, failure in report.failures)


def test_what_one_member_is_to_add_alone_is_not_added_twice(builds: Path, tmp_path: Path) -> None:
    """The second member has zeros of the bias, which is one summand of the first. Of ones the sum would be another."""
    copy = shutil.copytree(build_of("megatron", builds), tmp_path / "build")
    name = "stages/stage0.member1.segment0.onnx"
    model = onnx.load(str(copy / name), load_external_data=False)
    (fill,) = (node for node in model.graph.node if node.op_type == "ConstantOfShape")
    fill.attribute[0].t.raw_data = np.float64(1).tobytes()
    (copy / name).write_bytes(model.SerializeToString())
    refresh(copy, name)
    ((_, failure),) = proof(copy).failures
    assert failure.verdict == "refuted"
    assert "ConstantOfShape" in failure.message


@pytest.mark.parametrize("damage", [False, True])
def test_the_command_prints_or_refutes(damage: bool, builds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = shutil.copytree(build_of("megatron", builds), tmp_path / "build")
    if damage:
        assert KINDS["swapped weights"](copy, random.Random(0))
    code = main(["check", str(copy), "--prove", "--json"])
    answer = capsys.readouterr()
    data = json.loads(answer.out)
    assert (code, data["schema"], data["verdict"]) == (
        (5, "dnnc.proof/1", "refuted") if damage else (0, "dnnc.proof/1", "proven")
    )
    assert [stage["verdict"] for stage in data["stages"]] == [data["verdict"]]
    assert ("error[E1212]: refuted: " in answer.err) == damage


def test_the_command_takes_no_inputs(builds: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(build_of("megatron", builds)), "--prove", "--seed", "1"]) == 2
    assert "--seed: error[E0144]" in capsys.readouterr().err


def test_compile_proves_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compile", "zoo:mlp,layers=2,hidden=16,batch=4", "-t", "preset:cpu-2", "--mesh", "2", "--prove", "--no-report"]
    assert main([*command, "-o", str(tmp_path / "a"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["proof"]["verdict"] == "proven"
    assert main([*command, "-o", str(tmp_path / "b"), "--plan-only"]) == 2
    assert "--prove: error[E0145]: --plan-only leaves out" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()
    graph = helper.make_graph(
        [helper.make_node("RandomNormalLike", ["x"], ["y"], "noise")],
        "noise",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), str(tmp_path / "m.onnx"))
    assert main(["compile", str(tmp_path / "m.onnx"), *command[2:4], "-o", str(tmp_path / "c"), "--prove", "--no-report"]) == 5
    answer = capsys.readouterr()
    assert "not proven" in answer.out
    assert "error[E1213]: not proven: " in answer.err
    assert (tmp_path / "c" / "manifest.json").exists()


def test_random_numbers_are_not_proven(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [
            helper.make_node("RandomNormalLike", ["x"], ["r"], "noise"),
            helper.make_node("Add", ["x", "r"], ["y"], "sum"),
        ],
        "noisy",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
    )
    path = tmp_path / "noisy.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), str(path))
    compile_model(CompileOptions(str(path), "preset:cpu-1", tmp_path / "build"))
    report = proof(tmp_path / "build")
    assert report.verdict == "not proven"
    ((_, failure),) = report.failures
    assert (
        failure.message == "nothing is known of what RandomNormalLike makes as 'r': onnx.RandomNormalLike draws random numbers"
    )
    error = report.error()
    assert error is not None
    assert (error.exit_code, error.diagnostics[0].code) == (5, "E1213")


def test_without_the_model_its_copy_is_taken_on_trust(tmp_path: Path) -> None:
    path = branching(tmp_path / "model.onnx", width=40)
    compile_model(CompileOptions(str(path), "preset:cpu-1", tmp_path / "build"))
    assert not proof(tmp_path / "build").own_copy
    path.unlink()
    report = proof(tmp_path / "build")
    assert report.proven
    assert any("annotated.onnx" in trusted for trusted in report.trusted)
