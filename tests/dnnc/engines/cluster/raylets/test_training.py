"""``dnnc train --cluster`` on real raylets: a node goes and comes back, and Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from dnnc.cli import main
from tests.dnnc.engines.cluster.raylets.conftest import MACHINES, dnnc, started
from tests.dnnc.engines.cluster.rays import RayCluster
from tests.dnnc.engines.onnxruntime.processes import gone
from tests.dnnc.engines.torch.training_builds import compiled, content

pytest.importorskip("torch", reason="the extra 'train' is not installed")
pytest.importorskip("safetensors", reason="the extra 'train' is not installed")
pytestmark = pytest.mark.slow

EVERY = ("dnnc.engines.torch.rank", "dnnc.engines.torch.launch.forking", "dnnc.engines.torch.launch.host", "ray::TrainAgent")


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three stages on host a, whose ranks are forks, and one on host b."""
    folder = tmp_path_factory.mktemp("apart")
    (folder / "machines.toml").write_text(MACHINES.replace("a{0..1}", "a{0..2}"))
    stages = ("--stages", "4", "--replicas", "1", "--mesh", "none")
    return compiled(folder / "build", *stages, topology=str(folder / "machines.toml"))


def reach(run: subprocess.Popen[str], step: int) -> None:
    assert run.stdout is not None
    next(line for line in run.stdout if line.startswith(f"step {step} "))


PROGRAM = """
import sys
import dnnc
build, out = dnnc.load(sys.argv[1]), sys.argv[3]
told = lambda done: print("step", done.step, "", flush=True)
training = build.train(steps=30, every=7, cluster=sys.argv[2], checkpoint=out, out=out, retries=1, on_step=told)
print(len(training.losses))
"""


def test_a_node_that_goes_and_comes_back_changes_nothing(training: Path, cluster: RayCluster, tmp_path: Path) -> None:
    run = started(cluster, "-c", PROGRAM, str(training), cluster.address, str(tmp_path / "out"))
    reach(run, 9)
    every = [one for words in EVERY for one in cluster.running(words)]
    cluster.start("b")
    out, said = run.communicate(timeout=240)
    assert run.returncode == 0, said
    assert out.endswith("step 30 \n30\n")
    assert "warning[W4828]: training goes on after step " in said
    alone = tmp_path / "alone"
    assert main(["train", str(training), "--emulate", "--steps", "30", "--checkpoint", str(alone), "-q"]) == 0
    assert content(tmp_path / "out") == content(alone)
    assert gone(every)


def test_ctrl_c_leaves_nothing(training: Path, cluster: RayCluster, tmp_path: Path) -> None:
    before = set(cluster.folder.glob("dnnc-scratch*"))
    run = dnnc(cluster, "train", str(training), "--steps", "1000000", "--checkpoint", str(tmp_path / "out"))
    reach(run, 3)
    every = [one for words in EVERY for one in cluster.running(words)]
    assert len(every) == 1 + 3 + 2 + 2
    assert set(cluster.folder.glob("dnnc-scratch*")) - before
    run.send_signal(signal.SIGINT)
    _, said = run.communicate(timeout=120)
    assert run.returncode == 130, said
    assert gone(every)
    assert not list((tmp_path / "out").glob("*step*"))
    deadline = time.monotonic() + 10
    while (left := set(cluster.folder.glob("dnnc-scratch*")) - before) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left
