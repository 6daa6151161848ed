"""``dnnc.plan`` and what it writes: the same plan as the command's, from each kind of model and machines."""

from __future__ import annotations

import gc
import json
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

import dnnc
from dnnc.check.faults import ChainDiverges
from dnnc.cli import main
from ir.core.diagnostics import CheckFailed
from tests.dnnc.api.models import batch, lookup

MLP = "zoo:mlp,layers=2,hidden=16,batch=4"


@pytest.mark.parametrize("spelled", ["path", pytest.param("proto", marks=pytest.mark.slow)])
def test_a_model_is_a_file_or_an_object(tmp_path: Path, spelled: str) -> None:
    onnx.save(lookup(), tmp_path / "model.onnx")
    model: Any = tmp_path / "model.onnx" if spelled == "path" else lookup()
    plan = dnnc.plan(model, machines="preset:cpu-2", dims={"batch": 2}, cuts=["p"])
    assert [len(stage.devices) for stage in plan.stages] == [1, 1]
    assert plan.bound <= plan.value
    build = plan.write(tmp_path / "build")
    checked = build.check({name: array for name, array in batch().items()})
    assert checked.passed
    assert ("computes" if spelled == "path" else "agree with the build's own copy of the model") in checked.verdict
    with dnnc.load(build).start() as session:
        assert [array.shape for array in session.run(None, batch())] == [(2, 4, 8), (2, 4, 8)]


def test_a_model_in_memory_gives_the_same_build_each_time(tmp_path: Path) -> None:
    for name in ("one", "other"):
        dnnc.plan(lookup(), machines="preset:cpu-2", dims={"batch": 2}, cuts=["p"]).write(tmp_path / name)
    for path in (tmp_path / "one").rglob("*.*"):
        assert path.read_bytes() == (tmp_path / "other" / path.relative_to(tmp_path / "one")).read_bytes(), path.name
        assert b"dnnc-scratch" not in path.read_bytes(), path.name


def test_machines_are_a_path_a_preset_or_a_topology(tmp_path: Path) -> None:
    first = dnnc.plan(MLP, machines="preset:cpu-2")
    again = dnnc.plan(MLP, machines=first.topology)
    assert (again.value, again.stages) == (first.value, first.stages)


def test_the_plan_is_that_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not main(["compile", MLP, "-t", "preset:cpu-2", "-o", str(tmp_path / "command"), "--stages", "2", "--json"])
    told = json.loads(capsys.readouterr().out)
    plan = dnnc.plan(MLP, machines="preset:cpu-2", stages=2)
    plan.write(tmp_path / "python")
    assert (plan.value, plan.bound, plan.gap, plan.status) == (told["objective"], told["bound"], told["gap"], told["status"])
    for name in ("plan.ir", "plan.json", "stages/stage0.onnx", "stages/stage1.onnx", "manifest.json"):
        assert (tmp_path / "command" / name).read_bytes() == (tmp_path / "python" / name).read_bytes(), name
    assert "throughput:" in str(plan)
    assert "restricted by stages=2" in str(plan)


def test_only_who_needs_the_weights_verifies_them(tmp_path: Path) -> None:
    """They may be gigabytes: to look at a plan, or to learn what a build is for, reads its text alone."""
    plan = dnnc.plan(MLP, machines="preset:cpu-2")
    build = plan.write(tmp_path / "build")
    with (tmp_path / "build/stages/weights.data").open("r+b") as file:
        file.write(b"damaged")
    assert build.plan.value == plan.value
    assert [one.name for one in build.inputs + build.outputs] == ["x", "y"]
    for refused in (build.start, build.check, lambda: dnnc.load(build)):
        with pytest.raises(dnnc.InvalidInput, match=r"weights\.data"):
            refused()


def test_a_plan_alone_is_no_build(tmp_path: Path) -> None:
    build = dnnc.plan(MLP, machines="preset:cpu-2", plan_only=True).write(tmp_path / "plan")
    assert not (tmp_path / "plan" / "stages").exists()
    with pytest.raises(dnnc.InvalidInput, match="plan"):
        build.start()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ({"machines": "preset:nothing"}, "E0842", "unknown preset 'nothing'"),
        ({"machines": 3}, "E1405", "found a value of type int; expected"),
        ({"colour": "red"}, "E1401", "there is no option 'colour'"),
        ({"mesh": "2", "cuts": ["p"]}, "E1002", "so cuts cannot go with it"),
        ({"loss": "mse:y"}, "E1005", 'add objective="training", or leave loss out'),
        ({"args": (1,)}, "E1404", "args= is only for a torch.nn.Module"),
        ({"time_limit": -1}, "E1014", "time_limit: error[E1014]: found -1, expected a finite number of seconds, at least 0"),
        ({"dims": {}}, "", 'dims={"batch": '),
        ({"model": 7}, "E1402", "found a value of type int; expected"),
        ({"model": "absent.onnx"}, "", "absent.onnx"),
    ],
)
def test_faults_are_told_in_terms_of_python(arguments: dict[str, Any], code: str, words: str) -> None:
    with pytest.raises(dnnc.DnncError) as error:
        dnnc.plan(**{"model": lookup(), "machines": "preset:cpu-2", "dims": {"batch": 2}, **arguments})
    assert code in error.value.diagnostics[0].code
    assert words in str(error.value)
    assert "--" not in str(error.value)
    assert "/tmp" not in str(error.value)


def test_a_failed_check_is_told_in_terms_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = CheckFailed(ChainDiverges(0, "cut", "h", "f32", 1.0, 0.1, "", ""), where="stage 0 on cpu0")
    monkeypatch.setattr("dnnc.check.proof.prove", lambda folder: SimpleNamespace(error=lambda: failed))
    result = dnnc.Build(Path("absent")).prove()
    assert not result.passed
    assert "tolerance allows it" in str(result)
    assert "--" not in f"{result}{result.error}"


def test_the_inputs_of_a_training_are_those_that_its_data_have(tmp_path: Path) -> None:
    training: Any = {"objective": "training", "loss": "cross-entropy:y", "optimizer": "sgd", "learning_rate": 0.1}
    build = dnnc.plan(MLP, machines="preset:cpu-1", plan_only=True, **training).write(tmp_path / "plan")
    assert [one.name for one in build.inputs] == ["x", "labels"]  # and not the number of labels that count


@pytest.mark.filterwarnings("error")
def test_the_file_of_a_model_in_memory_goes_with_its_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    plan = dnnc.plan(lookup(), machines="preset:cpu-1", dims={"batch": 2}, plan_only=True)
    (folder,) = tmp_path.iterdir()
    plan.write(tmp_path / "plan")
    assert list(folder.iterdir())
    del plan
    gc.collect()
    assert not folder.exists()


def test_warnings_are_those_of_python() -> None:
    head = '<ir_version: 10, opset_import: ["" : 20, "own" : 1]>'
    strange = onnx.parser.parse_model(head + "g (float[2] x) => (float[2] y) { y = own.Do(x) }")
    with pytest.warns(dnnc.DnncWarning, match=r"warning\[W\d+\].*own.Do"):
        dnnc.plan(strange, machines="preset:cpu-1", plan_only=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dnnc.plan(MLP, machines="preset:cpu-1")


@pytest.mark.slow
def test_a_module_of_pytorch_is_planned_checked_and_trained(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="the extra 'train' is not installed")
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    x = torch.randn(3, 4)
    with pytest.raises(dnnc.UsageError, match="E1403"):
        dnnc.plan(module, machines="preset:cpu-2")
    build = dnnc.plan(module.eval(), machines="preset:cpu-2", args=(x,)).write(tmp_path / "b")
    with build.start() as session:
        name = session.get_inputs()[0].name
        np.testing.assert_allclose(session.run(None, {name: x.numpy()})[0], module(x).detach().numpy(), rtol=1e-5, atol=1e-6)
    with pytest.raises(dnnc.UsageError, match="E1408"):
        build.train()
    (output,) = (one.name for one in build.outputs)
    train: Any = {"objective": "training", "loss": f"mse:{output}", "optimizer": "sgd", "learning_rate": 0.1, "microbatches": 2}
    step = dnnc.plan(module.train(), machines="preset:cpu-2", args=(x,), **train).write(tmp_path / "t")
    with pytest.raises(dnnc.UsageError, match="E1409"):
        step.start()
    assert step.check(steps=2).passed
    (labels,) = (one.name for one in step.inputs if one.name != name)
    samples: dict[str, Any] = {
        name: np.random.default_rng(0).standard_normal((12, 4)).astype(np.float32),
        labels: np.ones((12, 2), np.float32),
    }
    of_arrays = step.train(samples, steps=20, checkpoint=tmp_path / "c")
    assert of_arrays.losses[-1] < of_arrays.losses[0] / 2
    np.savez(tmp_path / "c" / "samples.npz", **samples)
    assert step.train(tmp_path / "c" / "samples.npz", steps=20).losses == of_arrays.losses
    assert step.train(tmp_path / "c", steps=20).losses == of_arrays.losses
    one = {key: array[:3] for key, array in samples.items()}
    told: list[int] = []
    of_iterable = step.train((one for _ in range(100)), steps=4, on_step=lambda done: told.append(done.step))
    assert of_iterable.losses == sorted(of_iterable.losses, reverse=True)
    assert told == [1, 2, 3, 4]
    for run in (step.train, step.check):
        with pytest.raises(dnnc.InvalidInput, match=rf"^data: error\[E0433\]: it has no array '{name}'"):
            run(data={labels: samples[labels]})
    with pytest.raises(dnnc.InvalidInput, match=r"E0446.*float32\[12, 4\]; expected float32\[3, 4\]"):
        step.train([(samples[name], samples[labels])], steps=1)
    with pytest.raises(dnnc.UsageError, match=r"E1410.*found a value of type ndarray; expected"):
        step.train(samples[name], steps=1)
    with pytest.raises(dnnc.InvalidInput, match="the data ended after 3 microbatches; 2 steps need 4"):
        step.train([one] * 3, steps=2)
    later = step.train([one] * 4, steps=2, resume=tmp_path / "c" / "step20")
    assert later.losses[0] < of_iterable.losses[0]
