"""``dnnc run`` from files to files: compiled builds give the numbers of the unsplit model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from dnnc.build.build import Build
from dnnc.cli import main
from dnnc.compile.driver import compile_model
from dnnc.compile.flags import CompileOptions
from dnnc.data import generate
from dnnc.data.generate import random_inputs
from dnnc.engines.onnxruntime import Pipeline, RunCommand, RunOptions, run_build, run_command
from dnnc.engines.onnxruntime.starter.results import RunResult
from ir.core.diagnostics import InvalidInput, UsageError
from ir.core.module import Module
from ir.system.host import assign_cores, device_cores, local_cores
from tests.dnnc.check.test_check import CHAIN, compiled, save, weights

TEXT = CHAIN.replace(" <float[8,8] w1, float[8,8] w2, float[8,8] w3>", "")


UNEQUAL = """
version = 1
name = "unequal"
types.slow = {kind = "cpu", rates = {f32 = "1 GFLOP/s"}, memory_bandwidth = "20 GB/s", memory = "1 GiB"}
types.fast = {kind = "cpu", rates = {f32 = "9 GFLOP/s"}, memory_bandwidth = "40 GB/s", memory = "1 GiB"}
hosts = [{name = "here"}]
devices = [{name = "cpu0", type = "slow", host = "here"}, {name = "cpu1", type = "fast", host = "here"}]
links = [{ends = ["here", "cpu0", "cpu1"], bandwidth = "9 GB/s"}]
"""


def unsplit(model: Path, x: np.ndarray) -> np.ndarray:
    result: np.ndarray = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    return result


@pytest.mark.parametrize(("kind", "stages"), [("shared", 1), ("per-stage", 3)])
def test_a_compiled_model_runs(tmp_path: Path, kind: str, stages: int) -> None:
    """More stages than cores share them; either way of storing weights is found."""
    model = save(tmp_path, TEXT, **weights("w1", "w2", "w3"))
    build = compiled(model, tmp_path / "build", stages, weights=kind)
    x = np.random.default_rng(1).standard_normal((6, 4, 8)).astype(np.float32)
    result = run_build(build, {"x": x})
    for m in range(6):
        np.testing.assert_allclose(result.outputs[m]["y"], unsplit(model, x[m]), rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    folder = tmp_path_factory.mktemp("run")
    return compiled(save(folder, TEXT, **weights("w1", "w2", "w3")), folder / "build", 2)


def test_from_a_file_to_a_file(tmp_path: Path, build: Build) -> None:
    x = np.random.default_rng(1).standard_normal((12, 8)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    command = RunCommand(build.folder, tmp_path / "x.npz", tmp_path / "y.npz", microbatches=3, repeat=2, warmup=1)
    report = run_command(command)
    found = np.load(tmp_path / "y.npz")
    assert found.files == ["y"]
    expected = [unsplit(build.folder.parent / "model.onnx", part) for part in np.split(x, 3)]
    np.testing.assert_allclose(found["y"], np.concatenate(expected), rtol=1e-5, atol=1e-5)
    fields = report.to_json()
    assert (fields["schema"], fields["microbatches"], fields["inputs"]) == ("dnnc.run/1", 3, "given")
    assert len(report.throughputs) == 2
    assert fields["outputs"] == {"y": {"dtype": "float32", "shape": [12, 8]}}
    assert [stage["index"] for stage in fields["stages"]] == [0, 1]
    assert all(stage["measured"] > 0 for stage in fields["stages"])
    assert 0 < fields["cores"] <= 1


@pytest.mark.slow
def test_random_inputs_are_the_same_for_the_same_seed(build: Build) -> None:
    first, again = (run_command(RunCommand(build.folder, microbatches=2)) for _ in range(2))
    other = run_command(RunCommand(build.folder, microbatches=2, seed=9))
    assert first.random
    assert first.outputs["y"].shape == (2, 4, 8)
    np.testing.assert_array_equal(first.outputs["y"], again.outputs["y"])
    assert (first.outputs["y"] != other.outputs["y"]).any()


def test_stacked_microbatches_in_a_list_are_all_run(build: Build) -> None:
    """Three stacked and one alone are four."""
    x = np.random.default_rng(1).standard_normal((4, 4, 8)).astype(np.float32)
    result = run_build(build, [{"x": x[:3]}, {"x": x[3]}])
    assert len(result.outputs) == 4
    for m in range(4):
        np.testing.assert_allclose(
            result.outputs[m]["y"], unsplit(build.folder.parent / "model.onnx", x[m]), rtol=1e-5, atol=1e-5
        )


def test_faults_of_the_request(tmp_path: Path, build: Build) -> None:
    with pytest.raises(UsageError):
        run_command(RunCommand(build.folder, repeat=0))
    with pytest.raises(InvalidInput, match="no such file"):
        run_command(RunCommand(build.folder, tmp_path / "absent.npz"))
    with pytest.raises(InvalidInput, match=r"microbatch 1.*input 'x' is missing"):
        run_build(build, [{"x": np.zeros((4, 8), np.float32)}, {}])


def test_cores_are_given_out_or_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 2, 4, 6})
    assert assign_cores([2, 2]) == ([[0, 2], [4, 6]], True)
    assert assign_cores([1, 1, 1, 1]) == ([[0], [2], [4], [6]], True)
    assert assign_cores([1, 3]) == ([[0], [2, 4, 6]], True)
    assert assign_cores([2, 2, 2]) == ([[0, 2, 4, 6]] * 3, False)
    assert assign_cores([1, 1], pin=False)[0] == [[], []]


def test_a_device_has_the_same_cores_in_every_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as there are cores for all of the host."""
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 2, 4, 6})
    threads = {"a": 1, "b": 2, "c": 1}
    assert device_cores(["c", "b"], threads) == ([[6], [2, 4]], True)
    assert device_cores(["b"], threads | {"d": 1}) == ([[0, 2]], True)
    assert device_cores(["b", "c"], threads | {"b": 4}) == ([[0, 2, 4, 6]] * 2, False)
    assert device_cores(["b"], threads, pin=False)[0] == [[]]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system binds no process to cores")
@pytest.mark.parametrize(
    ("split", "words"),
    [(("--mesh", "2", "--strategy", "megatron"), "at each collective members wait"), (("--stages", "2"), "they take turns\n")],
)
def test_more_devices_than_cores_are_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], split: tuple[str, ...], words: str
) -> None:
    """By the command, bound to one core: on standard error, and not where it is quiet or the cores suffice."""

    def said(*options: str) -> str:
        assert main(["run", str(tmp_path / "build"), *options]) == 0
        return capsys.readouterr().err

    assert (
        main(["compile", "zoo:mlp,hidden=64", "-t", "preset:cpu-2,cores=2", "-o", str(tmp_path / "build"), *split, "-q"]) == 0
    )
    cores = os.sched_getaffinity(0)
    assert ("need 2 cores" in said()) == (local_cores() < 2)
    os.sched_setaffinity(0, {min(cores)})
    try:
        told = said()
        assert told.count("2 devices at once need 2 cores (1 each), this machine has 1") == 1
        assert words in told
        assert said("--quiet") == ""
    finally:
        os.sched_setaffinity(0, cores)


@pytest.mark.slow
def test_a_busy_machine_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two endless programs on each core leave the run a third of it."""
    model = "zoo:mlp,layers=4,hidden=1024,batch=512"
    out = str(tmp_path / "build")
    assert main(["compile", model, "-t", "preset:cpu-2", "-o", out, "--stages", "2", "--mesh", "none", "-q"]) == 0
    endless = [sys.executable, "-c", "print(flush=True)\nwhile True: pass"]
    others = [subprocess.Popen(endless, stdout=subprocess.PIPE) for _ in range(2 * local_cores())]
    try:
        for other in others:
            assert other.stdout is not None
            other.stdout.readline()
        assert main(["run", out, "-m", "16", "--json"]) == 0
    finally:
        for other in others:
            other.kill()
            other.communicate()
    told = capsys.readouterr()
    assert json.loads(told.out)["cores"] < 0.9
    assert "W0636]: the machine was busy: the processes had " in told.err


def test_stages_stay_on_their_cores(build: Build) -> None:
    cores = sorted(os.sched_getaffinity(0))
    with Pipeline(build, RunOptions()) as pipeline:
        pipeline.run([{"x": np.zeros((4, 8), np.float32)}])
        found = [os.sched_getaffinity(pid) for pid in pipeline.processes]
    assert found == ([{cores[0]}, {cores[1]}] if len(cores) >= 2 else [set(cores)] * 2)


@pytest.mark.skipif(local_cores() < 2, reason="the devices share the only core")
def test_a_device_has_its_core_where_another_rests(tmp_path: Path) -> None:
    """The plan uses the second device, which is quicker: it runs on the second core, on which it was measured."""
    (tmp_path / "unequal.toml").write_text(UNEQUAL)
    model = save(tmp_path, TEXT, **weights("w1", "w2", "w3"))
    compile_model(
        CompileOptions(str(model), str(tmp_path / "unequal.toml"), tmp_path / "build", stages=1, replicas=1, mesh="none")
    )
    build = Build.open(tmp_path / "build")
    assert build.devices == ("cpu1",)
    with Pipeline(build, RunOptions()) as pipeline:
        pipeline.run([{"x": np.zeros((4, 8), np.float32)}])
        (process,) = pipeline.processes
        assert os.sched_getaffinity(process) == {sorted(os.sched_getaffinity(0))[1]}


@pytest.mark.parametrize(
    ("place", "words"), [(".", "a folder; a file was expected"), ("no/y.npz", "its folder does not exist")]
)
def test_outputs_that_cannot_be_written_are_refused_before_the_run(
    tmp_path: Path, build: Build, monkeypatch: pytest.MonkeyPatch, place: str, words: str
) -> None:
    monkeypatch.setattr(Pipeline, "__enter__", lambda self: pytest.fail("it ran"))
    with pytest.raises(InvalidInput, match=words):
        run_command(RunCommand(build.folder, outputs=tmp_path / place))


@pytest.mark.parametrize("ahead", [1.0, pytest.param(0.0, marks=pytest.mark.slow)])
def test_many_random_microbatches(build: Build, monkeypatch: pytest.MonkeyPatch, ahead: int) -> None:
    """plan.ir is read once for all of them; drawn before the run or while they are fed, they are the same."""
    wanted = [random_inputs(build, seed=5 + number) for number in range(12)]
    expected = run_build(build, wanted).outputs
    read: list[str] = []
    real = Build.program

    def program(self: Build) -> Module:
        read.append("plan.ir")
        return real(self)

    monkeypatch.setattr(Build, "program", program)
    monkeypatch.setattr(generate, "DRAWN_AHEAD", ahead)
    found = run_command(RunCommand(build.folder, microbatches=12, seed=5))
    assert read == ["plan.ir"]
    for one, other in zip(expected, found.result.outputs, strict=True):
        for name, value in one.items():
            np.testing.assert_array_equal(other[name], value)


@pytest.mark.parametrize(
    ("completed", "together", "pace"),
    [((1.0, 2.0, 3.0), 1, 1.0), ((1.0, 1.0, 2.0, 2.0, 3.0, 3.0), 2, 2.0), ((1.0, 1.5, 2.0, 2.5), 2, 2.0), ((1.0, 1.1), 2, 0.5)],
)
def test_the_pace_of_replicas_counts_pairs_once(completed: tuple[float, ...], together: int, pace: float) -> None:
    """Two that are completed at once were worked on as long as one: the first pair is no gain. Of one pair the run counts."""
    assert RunResult((), 4.0, completed, (), (), together=together).throughput == pytest.approx(pace)
