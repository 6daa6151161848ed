"""Numbers that would be wrong without a word: other samples on each rank, NaN, a damaged checkpoint, a seed that is unused."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dnnc
from dnnc.cli import main
from ir.core.diagnostics import InvalidInput, UsageError
from tests.dnnc.engines.torch.training_builds import compiled, weights, write_checkpoint

torch: Any = pytest.importorskip("torch", reason="the extra 'train' is not installed")
safetensors: Any = pytest.importorskip("safetensors.torch", reason="the extra 'train' is not installed")

from dnnc.engines.torch.checkpoint import Checkpoint, Position  # noqa: E402

SOURCE = """
import numpy as np

def _samples(numbers):
    while True:
        yield {name: numbers.normal(size=shape).astype(np.float32) for name, shape in (("x", (4, 784)), ("target", (4, 10)))}

def unseeded(seed):
    return _samples(np.random.default_rng())

def unseeded_later(seed):
    first = _samples(np.random.default_rng(seed))
    yield next(first)
    yield from _samples(np.random.default_rng())

def broken(seed):
    for number, microbatch in enumerate(_samples(np.random.default_rng(seed))):
        if number == 5:
            microbatch["target"][2, 1] = np.nan
        yield microbatch
"""


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("silent") / "build")


def test_a_flipped_bit_of_a_checkpoint_is_found(tmp_path: Path) -> None:
    path = tmp_path / "step3.safetensors"
    tensors = {"w": torch.arange(6.0).reshape(2, 3), "none": torch.zeros(0), "n": torch.tensor(3), "b": torch.tensor([True])}
    write_checkpoint(path, tensors, Position(3, 7))
    Checkpoint.open(path).verify()
    whole = path.read_bytes()
    name = whole.index(b"sha256")  # by another name it is none
    for at in (at for at in range(len(whole)) if not name <= at < name + len(b"sha256")):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(InvalidInput):
            Checkpoint.open(path).verify()


def test_a_checkpoint_without_a_digest_is_read(tmp_path: Path) -> None:
    safetensors.save_file({"w": torch.ones(2)}, tmp_path / "old.safetensors", {"step": "1", "seed": "0"})
    opened = Checkpoint.open(tmp_path / "old.safetensors")
    opened.verify()
    assert opened.digest is None


@pytest.mark.slow
def test_checkpoints_that_are_not_what_they_seem(build: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", str(build), "--steps", "1", "--seed", "3", "--checkpoint", str(tmp_path), "-q"]) == 0
    good, other = tmp_path / "step1", tmp_path / "other.safetensors"

    def resumed(path: Path, *options: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main(["train", str(build), "--resume", str(path), *options])
        return code, capsys.readouterr().err

    assert resumed(good, "--seed", "3")[0] == 0
    code, told = resumed(good, "--seed", "4")
    assert (code, "goes on with the data of seed 3" in told) == (2, True)
    with pytest.raises(UsageError, match="goes on with the data of seed 3\n  hint: leave seed out"):
        dnnc.load(build).train(steps=2, resume=good, seed=4)
    shutil.copytree(good, tmp_path / "damaged")
    damaged = tmp_path / "damaged/rank0.safetensors"
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-9] + bytes([whole[-9] ^ 64]) + whole[-8:])
    assert resumed(damaged.parent) == (
        3,
        f"{damaged}: error[E0730]: it is damaged: its SHA-256 is not that of what was written\n"
        "  hint: go on from another checkpoint\n",
    )
    tensors = weights(good)
    safetensors.save_file(tensors, other, {"step": "1", "seed": "3"})
    code, told = resumed(other)
    assert (code, f"{other}: warning[W0736]: it has no digest" in told) == (0, True)
    tensors["fc2.weight"][1, 2] = np.nan
    write_checkpoint(other, tensors, Position(1, 3))
    code, told = resumed(other)
    assert (code, f"{other}: error[E0742]: weight 'fc2.weight' holds nan" in told) == (3, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "told"), [(np.nan, "array 'x' holds nan in sample 9"), (np.inf, "array 'x' holds inf in sample 9")]
)
def test_samples_that_are_no_numbers(
    value: float, told: str, build: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x, target = np.zeros((16, 784), np.float32), np.zeros((16, 10), np.float32)
    x[9, 3] = value
    np.savez(tmp_path / "data.npz", x=x, target=target)
    assert main(["train", str(build), "--data", str(tmp_path / "data.npz")]) == 3
    assert f"{tmp_path / 'data.npz'}: error[E0432]: {told}\n" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("rate", ["1e20", "1e30"])
def test_a_training_that_diverges_ends_with_its_last_good_checkpoint(
    rate: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = ("--stages", "2", "--replicas", "1", "--mesh", "none", "--optimizer", "sgd", "--learning-rate", rate)
    build = compiled(tmp_path / "build", *plan)
    asked = ["train", str(build), "--steps", "5", "--every", "1", "--checkpoint", str(tmp_path / "kept")]
    assert main(asked) == 3
    told = capsys.readouterr().err
    assert "a smaller --learning-rate" in told
    assert "error[E0746]: onnx.Gemm made infinity of finite numbers" in told or "error[E0742]: weight '" in told
    for path in (tmp_path / "kept").glob("step*"):
        assert all(bool(torch.isfinite(tensor).all()) for tensor in weights(path).values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("unseeded", "drawn:unseeded: error[E0448]: ranks were given other samples for the same step, 1"),
        ("unseeded_later", "drawn:unseeded_later: error[E0448]: ranks were given other samples for the same step, 1"),
        ("broken", "'target' holds nan in row 2 of microbatch 5"),
    ],
)
def test_a_function_of_data_that_misleads(
    name: str, told: str, build: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "drawn.py").write_text(SOURCE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["train", str(build), "--steps", "2", "--data", f"drawn:{name}"]) == 3
    assert told in capsys.readouterr().err


@pytest.mark.slow
def test_an_interrupt_leaves_a_checkpoint_of_the_last_step(build: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dnnc", "train", str(build), "--steps", "1000000", "--checkpoint", str(tmp_path / "kept")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("step 1 ")
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    (path,) = (tmp_path / "kept").glob("step*")
    opened = Checkpoint.open(path)
    opened.verify()
    assert f"step {opened.position.step} " in said
