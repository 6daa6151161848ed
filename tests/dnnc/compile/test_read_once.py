"""What a compile reads is read once: a file that is replaced or written to meanwhile gives a right build, or is found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from dnnc.build.build import Build
from dnnc.cli import main
from dnnc.compile.driver import compile_model
from dnnc.compile.flags import CompileOptions
from ir.core.diagnostics import InvalidInput
from ir.system.digests import digest_file
from tests.slow_cases import slow_but

COLUMNS = 64
X = np.linspace(-1, 1, COLUMNS, dtype=np.float32)[None]


def model(scale: float, doc: str = "") -> onnx.ModelProto:
    """y = x A B, of matrices with a number of their own in each element; ``doc`` moves them in the file."""
    text = f"""<ir_version: 10, opset_import: ["": 20], doc_string: "{doc}">
    g (float[1, {COLUMNS}] x) => (float[1, {COLUMNS}] y) {{ h = MatMul(x, a)
    y = MatMul(h, b) }}"""
    found = onnx.parser.parse_model(text)
    for number, name in enumerate("ab"):
        found.graph.initializer.append(onnx.numpy_helper.from_array(matrix(scale, number), name))
    return found


def matrix(scale: float, number: int) -> Any:
    return (scale * np.cos(np.arange(COLUMNS * COLUMNS) + number)).astype(np.float32).reshape(COLUMNS, COLUMNS)


def embedded(folder: Path, scale: float, doc: str = "") -> Path:
    """The file that holds the weights: the model's own."""
    onnx.save(model(scale, doc), folder / "m.onnx")
    return folder / "m.onnx"


def external(folder: Path, scale: float, doc: str = "") -> Path:
    """The file that holds the weights, beside the model."""
    onnx.save(model(scale, doc), folder / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    return folder / "m.data"


def as_text(folder: Path, scale: float, doc: str = "") -> Path:
    external(folder, scale, doc)
    assert main(["import", str(folder / "m.onnx"), "-o", str(folder / "m.ir")]) == 0
    return folder / "m.data"


Make = Callable[..., Path]
MAKERS: dict[str, tuple[Make, str]] = {
    "in the model": (embedded, "m.onnx"),
    "beside it": (external, "m.onnx"),
    "of IR text": (as_text, "m.ir"),
}
TRAINING: dict[str, Any] = {"objective": "training", "microbatches": 2}


@pytest.fixture(params=slow_but(MAKERS, "in the model"))
def made(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Make, Path]:
    """The model, how it was made, and the file of its weights."""
    maker, name = MAKERS[request.param]
    weights = maker(tmp_path, 1.0)
    return tmp_path / name, maker, weights


def compiled(source: Path, meanwhile: Callable[[], Any], **options: Any) -> Path:
    """The build of the model; ``meanwhile`` is called when the plan is found and nothing is written yet."""
    left = [meanwhile]

    def progress(label: str, fraction: float | None) -> None:
        if label == "write the plan" and left:
            left.pop()()

    out = source.parent / "build"
    compile_model(CompileOptions(str(source), "preset:cpu-2", out, stages=2, mesh="none", **options), progress=progress)
    assert not left
    return out


def replaced(maker: Make, weights: Path) -> Callable[[], None]:
    """Puts another model of the same names in the place of this one, by a rename."""

    def act() -> None:
        other = weights.parent / "other"
        other.mkdir()
        maker(other, 3.0, "moves all that lies behind it")
        for path in other.iterdir():
            os.replace(path, weights.parent / path.name)

    return act


def test_a_model_that_is_replaced_meanwhile_is_built_as_it_was(
    made: tuple[Path, Make, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    source, maker, weights = made
    with source.open("rb") as file:
        digest = digest_file(file)
    out = compiled(source, replaced(maker, weights))
    build = Build.open(out)
    assert build.source.sha256 == digest
    np.savez(out.parent / "x.npz", x=X)
    assert main(["run", str(out), "--inputs", str(out.parent / "x.npz"), "--outputs", str(out.parent / "y.npz"), "-q"]) == 0
    wanted = X @ matrix(1.0, 0) @ matrix(1.0, 1)
    np.testing.assert_allclose(np.load(out.parent / "y.npz")["y"], wanted, atol=1e-4 * np.ptp(wanted))
    capsys.readouterr()
    assert main(["check", str(out)]) == 0
    said = capsys.readouterr()
    assert "has changed since" in said.err + said.out or "have changed since" in said.err + said.out


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def overwrite(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-64:] = bytes(64)
    with path.open("r+b") as file:
        file.write(data)


def overwrite_quietly(path: Path) -> None:
    """And set the time of modification back."""
    before = path.stat()
    overwrite(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("change", [truncate, overwrite, overwrite_quietly])
def test_a_model_that_is_written_to_meanwhile_is_refused(change: Callable[[Path], None], made: tuple[Path, Make, Path]) -> None:
    source, _, weights = made
    with pytest.raises(InvalidInput) as caught:
        compiled(source, lambda: change(weights))
    assert str(caught.value).startswith(f"{weights}: error[E0206]: the file was changed while it was read")
    assert not (source.parent / "build").exists()


@pytest.mark.slow
def test_a_training_build_too(made: tuple[Path, Make, Path]) -> None:
    pytest.importorskip("safetensors", reason="the extra 'train' is not installed")
    from dnnc.compile.training import TrainingOptions
    from dnnc.engines.torch.checkpoint import INITIAL, Checkpoint

    source, maker, weights = made
    out = compiled(source, replaced(maker, weights), **TRAINING, training=TrainingOptions(loss="mse:y"))
    held = Checkpoint.open(out / INITIAL).tensors()
    for number, name in enumerate("ab"):
        np.testing.assert_array_equal(held[name].numpy(), matrix(1.0, number))
    with pytest.raises(InvalidInput, match="the file was changed while it was read"):
        compiled(source, lambda: overwrite(weights), **TRAINING, training=TrainingOptions(loss="mse:y"))


def test_a_reference_is_the_model_whose_digest_was_recorded(made: tuple[Path, Make, Path], tmp_path: Path) -> None:
    from dnnc.check.reference import references
    from dnnc.engines.onnxruntime.session.program import Program

    source, maker, weights = made
    build = Build.open(compiled(source, lambda: None))
    (tmp_path / "scratch").mkdir()
    original = next(references(build, ["y"], tmp_path / "scratch"))
    assert original.original
    replaced(maker, weights)()
    program = Program(original.model, (), weights=original.weights)
    (found,) = program.session.run(["y"], {"x": X})
    wanted = X @ matrix(1.0, 0) @ matrix(1.0, 1)
    np.testing.assert_allclose(found, wanted, atol=1e-4 * np.ptp(wanted))
    original.confirm()
    assert not next(references(build, ["y"], tmp_path / "scratch")).original


@pytest.mark.parametrize("change", [overwrite, overwrite_quietly])
def test_weights_of_a_reference_that_are_written_to_are_found(change: Callable[[Path], None], tmp_path: Path) -> None:
    from dnnc.check.reference import references

    weights = external(tmp_path, 1.0)
    build = Build.open(compiled(tmp_path / "m.onnx", lambda: None))
    (tmp_path / "scratch").mkdir()
    original = next(references(build, ["y"], tmp_path / "scratch"))
    change(weights)
    with pytest.raises(InvalidInput, match=r"the file 'm.data' was changed while it was used"):
        original.confirm()


def test_very_many_weight_files_are_the_same_when_they_are_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dnnc.onnx.weights import WeightFiles

    monkeypatch.setattr(WeightFiles, "MOST_OPEN", 1)  # the model's own
    weights = external(tmp_path, 1.0)
    assert compiled(tmp_path / "m.onnx", lambda: None).is_dir()
    with pytest.raises(InvalidInput) as caught:
        compiled(tmp_path / "m.onnx", replaced(external, weights))
    assert str(caught.value).startswith(f"{weights}: error[E0206]: the file was changed while it was read")


COUNTING = """
import collections, json, os, sys
opened = collections.Counter()
def note(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, bytes)):
        opened[os.path.abspath(os.fsdecode(arguments[0]))] += 1
sys.addaudithook(note)
from dnnc.cli import main
code = main(sys.argv[2:])
json.dump({path: count for path, count in opened.items() if path.startswith(sys.argv[1] + "/in/")}, sys.stdout)
raise SystemExit(code)
"""


@pytest.mark.slow
def test_each_file_of_a_command_is_opened_once(tmp_path: Path) -> None:
    given = tmp_path / "in"
    given.mkdir()
    external(given, 1.0)
    np.savez(given / "x.npz", x=X)
    assert main(["topology", "show", "preset:cpu-2", "--toml"]) in (0, 2)
    from dnnc.machines.topology import load_topology, topology_to_toml
    from ir.core.diagnostics import DiagnosticSink

    (given / "t.toml").write_text(topology_to_toml(load_topology("preset:cpu-2", DiagnosticSink())))
    asked = ["compile", str(given / "m.onnx"), "-t", str(given / "t.toml"), "--inputs", str(given / "x.npz"), "-q"]
    assert main([*asked, "--stages", "2", "--plan-only", "-o", str(tmp_path / "plan")]) == 0
    os.replace(tmp_path / "plan/plan.json", given / "plan.json")
    command = [sys.executable, "-c", COUNTING, str(tmp_path), *asked, "-o", str(tmp_path / "b")]
    done = subprocess.run([*command, "--plan", str(given / "plan.json")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    names = ("m.data", "m.onnx", "plan.json", "t.toml", "x.npz")
    assert json.loads(done.stdout) == {str(given / name): 1 for name in names}
