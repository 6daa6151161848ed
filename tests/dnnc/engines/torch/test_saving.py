"""Checkpoints as ranks write them, beside the steps: each its part, and whole or not there, whatever happens."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dnnc.build.training import Step
from dnnc.cli import main
from dnnc.onnx import DIALECTS
from ir import parse_module
from ir.core.diagnostics import InvalidInput
from passes.framework.base import PassContext
from passes.programs.localize import LocalizePass
from tests.dnnc.engines.onnxruntime.processes import gone
from tests.dnnc.engines.torch.training_builds import TWO_STAGES, compiled, weights, write_checkpoint
from tests.golden import ROOT

torch: Any = pytest.importorskip("torch", reason="the extra 'train' is not installed")
pytest.importorskip("safetensors", reason="the extra 'train' is not installed")

from dnnc.engines.torch.checkpoint import Checkpoint, Position  # noqa: E402
from dnnc.engines.torch.checkpoint.saving import Saver, changed, owned  # noqa: E402

ONE = ("--stages", "1", "--replicas", "1", "--mesh", "none")
REPLICAS = ("--stages", "1", "--replicas", "2", "--mesh", "none")
PLANS = {"stages": TWO_STAGES, "mesh": ("--mesh", "2"), "one": ONE, "replicas": REPLICAS}
WIDE = "zoo:mlp,layers=3,hidden=1024,batch=4"


@pytest.fixture(scope="module")
def step() -> Step:
    """Momentum on a mesh of two, each of which holds all of ``@w`` and half the rows of its momentum."""
    path = ROOT / "passes/differentiate/sharded_update.out.ir"
    module = parse_module(path.read_text(encoding="utf-8"), path.name)
    return Step(LocalizePass().run(module, PassContext(dialects=DIALECTS)))


def test_each_part_is_written_by_one_rank(step: Step) -> None:
    parts = owned(step, changed(step))
    assert {rank: {name: part.box for name, part in of.items()} for rank, of in parts.items()} == {
        0: {"w": ((0, 8), (0, 4)), "w.momentum": ((0, 4), (0, 4))},
        1: {"w.momentum": ((4, 4), (0, 4))},
    }


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("builds")
    return {name: compiled(folder / name, *plan) for name, plan in PLANS.items()}


def alone(build: Path) -> Step:
    from dnnc.build.snapshot import Snapshot
    from dnnc.engines.torch.files import read_step

    return read_step(Snapshot.open(build))


def ones(step: Step, rank: int) -> dict[str, Any]:
    return {name[1:]: torch.ones([length for _, length in box]) for name, box in step.held(rank).items()}


def test_steps_go_on_while_a_checkpoint_is_written(builds: dict[str, Path], tmp_path: Path) -> None:
    """It has the weights as they were when it was begun, and the next one waits for it."""
    one = alone(builds["one"])
    held = ones(one, 0)
    with Saver(one, 0, tmp_path) as saver:
        saver.save(held, Position(1))
        for tensor in held.values():
            tensor.add_(1)  # as updates do
        saver.save(held, Position(2))
        assert float(weights(tmp_path / "step1")["fc1.weight"][0, 0]) == 1
    assert float(weights(tmp_path / "step2")["fc1.weight"][0, 0]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step1", "step2"]


def test_what_the_disk_refuses_ends_the_training_and_leaves_what_was(builds: dict[str, Path], tmp_path: Path) -> None:
    one = alone(builds["one"])
    held = ones(one, 0)
    saver = Saver(one, 0, tmp_path)
    saver.save(held, Position(1))
    saver.wait()
    (tmp_path / "step1/kept").write_text("beside")
    (tmp_path / "step2").write_text("in the way")
    saver.save(held, Position(2))
    with pytest.raises(Exception, match="step2"):
        saver.wait()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step1", "step2"]
    Checkpoint.open(tmp_path / "step1").verify()
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="E0726"):
        Saver(one, 0, tmp_path / "file").save(held, Position(3))


ONE_WEIGHT = """
module @m {opset.onnx = 20} {
  resource @W : tensor<2x2xf32> = random(normal, seed = 1)
  func @main(%x : tensor<4x2xf32>) -> (%y : tensor<4x2xf32>) {
    %m = onnx.MatMul(%x, @W) : tensor<4x2xf32>
    %y = onnx.Tanh(%m) : tensor<4x2xf32>
  }
}
"""
RANK_0 = """
import sys
from pathlib import Path
import torch.distributed as dist
from tests.dnnc.engines.torch.test_saving import Position, Saver, alone, ones
build, folder = map(Path, sys.argv[1:])
dist.init_process_group("gloo", init_method=(folder / "store").as_uri(), rank=0, world_size=2)
step = alone(build)
with Saver(step, 0, folder) as saver:
    saver.save(ones(step, 0), Position(1))
"""


@pytest.mark.slow
def test_a_rank_without_weights_may_come_when_the_checkpoint_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.ir").write_text(ONE_WEIGHT)
    build = compiled(tmp_path / "build", *TWO_STAGES, model=str(tmp_path / "m.ir"))
    step, dist, broadcast = alone(build), torch.distributed, torch.distributed.broadcast
    assert owned(step, changed(step)).keys() == {0}

    def last(*arguments: Any) -> None:
        broadcast(*arguments)
        process.communicate(timeout=60)

    monkeypatch.setattr(dist, "broadcast", last)
    process = subprocess.Popen([sys.executable, "-c", RANK_0, str(build), str(tmp_path)])
    dist.init_process_group("gloo", init_method=(tmp_path / "store").as_uri(), rank=1, world_size=2)
    try:
        with Saver(step, 1, tmp_path) as saver:
            saver.save({}, Position(1))
    finally:
        dist.destroy_process_group()
        process.wait()
    assert process.returncode == 0
    assert weights(tmp_path / "step1").keys() >= {"W"}


@pytest.mark.slow
def test_killed_while_it_writes_the_last_whole_checkpoint_is_left(tmp_path: Path) -> None:
    build, out = compiled(tmp_path / "build", *TWO_STAGES, model=WIDE), tmp_path / "out"
    command = [sys.executable, "-m", "dnnc", "train", str(build), "--steps", "100", "--every", "1", "--checkpoint", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    ranks: list[int] = []
    while not ((out / "step2").exists() and any(name.startswith(".step") for name in os.listdir(out))):
        assert process.poll() is None
        ranks = ranks or children_of(process.pid)
    process.kill()
    process.wait()
    assert gone(ranks)
    last = max((path for path in out.glob("step*")), key=lambda path: int(path.name[4:]))
    opened = Checkpoint.open(last)
    opened.verify()
    assert {*opened.files} == {"rank0.safetensors", "rank1.safetensors"}
    resumed = ["train", str(build), "--steps", "1", "--resume", str(last), "--checkpoint", str(out), "-q"]
    assert main(resumed) == 0
    Checkpoint.open(out / f"step{opened.position.step + 1}").verify()
    assert not list(out.glob(".*"))


def test_a_folder_into_which_another_training_writes_is_refused(
    builds: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As long as the other runs: when it was killed, the folder is free."""
    command = ["train", str(builds["one"]), "--checkpoint", str(tmp_path)]
    with subprocess.Popen([sys.executable, "-m", "dnnc", *command, "--steps", "100000"], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert main([*command, "-q"]) == 2
        assert main([*command[:2], "--out", f"{tmp_path}/.", "-q"]) == 2
        other.kill()
        other.communicate()
    told = capsys.readouterr().err
    assert f"--checkpoint {tmp_path}: error[E4836]" in told
    assert f"--out {tmp_path}: error[E4836]" in told
    assert main([*command, "--out", f"{tmp_path}/.", "-q"]) == 0


def test_a_training_that_does_not_start_leaves_no_folder(builds: dict[str, Path], tmp_path: Path) -> None:
    command = ["train", str(builds["one"]), "--checkpoint", str(tmp_path / "new"), "--data", str(tmp_path / "no.npz"), "-q"]
    assert main(command) == 3
    assert not (tmp_path / "new").exists()


def children_of(pid: int) -> list[int]:
    from tests.dnnc.engines.onnxruntime.processes import descendants

    return descendants(pid)


@pytest.mark.slow
def test_resumed_by_any_plan(builds: dict[str, Path], tmp_path: Path) -> None:
    """Two stages, then a mesh of two, then replicas, then one device: the steps of one device without a break."""
    whole, part = tmp_path / "whole", tmp_path / "part"
    assert main(["train", str(builds["one"]), "--steps", "8", "--checkpoint", str(whole), "-q"]) == 0
    resume: list[str] = []
    for number, name in enumerate(("stages", "mesh", "replicas", "one"), 1):
        assert main(["train", str(builds[name]), "--steps", "2", "--checkpoint", str(part), "-q", *resume]) == 0
        resume = ["--resume", str(part / f"step{2 * number}")]
    left, right = weights(whole / "step8"), weights(part / "step8")
    assert left.keys() == right.keys()
    for name in left:
        assert float((left[name] - right[name]).abs().max()) <= 1e-5 * float(left[name].max() - left[name].min())


@pytest.mark.slow
def test_without_a_change_of_plan_the_bits_are_those_without_a_break(builds: dict[str, Path], tmp_path: Path) -> None:
    """Also from one file of whole tensors, as earlier versions wrote it."""
    for name, build in builds.items():
        whole, part = tmp_path / name / "whole", tmp_path / name / "part"
        assert main(["train", str(build), "--steps", "4", "--every", "2", "--checkpoint", str(whole), "-q"]) == 0
        old = part / "step2.safetensors"
        write_checkpoint(old, weights(whole / "step2"), Position(2, 0))
        for path in (whole / "step2", old):
            assert main(["train", str(build), "--steps", "2", "--resume", str(path), "--checkpoint", str(part), "-q"]) == 0
            left, right = weights(whole / "step4"), weights(part / "step4")
            assert all(torch.equal(left[key], right[key]) for key in left.keys() | right.keys())
            shutil.rmtree(part / "step4")
