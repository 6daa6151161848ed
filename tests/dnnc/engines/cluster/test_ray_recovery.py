"""Runs on real raylets on this machine whose actors, processes and nodes are killed. Slow, and skipped where Ray is not
installed."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from dnnc.cli import main
from tests.dnnc.engines.cluster.rays import RayCluster, ray_cluster
from tests.dnnc.engines.cluster.test_ray import MACHINES, WORKER, _nothing_left, build, cluster, dnnc
from tests.dnnc.engines.onnxruntime.processes import gone

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'dnnc[cluster]'"),
]
__all__ = ["_nothing_left", "build", "cluster"]
MANY = "20000"
"""Microbatches that take several seconds."""


KILLED = """
import os, random, signal, sys
from pathlib import Path
import numpy as np
import dnnc
build, generator, kills = dnnc.load(sys.argv[1]), np.random.default_rng(0), random.Random(int(sys.argv[3]))
name = build.inputs[0].name
items = [{name: generator.standard_normal(build.inputs[0].shape).astype(np.float32)} for _ in range(200)]
with build.start(emulate=True) as here:
    right = list(here.map(items))
disturbed = set(kills.sample(range(200), int(sys.argv[4])))
def parent(process):
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
with build.start(cluster=sys.argv[2]) as session:
    def fed():
        for number, item in enumerate(items):
            while number in disturbed:
                try:
                    victim = kills.choice(session.processes)
                    os.kill(parent(victim) if sys.argv[5] == "actor" else victim, signal.SIGKILL)
                    break
                except (IndexError, OSError):  # all are ended, or start, just now
                    pass
            yield item
    found = list(session.map(fed()))
print([[value.tobytes() for value in one] for one in found] == [[value.tobytes() for value in one] for one in right])
"""


def killed(cluster: RayCluster, build: Path, times: int, what: str) -> None:
    """Asserts that a session gives the outputs of one host, though something of it is killed at random moments."""
    command = [sys.executable, "-P", "-c", KILLED, str(build), cluster.address, "7", str(times), what]
    done = subprocess.run(command, env=cluster.environment, capture_output=True, text=True, check=False, timeout=550)
    assert done.stdout == "True\n", done.stderr[-3000:]
    assert gone(cluster.running(WORKER))


def test_twenty_actors_are_killed(build: Path, cluster: RayCluster) -> None:
    killed(cluster, build, 20, "actor")


def test_members_of_a_mesh_over_hosts_are_killed(cluster: RayCluster, tmp_path: Path) -> None:
    (tmp_path / "machines.toml").write_text(MACHINES.replace("{a,b}", "a").replace("a{0..1}", "a0") + '[[hosts]]\nname = "b"\n')
    options = ["-t", str(tmp_path / "machines.toml"), "-o", str(tmp_path / "build"), "--mesh", "2", "--no-report", "-q"]
    assert main(["compile", "zoo:mlp,layers=4,hidden=256,batch=4", *options]) == 0
    killed(cluster, tmp_path / "build", 4, "process")


def begun(cluster: RayCluster, build: Path, *options: str) -> subprocess.Popen[str]:
    """A run that works on microbatches: for each of them, a process waits for another once or more."""
    run = dnnc(cluster, "run", str(build), "-m", MANY, "-q", *options)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        waits = list(map(waited, cluster.running(WORKER)))
        if len(waits) == 3 and min(waits) > 2000:
            return run
        time.sleep(0.05)
    raise AssertionError(run.communicate()[1])


def waited(process: int) -> int:
    """How often a process has waited for something."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


@pytest.mark.parametrize("what", ["process", "node"])
def test_a_run_goes_on(what: str, build: Path, cluster: RayCluster, tmp_path: Path) -> None:
    """The outputs are those of one host, and the trace shows the gap, between what came before and after."""
    assert main(["run", str(build), "--emulate", "-m", MANY, "--outputs", str(tmp_path / "here.npz"), "-q"]) == 0
    run = begun(cluster, build, "--outputs", str(tmp_path / "there.npz"), "--trace")
    if what == "process":
        os.kill(cluster.running(WORKER)[-1], signal.SIGKILL)
    else:
        os.kill(cluster.raylet("b"), signal.SIGKILL)
        cluster.start("b")
    said = run.communicate(timeout=200)[1]
    assert run.returncode == 0, said
    with np.load(tmp_path / "here.npz") as here, np.load(tmp_path / "there.npz") as there:
        assert all(here[name].tobytes() == there[name].tobytes() for name in here.files)
    events = json.loads((build / "trace.json").read_text())["traceEvents"]
    away = [event for event in events if event["name"].startswith("away")]
    assert len(away) == 3
    computed = [event["ts"] for event in events if event.get("cat") == "F" and event["pid"] == away[0]["pid"]]
    assert max(computed) > max(event["ts"] + event["dur"] for event in away)
    assert gone(cluster.running(WORKER))


@pytest.mark.parametrize("how", ["not back", "interrupt"])
def test_a_node_that_stays_away(how: str, build: Path, cluster: RayCluster) -> None:
    run = begun(cluster, build, "--wait", "5" if how == "not back" else "100")
    workers = cluster.running(WORKER)
    os.kill(cluster.raylet("b"), signal.SIGKILL)
    assert gone(workers)
    if how == "interrupt":
        run.send_signal(signal.SIGINT)
    said = run.communicate(timeout=60)[1]
    if how == "interrupt":
        assert run.returncode == 130, said
    else:
        assert run.returncode == 3, said
        assert "stage 2 on b0 of host b: error[E2205]" in said
        assert "host 'b' was not back in time" in said
    assert cluster.running(WORKER) == []
    cluster.start("b")


def test_the_head_does_not_come_back(build: Path) -> None:
    with ray_cluster(("a", "b")) as cluster:
        run = begun(cluster, build)
        cluster.end("a")
        said = run.communicate(timeout=100)[1]
    assert run.returncode == 3, said
    assert "E2226" in said
