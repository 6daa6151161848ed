"""Each host of a training runs the devices that the plan has on it, and is told when another has something else or ends."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from dnnc.cli import main
from ir.core.diagnostics import UsageError
from tests.dnnc.engines.torch.test_meeting import free_port
from tests.dnnc.engines.torch.training_builds import compiled, two_hosts

pytest.importorskip("torch", reason="the extra 'train' is not installed")
pytest.importorskip("safetensors", reason="the extra 'train' is not installed")

from dnnc.engines.torch.checkpoint import Checkpoint
from dnnc.engines.torch.launch.training import TrainingBuild, TrainOptions

OPTIONS = TrainOptions(nodes=2, meeting="127.0.0.1:29500")


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build of three stages on host p and one on host q."""
    folder = tmp_path_factory.mktemp("uneven")
    stages = ("--stages", "4", "--replicas", "1", "--mesh", "none")
    return compiled(folder / "build", *stages, topology=two_hosts(folder, "p0 p1 p2 q0"))


def test_a_host_takes_the_ranks_of_its_devices(uneven: Path) -> None:
    build = TrainingBuild.open(uneven)
    taken = {node: build.ranks_of(replace(OPTIONS, node=node)) for node in (0, 1)}
    assert sorted([*taken[0], *taken[1]]) == [0, 1, 2, 3]
    assert taken[0][0] == 0
    hosts = {node: {build.devices[rank][0] for rank in ranks} for node, ranks in taken.items()}
    assert sorted(hosts.values(), key=sorted) == [{"p"}, {"q"}]
    assert {len(ranks) for ranks in taken.values()} == {1, 3}
    assert {node: build.host(ranks[0]) for node, ranks in taken.items()} == {node: min(names) for node, names in hosts.items()}


def test_emulated_hosts_take_equal_numbers_of_ranks(uneven: Path) -> None:
    build = TrainingBuild.open(uneven)
    assert [[*build.ranks_of(replace(OPTIONS, node=node, emulate=True))] for node in (0, 1)] == [[0, 1], [2, 3]]


def test_another_number_of_hosts_than_the_plan_has(uneven: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match=r"--nodes 4: error\[E4806\]: the plan is for 2 hosts"):
        TrainingBuild.open(uneven).ranks_of(replace(OPTIONS, nodes=4))
    for nodes in ("1", "4"):
        assert main(["train", str(uneven), "--nodes", nodes]) == 3
        assert f"it is for 2 hosts, p, q, and runs on {'one machine' if nodes == '1' else nodes}" in capsys.readouterr().err
    alone = compiled(tmp_path / "alone")
    assert main(["train", str(alone), "--nodes", "2", "--meet", "127.0.0.1:29500"]) == 3
    assert "it is for one host, and runs on 2\n  hint: leave out --nodes" in capsys.readouterr().err


def test_hosts_claim_their_checkpoint_and_their_data(uneven: Path) -> None:
    checkpoint = Checkpoint.open(uneven / "weights.safetensors")
    other = replace(checkpoint, digest="0" * 64)
    kinds = [OPTIONS, replace(OPTIONS, resume=checkpoint), replace(OPTIONS, resume=other)]
    claims = [options.alike("")["--resume"] for options in kinds]
    assert len(set(claims)) == 3
    assert "step 0, seed 0, SHA-256 " in claims[1]
    data = [replace(OPTIONS, data=data).alike("")["--data"] for data in ("synthetic", "a.npz", "b.npz", "m:f", "m:g")]
    assert data == ["synthetic", "a file of samples", "a file of samples", "m:f", "m:g"]


def command(build: Path, folder: Path, *more: str) -> list[list[str]]:
    """That of each of two hosts."""
    secret = folder / "secret"
    secret.touch(mode=0o600)
    secret.write_text(secrets.token_hex())
    both = [sys.executable, "-m", "dnnc", "train", str(build), "--nodes", "2", "--meet", f"127.0.0.1:{free_port()}"]
    return [[*both, "--secret", str(secret), "--timeout", "60", *more, "--node", str(node)] for node in (0, 1)]


@pytest.mark.slow
def test_hosts_of_unequal_numbers_of_devices_train(uneven: Path, tmp_path: Path) -> None:
    running = [subprocess.Popen(one) for one in command(uneven, tmp_path, "--steps", "3", "--out", str(tmp_path))]
    assert [one.wait(120) for one in running] == [0, 0]
    assert len(json.loads((tmp_path / "losses.json").read_text())) == 3


@pytest.mark.slow
@pytest.mark.parametrize("ends", [0, 1])
def test_the_end_of_another_host(ends: int, uneven: Path, tmp_path: Path) -> None:
    """Nor does an argument of a process say where the store is."""
    out = tmp_path / "out"
    running = [
        subprocess.Popen(one, stderr=subprocess.PIPE, text=True)
        for one in command(uneven, tmp_path, "--steps", "1000000", "--out", str(out))
    ]
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and not (out / "losses.json").exists():
        time.sleep(0.1)
    told = b""
    for process in Path("/proc").iterdir() if Path("/proc").exists() else ():
        with suppress(OSError):
            line = (process / "cmdline").read_bytes()
            told += line if str(uneven).encode() in line and b"--job" in line else b""
    assert b"127.0.0.1" not in told
    assert told or not Path("/proc").exists(), "no rank was found"
    os.kill(running[ends].pid, signal.SIGKILL)
    _, words = running[1 - ends].communicate(timeout=90)
    running[ends].communicate(timeout=90)
    assert running[1 - ends].returncode == 3, words
    assert "error[E4803]: it lost a rank on another host, while " in words
