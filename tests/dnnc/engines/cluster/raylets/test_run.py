"""``dnnc run --cluster`` on real raylets on this machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dnnc import load
from dnnc.build.build import Build
from dnnc.cli import main
from tests.dnnc.check.test_check import break_stage
from tests.dnnc.engines.cluster.raylets.conftest import MACHINES, WORKER, dnnc, started
from tests.dnnc.engines.cluster.rays import RayCluster, ray_cluster
from tests.dnnc.engines.onnxruntime.processes import gone

pytestmark = pytest.mark.slow


def test_two_runs_at_once_give_the_outputs_of_one_host(build: Path, cluster: RayCluster, tmp_path: Path) -> None:
    assert main(["run", str(build), "--emulate", "-m", "8", "--outputs", str(tmp_path / "here.npz"), "-q"]) == 0
    runs = [dnnc(cluster, "run", str(build), "-m", "8", "--outputs", str(tmp_path / f"{n}.npz"), "-q") for n in range(2)]
    said = [run.communicate(timeout=120)[1] for run in runs]
    for number, run in enumerate(runs):
        assert run.returncode == 0, said
        with np.load(tmp_path / "here.npz") as here, np.load(tmp_path / f"{number}.npz") as there:
            assert all(here[name].tobytes() == there[name].tobytes() for name in here.files)
    assert gone(cluster.running(WORKER))


def test_a_language_model_on_a_cluster(cluster: RayCluster, tmp_path: Path) -> None:
    machines, folder = tmp_path / "machines.toml", str(tmp_path / "build")
    machines.write_text(MACHINES.replace("a{0..1}", "a0"))
    model = "zoo:llama-7b,layers=2,hidden=64,heads=4,kv_heads=2,ffn=128,vocab=256,cache=inplace,context=32"
    assert main(["compile", model, "-t", str(machines), "-o", folder, "--context", "32", "--stages", "2", "-q"]) == 0
    command = dnnc(cluster, "generate", folder, "--ids", "1,2,3", "--seed", "4", "--temperature", "0.9", "-q")
    found, said = command.communicate(timeout=120)
    assert command.returncode == 0, said
    with load(folder).start(emulate=True) as session:
        assert found == ",".join(map(str, session.generate([1, 2, 3], temperature=0.9, seed=4))) + "\n"
    assert gone(cluster.running(WORKER))


CHECKED = """
import sys
import dnnc
from dnnc.cli import main
right, broken, address = sys.argv[1:]
result = dnnc.load(right).check(cluster=address, samples=3)
print(result)
print([(one.kind, one.stage, one.alone, one.verdict) for one in result.report.comparisons])
sys.exit(main(["check", broken, "--json", "-q", "--cluster", address]))
"""


def test_a_check_on_a_cluster(build: Path, cluster: RayCluster, tmp_path: Path) -> None:
    """What is right passes, and a stage that computes something else diverges there."""
    broken = break_stage(Build.open(shutil.copytree(build, tmp_path / "broken")), 1).folder
    checks = started(cluster, "-c", CHECKED, str(build), str(broken), cluster.address)
    out, said = checks.communicate(timeout=120)
    assert checks.returncode == 5, said
    verdict, comparisons, wrong = out.split("\n", 2)
    assert "1 of 1 tensors on 3 x random inputs" in verdict
    assert comparisons == "[('output', 2, None, 'ok')]"
    assert "E1211" in said
    found = [(one["kind"], one["stage"], one["alone"], one["verdict"]) for one in json.loads(wrong)["comparisons"]]
    assert found == [("output", 2, None, "diverges")]
    assert gone(cluster.running(WORKER))


def test_the_machines_are_looked_at_before(build: Path, cluster: RayCluster) -> None:
    look = dnnc(cluster, "cluster", "check", "-t", str(build.parent / "machines.toml"), "--json")
    out, said = look.communicate(timeout=120)
    assert look.returncode == 0, said
    hosts = json.loads(out)["hosts"]
    assert [host["host"] for host in hosts] == ["a", "b"]
    for host in hosts:
        assert host["cores"] >= 1
        assert "CPUExecutionProvider" in host["providers"]
        assert abs(host["clock"]["ahead"]) <= 2 * host["clock"]["within"] + 0.01
        assert host["missing"] == []


def test_what_is_wrong_with_the_cluster_is_said(build: Path, cluster: RayCluster, tmp_path: Path) -> None:
    run = dnnc(cluster, "run", str(build), "--host", "a=192.0.2.99")
    assert "E2213" in run.communicate(timeout=60)[1]
    assert run.returncode == 2
    without = {key: value for key, value in cluster.environment.items() if key != "RAY_AUTH_TOKEN"}
    run = dnnc(replace(cluster, environment={**without, "HOME": str(tmp_path)}), "run", str(build))
    assert "no authentication token was found" in run.communicate(timeout=60)[1]
    assert run.returncode == 3


STOPPED = """
import os, signal, sys
from contextlib import contextmanager
from dnnc.cli import main
from dnnc.engines.cluster.nodes import ray_cluster
from dnnc.engines.cluster.nodes.matching import HostNeeds
from dnnc.engines.cluster.nodes.ray_cluster import RayAgents, connected
from ir.core.diagnostics import DnncError
address, raylet, build = sys.argv[1], int(sys.argv[2]), sys.argv[3]
ray_cluster._GREET_SECONDS = ray_cluster._WATCH_SECONDS = 2.0

@contextmanager
def stopped():
    os.kill(raylet, signal.SIGSTOP)
    try:
        yield
    except DnncError as error:
        print(type(error).__name__, *error.diagnostics)
    finally:
        os.kill(raylet, signal.SIGCONT)

with connected(address) as (ray, nodes, _):
    named = {next(name for name in "ab" if f"host:{name}" in node.resources): node for node in nodes}
    for ask in (RayAgents.require_versions, lambda agents: agents.ask("b", "facts")):
        with stopped():
            agents = RayAgents(ray, named, {name: HostNeeds(name, 1) for name in named}, "here")
            ask(agents)
        agents.close()
    with stopped():
        print(main(["run", build, "--cluster", address, "-q"]))
"""


def test_a_node_that_is_stopped_is_named(build: Path, cluster: RayCluster) -> None:
    """While it is asked, and before a run, which does not wait for it: its system still accepts connections, and Ray takes it
    to be there for a minute."""
    done = started(cluster, "-c", STOPPED, cluster.address, str(cluster.raylet("b")), str(build))
    out, said = done.communicate(timeout=100)
    asked = ("its actor was started and asked for versions", "it was asked what it has")
    told = [f"StageStopped here: error[E2205]: host 'b' has gone while {doing}" for doing in asked]
    assert [line for line in out.splitlines() if line == "3" or line.startswith("StageStopped")] == [*told, "3"], said
    assert "E2214" in said
    assert "no node is left for host 'b'" in said


@pytest.mark.parametrize("how", ["interrupt", "kill the agent"])
def test_a_run_that_ends_early_leaves_nothing(how: str, build: Path, cluster: RayCluster) -> None:
    run = dnnc(cluster, "run", str(build), "-m", "1000000", "-q", "--wait", "0")
    deadline = time.monotonic() + 60
    while len(cluster.running(WORKER)) < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    workers = cluster.running(WORKER)
    assert len(workers) == 3
    if how == "interrupt":
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=60)
        assert run.returncode == 130
    else:
        agents = {int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1]) for worker in workers}
        os.kill(max(agents), signal.SIGKILL)
        said = run.communicate(timeout=60)[1]
        assert run.returncode == 3, said
        assert "has gone while" in said
    assert gone(workers)


def test_a_cluster_without_a_token_is_refused(build: Path) -> None:
    with ray_cluster(("a",), token=False) as cluster:
        run = dnnc(cluster, "run", str(build))
        said = run.communicate(timeout=60)[1]
    assert run.returncode == 3
    assert "E2211" in said
    assert "export RAY_AUTH_MODE=token" in said
