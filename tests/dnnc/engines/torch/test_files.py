"""A training runs what was verified: nothing else that lies in the build, and nothing that comes there later."""

from __future__ import annotations

import importlib._bootstrap_external
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dnnc.build.snapshot import Snapshot
from dnnc.cli import main
from ir.core.diagnostics import InvalidInput
from tests.dnnc.engines.torch.training_builds import compiled, weights
from tests.dnnc.sealing import refresh

torch: Any = pytest.importorskip("torch", reason="the extra 'train' is not installed")
pytest.importorskip("safetensors", reason="the extra 'train' is not installed")

from dnnc.engines.torch.check.check import check_training  # noqa: E402
from dnnc.engines.torch.checkpoint import INITIAL, Checkpoint  # noqa: E402
from dnnc.engines.torch.files import TrainingFiles  # noqa: E402
from dnnc.engines.torch.launch.training import TrainingBuild, TrainOptions, train  # noqa: E402

BY_HAND = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python")
RANK = (sys.executable, "-P", "-m", "dnnc.engines.torch.rank")


@pytest.fixture
def build(tmp_path: Path) -> Path:
    return compiled(tmp_path / "build")


def with_unlisted(build: Path) -> Path:
    """Puts modules into a build that its manifest does not list, and compiled code beside a stage's file. Whatever of it runs
    makes the file that is returned."""
    mark = build.parent / "it ran"
    code = f"open({str(mark)!r}, 'w').close(); raise SystemExit(99)\n"
    for name in ("pathlib.py", "torch.py", "numpy/__init__.py", "stages/__init__.py", "stages/torch.py", "sitecustomize.py"):
        (build / name).parent.mkdir(exist_ok=True)
        (build / name).write_text(code)
    stage = build / "stages/stage0.py"
    state = stage.stat()
    cached = build / f"stages/__pycache__/stage0.{sys.implementation.cache_tag}.pyc"
    cached.parent.mkdir()
    compiled_code = compile(code, str(stage), "exec")
    cached.write_bytes(
        importlib._bootstrap_external._code_to_timestamp_pyc(compiled_code, int(state.st_mtime), state.st_size)  # type: ignore[attr-defined]
    )
    return mark


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--check",)])
def test_what_the_manifest_does_not_list_is_not_looked_at(options: Sequence[str], build: Path) -> None:
    mark = with_unlisted(build)
    assert main(["train", str(build), "-q", *options]) == 0
    assert not mark.exists()


@pytest.mark.slow
def test_nor_by_a_rank_that_was_started_by_hand(build: Path) -> None:
    mark = with_unlisted(build)
    command = [sys.executable, "-P", "-m", *BY_HAND, *RANK, "."]
    done = subprocess.run(command, cwd=build, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert not mark.exists()


@pytest.mark.slow
def test_a_rank_by_hand_verifies_the_build(build: Path) -> None:
    (build / "stages/stage1.py").write_text("raise SystemExit(99)\n")
    done = subprocess.run([*RANK, str(build)], capture_output=True, text=True)
    assert done.returncode == 3
    assert f"rank 0: {build / 'stages/stage1.py'}: error[E0306]: 21 bytes found" in done.stderr


def swapped(build: Path) -> None:
    """Puts another build in the place of this one, as whoever can rename folders may."""
    other = compiled(build.with_name("other"), "--stages", "1", "--replicas", "1", "--mesh", "none")
    for path in (other / "stages").glob("*.py"):
        path.write_text("raise SystemExit(99)\n")
    build.rename(build.with_name("moved"))
    other.rename(build)


def trained(build: TrainingBuild, out: Path, **options: Any) -> dict[str, Any]:
    """The weights after two steps."""
    train(build, TrainOptions(steps=2, checkpoint=out, **options))
    (path,) = out.glob("step*")
    return weights(path)


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_a_build_that_is_swapped_once_it_is_verified_trains_as_it_was(build: Path, tmp_path: Path) -> None:
    mark, opened = with_unlisted(build), TrainingBuild.open(build)
    begun = TrainingFiles(opened.files).initial.tensors()
    swapped(build)
    done = trained(opened, tmp_path / "after")
    for name in ("fc1.weight", "fc2.weight", "fc3.weight"):
        assert 0 < float((done[name] - begun[name]).abs().max()) < 0.01  # two steps of adam from there
    assert not mark.exists()


@pytest.mark.slow
def test_one_that_is_moved_away_too_and_is_checked(build: Path) -> None:
    opened = TrainingBuild.open(build)
    build.rename(build.with_name("moved"))
    assert check_training(opened, TrainOptions(steps=2)).weights == 6


@pytest.mark.slow
def test_training_goes_on_from_the_checkpoint_that_was_opened(build: Path, tmp_path: Path) -> None:
    opened = TrainingBuild.open(build)
    train(opened, TrainOptions(steps=1, checkpoint=tmp_path))
    path = tmp_path / "step1"
    wanted = trained(opened, tmp_path / "before", resume=Checkpoint.open(path))
    resumed = Checkpoint.open(path)
    for file in sorted(path.iterdir()):
        other = file.with_name("other")
        other.write_bytes(bytes(file.stat().st_size))
        other.replace(file)
    shutil.rmtree(path)
    assert same(trained(opened, tmp_path / "after", resume=resumed), wanted)


@pytest.mark.slow
@pytest.mark.parametrize("which", ["build", "checkpoint"])
def test_weights_that_are_written_to_are_told(which: str, build: Path, tmp_path: Path) -> None:
    opened = TrainingBuild.open(build)
    train(opened, TrainOptions(steps=1, checkpoint=tmp_path))
    resumed = Checkpoint.open(tmp_path / "step1") if which == "checkpoint" else None
    path = build / INITIAL if resumed is None else Path(resumed.where, "rank0.safetensors")
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.write(data[:-8] + bytes(8))
    with pytest.raises(InvalidInput) as caught:
        trained(opened, tmp_path / "after", resume=resumed)
    code = "E0302" if resumed is None else "E0731"
    assert str(caught.value).startswith(f"{path}: error[{code}]: the file was changed while it was used")


@pytest.mark.parametrize("text", ["raise ArithmeticError('no')", "def forward(:", "\0"])
def test_a_program_that_cannot_be_run(text: str, build: Path) -> None:
    (build / "stages/stage0.py").write_text(text)
    files = TrainingFiles(Snapshot.open(refresh(build, "stages/stage0.py")))
    with pytest.raises(InvalidInput) as caught:
        files.functions("stages/stage0.py")
    assert str(caught.value).startswith(f"{build / 'stages/stage0.py'}: error[E0724]: it cannot be imported: ")


def test_the_line_of_a_program_that_raises(build: Path) -> None:
    (build / "stages/stage0.py").write_text("def forward(*given):\n    raise ArithmeticError('no')\n")
    files = TrainingFiles(Snapshot.open(refresh(build, "stages/stage0.py")))
    with pytest.raises(ArithmeticError) as caught:
        files.functions("stages/stage0.py")["forward"]()
    assert files.place(caught.tb) == "stages/stage0.py:2"
