"""Training on several hosts from one place: the same parameters, a part for each host, ways to fail, going on after a loss."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dnnc.build.elsewhere import device_hosts
from dnnc.cli import main
from dnnc.engines.cluster.agent import ANSWERS, COMMANDS
from dnnc.engines.cluster.agents import LocalAgents
from dnnc.engines.cluster.network.relay import Relay
from dnnc.engines.cluster.starting import Hosts
from dnnc.engines.hosts.options import PORTS
from dnnc.engines.torch.launch.faults import GoesOn
from dnnc.engines.torch.launch.hosts import HostsOfTraining
from dnnc.engines.torch.launch.retries import train_with_retries
from dnnc.engines.torch.launch.telling import Progressed
from dnnc.engines.torch.launch.training import TrainingBuild, TrainOptions
from ir.core.diagnostics import Diagnostic, InvalidInput
from tests.dnnc.engines.cluster.conftest import zeromq  # noqa: F401
from tests.dnnc.engines.onnxruntime.processes import descendants, gone, nothing_left, running
from tests.dnnc.engines.torch.training_builds import compiled, content, two_hosts

pytest.importorskip("torch", reason="the extra 'train' is not installed")
pytest.importorskip("safetensors", reason="the extra 'train' is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("zeromq")]

HERE = "127.0.0.1"
STEPS = 90
"""Of a training. Ranks may be tens of steps ahead of what is told of them, so that many are left when one dies."""
HOST, RANK, TEMPLATE = (f"dnnc.engines.torch.{name}" for name in ("launch.host", "rank", "launch.forking"))


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three stages on host p, whose ranks are forks, and one on host q."""
    folder = tmp_path_factory.mktemp("apart")
    stages = ("--stages", "4", "--replicas", "1", "--mesh", "none")
    return compiled(folder / "build", *stages, topology=two_hosts(folder, "p0 p1 p2 q0"))


@pytest.fixture(scope="module")
def alone(build: Path) -> Path:
    """The checkpoints of ``STEPS`` steps on one host."""
    assert (
        main(["train", str(build), "--emulate", "--steps", str(STEPS), "--checkpoint", str(build.parent / "alone"), "-q"]) == 0
    )
    return build.parent / "alone"


def hosts_of(build: TrainingBuild, cache: Path) -> HostsOfTraining:
    of = device_hosts(build.files)
    return HostsOfTraining(build, Hosts(of, dict.fromkeys(of.values(), HERE), HERE, cache=str(cache)), LocalAgents(module=HOST))


def test_hosts_train_as_one_does_and_get_their_parts_once(build: Path, alone: Path, tmp_path: Path) -> None:
    """A second training sends its samples alone; what is wrong with them is told of their file here."""
    opened, out = TrainingBuild.open(build), tmp_path / "out"
    hosts, steps = hosts_of(opened, tmp_path / "cache"), list[Progressed]()
    with nothing_left():
        hosts.train(TrainOptions(steps=STEPS, checkpoint=out, every=60, out=out), steps.append)
    assert [done.step for done in steps] == list(range(1, 1 + STEPS))
    assert sorted(path.name for path in out.iterdir()) == ["losses.json", "step60", "step90", "trace.json"]
    assert content(out) == content(alone)
    weights = sum(file.stamp.size for file in opened.files.weights.values())
    programs = sum(map(len, opened.files.contents.values()))
    assert weights < hosts.sent_bytes < weights + 2 * programs
    file, x = tmp_path / "samples.npz", np.zeros((8, 784), np.float32)
    x[3, 5] = np.nan
    np.savez(file, x=x, target=np.zeros((8, 10), np.float32))
    hosts = hosts_of(opened, tmp_path / "cache")
    with nothing_left(), pytest.raises(InvalidInput, match=re.escape(str(file))):
        hosts.train(TrainOptions(steps=2, data=str(file)))
    assert 0 < hosts.sent_bytes <= 2 * file.stat().st_size < weights


def test_a_host_ends_cleanly_when_its_starter_has_gone() -> None:
    """Threads of it wait for commands, and for the end of who launched it, which lives on."""
    relay = Relay(HERE)
    settings = {
        "number": 0,
        "host": "p",
        "address": HERE,
        "ports": PORTS,
        "starter": relay.offer,
        "cache": "",
        "cache_bytes": 0,
    }
    agents = LocalAgents(module=HOST)
    relay.meet({"host p": agents.launch(settings)})
    read, commands = os.pipe()
    answers, written = os.pipe()
    relay.send_stream(COMMANDS, "host p", read)
    relay.receive_stream(ANSWERS, "host p", written)
    os.write(commands, b"{}\n")
    assert b"E2218" in os.read(answers, 1 << 16), "a command without an order is refused"
    relay.close()
    assert agents.processes["p"].wait(60) == 0
    agents.close()
    os.close(commands)
    os.close(answers)


def test_training_goes_on_after_losses(build: Path, alone: Path, tmp_path: Path) -> None:
    """After that of a rank before the first checkpoint and that of the process of a host behind it; steps are told once, and
    stale checkpoints are not taken."""
    out, cache = tmp_path / "out", tmp_path / "cache"
    out.mkdir()
    shutil.copytree(alone / "step90", out / "step25")
    kills, every, steps, warnings = {3: RANK, 14: HOST}, list[int](), list[int](), list[Diagnostic]()

    def told(done: Progressed) -> None:
        steps.append(done.step)
        if done.step in kills:
            there = descendants(os.getpid())
            every.extend(there)
            os.kill(running(kills.pop(done.step), there)[-1], signal.SIGKILL)

    def launch(
        opened: TrainingBuild,
        options: TrainOptions,
        heard: Callable[[Progressed], None],
        warned: Callable[[Diagnostic], None],
    ) -> float:
        return hosts_of(opened, cache).train(options, heard)

    options = TrainOptions(steps=STEPS, checkpoint=out, every=6, out=out)
    with nothing_left():
        train_with_retries(launch, TrainingBuild.open(build), options, 2, told, warnings.append)
    assert not kills
    assert gone(every)
    assert steps == list(range(1, 1 + STEPS))
    assert [one.code for one in warnings] == [GoesOn.code] * 2
    first, second = (dict(one.values)["step"] for one in warnings)
    assert first in range(0, 14, 6)
    assert second in range(12, STEPS, 6)
    assert "stage 3 on q0 of host q" in warnings[0].where
    assert "was killed by SIGKILL" in warnings[0].message
    assert "host 'q' has gone while it trained" in warnings[1].message
    assert content(out) == content(alone)


def test_retries_need_checkpoints(build: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", str(build), "--emulate", "--retries", "1"]) == 2
    assert "E4829" in capsys.readouterr().err
    assert main(["train", str(build), "--cluster", "127.0.0.1:1", "--nodes", "2", "--meet", "h:1"]) == 2
    assert "E2228" in capsys.readouterr().err


def test_a_training_on_one_host_goes_on_too(build: Path, alone: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ["--emulate", "--steps", str(STEPS), "--every", "4", "--checkpoint", str(out), "--retries", "1"]
    command = [sys.executable, "-P", "-m", "dnnc", "train", str(build), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as training:
        assert training.stdout is not None
        next(line for line in training.stdout if line.startswith("step 9 "))
        os.kill(running(TEMPLATE, descendants(training.pid))[-1], signal.SIGKILL)
        _, said = training.communicate(timeout=120)
    assert training.returncode == 0, said
    assert "W4828" in said
    assert "was killed by SIGKILL" in said
    assert content(out) == content(alone)
