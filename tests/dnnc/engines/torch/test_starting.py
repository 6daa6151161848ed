"""Ranks as processes: what they inherit, what they leave behind, what they tell of the machine."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from dnnc.build.training import Step
from dnnc.engines.torch.launch.job import Job
from dnnc.engines.torch.launch.starting import Ranks, rank_environment
from dnnc.engines.torch.launch.telling import Listening, Progressed, Telling
from dnnc.onnx import DIALECTS
from ir import parse_module
from ir.core.diagnostics import Diagnostic
from ir.core.module import Module, Stage
from ir.core.topology import Device, DeviceType, Host, Topology
from passes.framework.base import PassContext
from passes.programs.localize import LocalizePass
from tests.dnnc.engines.onnxruntime.processes import children, gone, running
from tests.dnnc.engines.torch.training_builds import compiled, write_source
from tests.golden import ROOT

pytest.importorskip("torch", reason="the extra 'train' is not installed")
pytest.importorskip("safetensors", reason="the extra 'train' is not installed")

OF_ANOTHER_JOB = {
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "7",
    "PET_RDZV_ENDPOINT": "192.0.2.1:1",
    "MASTER_ADDR": "192.0.2.1",
    "MASTER_PORT": "1",
    "RANK": "5",
    "LOCAL_RANK": "5",
    "WORLD_SIZE": "64",
    "GROUP_RANK": "3",
    "ROLE_WORLD_SIZE": "64",
    "TORCHELASTIC_RUN_ID": "other",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "GLOO_SOCKET_IFNAME": "nowhere0",
    "NCCL_SOCKET_IFNAME": "nowhere0",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    "TORCH_GLOO_LAZY_INIT": "1",
    "DNNC_SECRET": "correct horse battery staple",
}

TWO_CORES = """
version = 1
name = "two"
hosts = [{name = "h"}]
links = [{ends = ["h", "a", "b"], bandwidth = "1 GB/s", latency = "10 us"}]

[types.core]
kind = "cpu"
rates = {f32 = "10 GFLOP/s"}
memory_bandwidth = "10 GB/s"

[[devices]]
name = "a"
type = "core"
host = "h"

[[devices]]
name = "b"
type = "core"
host = "h"
"""


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("starting") / "build")


@pytest.fixture
def train(build: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs ``dnnc train``, whose temporary directory is ``tmp_path / "scratch"``."""
    (tmp_path / "scratch").mkdir()
    paths = os.pathsep.join([str(write_source(tmp_path)), *filter(None, [os.environ.get("PYTHONPATH")])])
    found = {"TMPDIR": str(tmp_path / "scratch"), "PYTHONPATH": paths}

    def run(
        *options: str, more: Mapping[str, str] | None = None, before: Callable[[], Any] | None = None
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-m", "dnnc", "train", str(build), *options]
        environment = {**os.environ, **found, **(more or {})}
        return subprocess.run(command, env=environment, preexec_fn=before, capture_output=True, text=True, check=False)

    return run


def left(tmp_path: Path) -> list[str]:
    return os.listdir(tmp_path / "scratch")


def test_what_another_job_left_in_the_environment_reaches_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in OF_ANOTHER_JOB.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HF_HOME", "/data")
    monkeypatch.setenv("TORCH_HOME", "/data")
    environment = rank_environment({"RANK": "1"})
    assert environment["RANK"] == "1"
    assert OF_ANOTHER_JOB.keys() & environment.keys() == {"RANK"}
    assert environment["HF_HOME"] == environment["TORCH_HOME"] == "/data"


def test_what_a_rank_tells_is_heard(tmp_path: Path) -> None:
    marks = os.open(tmp_path / "marks", os.O_RDWR | os.O_CREAT)
    heard, tells = os.pipe()
    telling, listening = Telling(Job(3, 1, 4, -1, tells, marks, "")), Listening(marks)
    assert listening.doing(2) == {}
    telling.doing("recv of stage 1")
    telling.step(Progressed(1, float("nan"), 2.0, 0.5))
    telling.failed(3, [Diagnostic("no", where="x")], lost=True)
    assert listening.hear(heard)
    assert listening.doing(2) == {1: "recv of stage 1"}
    (step,), (failure,) = listening.steps, listening.failures
    assert (step.step, step.pace, step.loss == step.loss) == (1, 2.0, False)
    assert (failure["rank"], failure["code"], failure["lost"]) == (3, 3, True)
    assert failure["diagnostics"] == [{"severity": "error", "message": "no", "where": "x"}]
    os.close(tells)
    assert not listening.hear(heard)
    os.close(heard)
    os.close(marks)


@pytest.mark.slow
def test_neither_another_job_nor_prints_of_a_data_function_change_a_training(
    train: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    alone = train("--steps", "3", "--json", "--data", "misbehaving:good")
    beside = train("--steps", "3", "--json", "--data", "misbehaving:prints", "--timeout", "20", more=OF_ANOTHER_JOB)
    assert (alone.returncode, beside.returncode) == (0, 0), beside.stderr
    assert json.loads(alone.stdout)["losses"] == json.loads(beside.stdout)["losses"]
    assert beside.stderr.count("step 1  loss 5  1 samples/s  1 s\n.") == beside.stderr.count("complains") > 0
    assert left(tmp_path) == []


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="ranks share the only core")
def test_what_a_rank_has_and_leaves(train: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """It has cores of its own, threads of gloo do not preempt it, and what it started ends with it."""
    seconds = str(100000 + os.getpid())
    done = train("--data", "misbehaving:starts", more={"SLEEPS": seconds})
    assert done.returncode == 0, done.stderr
    told = {line for line in done.stderr.splitlines() if line.startswith(("rank ", "policy of "))}
    cores = sorted(os.sched_getaffinity(0))
    half = len(cores) // 2
    policies = {f"policy of gloo: {os.SCHED_BATCH}", f"policy of rank: {os.SCHED_OTHER}"}
    assert told == {f"rank 0 on {cores[:half]}", f"rank 1 on {cores[half : 2 * half]}", *policies}
    assert gone(running(f"sleep\0{seconds}"))


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core")
def test_the_only_rank_has_the_cores_of_its_device(tmp_path: Path) -> None:
    """It had all cores of the host, of which its device, whose seconds the plan predicts, has a part."""
    (tmp_path / "machine.toml").write_text(TWO_CORES)
    alone = ("--stages", "1", "--replicas", "1", "--mesh", "none")
    folder = compiled(tmp_path / "alone", *alone, topology=str(tmp_path / "machine.toml"))
    paths = os.pathsep.join([str(write_source(tmp_path)), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-P", "-m", "dnnc", "train", str(folder), "--data", "misbehaving:places"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False)
    cores = sorted(os.sched_getaffinity(0))
    told = {line for line in done.stderr.splitlines() if line.startswith("rank ")}
    assert told == {f"rank 0 on {cores[: len(cores) // 2]}"}, done.stderr


def test_a_rank_has_the_cores_of_its_device_where_another_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    from dnnc.engines.torch.rank import keep_to_cores

    bound = list[list[int]]()
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(7)))
    monkeypatch.setattr("os.sched_setaffinity", lambda pid, cores: bound.append(cores))
    monkeypatch.setattr("dnnc.engines.torch.rank.local_cores", lambda: 7)
    types = DeviceType("one"), DeviceType("two", cores=2)
    devices = [
        Device(f"cpu{number}", "two" if number == 1 else "one", "there" if number == 3 else "here") for number in range(4)
    ]
    topology = Topology("@t", types, (Host("here"), Host("there")), tuple(devices), (), ())
    stages = [Stage(f"@s{number}", number, (f"cpu{device}",), (), (), ()) for number, device in enumerate((2, 1))]
    step = Step(Module("@m", (topology, *stages)))
    for rank in range(2):
        keep_to_cores(step, Job(rank, rank, 2, -1, -1, -1, "", beside=(0, 1)), 0)
    assert bound == [[4, 5], [2, 3]], "two of the seven cores for each of the three devices of the host"


@pytest.mark.slow
def test_a_current_directory_that_was_removed_is_not_needed(
    train: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    def leave() -> None:
        (tmp_path / "here").mkdir()
        os.chdir(tmp_path / "here")
        (tmp_path / "here").rmdir()

    done = train("--check", "--data", "misbehaving:prints", before=leave)
    assert (done.returncode, left(tmp_path)) == (0, []), done.stderr


@pytest.mark.slow
def test_a_relative_path_in_a_directory_that_was_removed(
    train: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    def leave() -> None:
        (tmp_path / "here").mkdir()
        os.chdir(tmp_path / "here")
        (tmp_path / "here").rmdir()

    done = train("--out", "there", before=leave)
    assert done.returncode == 3
    assert done.stderr == "error[E0104]: the current directory was removed\n  hint: go to another, or name whole paths\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "size", "told"),
    [
        (resource.RLIMIT_AS, 512 << 20, "a process may have 512 MiB of memory here: raise the limit (ulimit -v)"),
        (resource.RLIMIT_FSIZE, 4096, "a limit on the size of files is set (ulimit -f)"),
    ],
)
def test_what_the_machine_refuses_is_no_fault_of_a_program(
    limit: int, size: int, told: str, train: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    done = train(before=lambda: resource.setrlimit(limit, (size, size)))
    assert done.returncode == 3
    assert told in done.stderr


@pytest.mark.slow
def test_a_killed_command_leaves_nothing(build: Path, tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "scratch"), "PYTHONPATH": str(write_source(tmp_path))}
    command = [sys.executable, "-m", "dnnc", "train", str(build), "--steps", "1000", "--data", "misbehaving:slow", "--check"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"step 1 ")
        ranks = children(process.pid)
        assert len(ranks) == 2
        process.send_signal(signal.SIGKILL)
    assert gone(ranks)
    assert left(tmp_path) == []


def test_a_rank_is_reaped_once_its_group_has_its_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, its number is not given to another process or group."""
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"], start_new_session=True)
    signalled: list[bool] = []

    def kill(group: int, number: int) -> None:
        signalled.append(os.waitid(os.P_PID, group, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None)

    monkeypatch.setattr(os, "killpg", kill)
    ranks = Ranks((0,), Listening(-1), [process])
    while not ranks.poll():
        time.sleep(0.01)
    assert signalled == [True]
    assert ranks.ends == {0: 7}


@pytest.mark.parametrize(("memory", "room"), [("", True), (", memory = 2000", True), (", memory = 1999", False)])
def test_a_rank_keeps_freed_memory_where_its_device_has_twice_what_is_planned(memory: str, room: bool) -> None:
    path = ROOT / "passes/differentiate/sharded_update.out.ir"
    text = path.read_text(encoding="utf-8").replace("100000000000.0}}", f"100000000000.0}}{memory}}}")
    from dnnc.engines.torch.rank import has_room

    module = parse_module(text.replace("ops = 3, mesh", "ops = 3, weights = 600, workspace = 400, mesh"), path.name)
    assert has_room(Step(LocalizePass().run(module, PassContext(dialects=DIALECTS))), 1) == room
