"""What dnnc starts listens on loopback, or on the address that hosts meet at, and nowhere else."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from dnnc.cli import main
from tests.dnnc.engines.onnxruntime.listening import listened, listeners
from tests.dnnc.engines.torch.test_meeting import free_port
from tests.dnnc.engines.torch.training_builds import compiled, two_hosts

pytest.importorskip("torch", reason="the extra 'train' is not installed")
pytest.importorskip("safetensors", reason="the extra 'train' is not installed")

DNNC = [sys.executable, "-m", "dnnc"]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("sockets") / "build")


@pytest.fixture(scope="module")
def of_two_hosts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hosts")
    return compiled(folder / "build", topology=two_hosts(folder, "p0 q0"))


@pytest.fixture
def secret(tmp_path: Path) -> Callable[[], str]:
    """Makes files with a secret each."""

    def made() -> str:
        path = tmp_path / secrets.token_hex(4)
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex())
        return str(path)

    return made


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::1", "::"])
def test_sockets_are_seen(address: str) -> None:
    with socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET):
        assert address in listeners(os.getpid())


@pytest.mark.slow
def test_a_run_listens_nowhere(tmp_path: Path) -> None:
    built = tmp_path / "built"
    assert main(["compile", "zoo:mlp", "-t", "preset:cpu-2", "--stages", "2", "-q", "-o", str(built)]) == 0
    assert listened([[*DNNC, "run", str(built), "--microbatches", "50"]]) == ([0], set())


@pytest.mark.slow
def test_a_training_listens_on_loopback(build: Path) -> None:
    """From its start until it trains, however busy this machine is."""
    trains = threading.Event()

    def hear(told: IO[str]) -> None:
        for line in told:
            if line.startswith("step 3 "):
                trains.set()
        trains.set()

    with subprocess.Popen([*DNNC, "train", str(build), "--steps", "1000000"], stdout=subprocess.PIPE, text=True) as training:
        thread = threading.Thread(target=hear, args=(training.stdout,))
        thread.start()
        addresses = set[str]()
        while not trains.wait(0.05):
            addresses |= listeners(training.pid)
        addresses |= listeners(training.pid)
        training.send_signal(signal.SIGINT)
        thread.join()
    assert training.returncode == 130
    assert addresses == {"127.0.0.1"}


@pytest.mark.slow
def test_hosts_listen_where_they_meet(of_two_hosts: Path, tmp_path: Path, secret: Callable[[], str]) -> None:
    """Two commands on this machine, with a rank each: the first host listens on the address of --meet alone."""
    command = [
        *DNNC,
        "train",
        str(of_two_hosts),
        "--steps",
        "3",
        "--nodes",
        "2",
        "--meet",
        f"127.0.0.2:{free_port('127.0.0.2')}",
    ]
    command += ["--secret", secret(), "--out", str(tmp_path)]
    codes, addresses = listened([[*command, "--node", str(node)] for node in (0, 1)])
    assert codes == [0, 0]
    assert "127.0.0.2" in addresses
    assert addresses <= {"127.0.0.1", "127.0.0.2"}
    assert [entry["step"] for entry in json.loads((tmp_path / "losses.json").read_text())] == [1, 2, 3]
    trace = json.loads((tmp_path / "trace.json").read_text())
    names = [event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"]
    assert names == ["predicted", "measured"]


@pytest.mark.slow
def test_hosts_of_two_secrets_train_nothing(of_two_hosts: Path, secret: Callable[[], str]) -> None:
    command = [*DNNC, "train", str(of_two_hosts), "--nodes", "2", "--meet", f"127.0.0.1:{free_port()}", "--timeout", "10"]
    codes, addresses = listened([[*command, "--node", str(node), "--secret", secret()] for node in (0, 1)])
    assert (codes, addresses) == ([3, 3], {"127.0.0.1"})


MEASURES = """
import os, sys
from pathlib import Path
from dnnc.machines.probes import probes
core = min(os.sched_getaffinity(0))
with probes([[core], [core]], Path(sys.argv[1]), 0) as running:
    running.gloo((0, 1), [("gloo", 1 << 10), ("reduced", 1 << 16)], rounds=1000)
"""


@pytest.mark.slow
def test_a_measurement_listens_on_loopback(tmp_path: Path) -> None:
    """Its two ranks, as ``dnnc topology measure`` starts them; all else that it measures takes minutes and needs no socket."""
    assert listened([[sys.executable, "-c", MEASURES, str(tmp_path)]]) == ([0], {"127.0.0.1"})
