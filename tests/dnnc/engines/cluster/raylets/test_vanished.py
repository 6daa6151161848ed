"""Runs on real raylets on this machine whose actors, processes and nodes are killed."""

from __future__ import annotations

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
from tests.dnnc.engines.cluster.raylets.conftest import WORKER, dnnc
from tests.dnnc.engines.cluster.rays import RayCluster
from tests.dnnc.engines.onnxruntime.processes import gone

pytestmark = pytest.mark.slow
MANY, ENDLESS = "2500", "1000000"
"""Microbatches that take several seconds, and that no test waits for."""


KILLED = """
import os, random, signal, sys, time
from pathlib import Path
import numpy as np
import dnnc
build, generator, kills = dnnc.load(sys.argv[1]), np.random.default_rng(0), random.Random(7)
name = build.inputs[0].name
items = [{name: generator.standard_normal(build.inputs[0].shape).astype(np.float32)} for _ in range(200)]
with build.start(emulate=True) as here:
    right = list(here.map(items))
disturbed = dict(zip(kills.sample(range(200), 3), ["both", "one", "process"]))

def actor(process):
    parent = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    if b"NodeAgent" not in Path(f"/proc/{parent}/cmdline").read_bytes():
        raise OSError("its actor has ended")
    return parent

def victims(session, what):
    while True:
        try:
            processes = session.processes
            actors = sorted(set(map(actor, processes)))
            if len(actors) == 2:
                return actors if what == "both" else [kills.choice(actors if what == "one" else processes)]
        except OSError:  # all are ended, or start, just now
            pass
        time.sleep(0.01)

killed = []
with build.start(cluster=sys.argv[2]) as session:
    def fed():
        for number, item in enumerate(items):
            if number in disturbed:
                for victim in victims(session, disturbed[number]):
                    os.kill(victim, signal.SIGKILL)
                    killed.append(victim)
            yield item
    found = list(session.map(fed()))
found, right = ([[value.tobytes() for value in one] for one in outputs] for outputs in (found, right))
print(len(killed), found == right)
"""


def test_actors_are_killed_again_and_again(build: Path, cluster: RayCluster) -> None:
    """One or both, and a process that computes, at random moments: a session gives the outputs of one host."""
    command = [sys.executable, "-P", "-c", KILLED, str(build), cluster.address]
    done = subprocess.run(command, env=cluster.environment, capture_output=True, text=True, check=False, timeout=550)
    assert done.stdout == "4 True\n", done.stderr[-3000:]
    assert gone(cluster.running(WORKER))


def begun(cluster: RayCluster, build: Path, runs: list[list[str]]) -> list[subprocess.Popen[str]]:
    """Runs that work on microbatches: for each of them, a process waits for another once or more."""
    started = [dnnc(cluster, "run", str(build), "-q", *options) for options in runs]
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        waits = list(map(waited, cluster.running(WORKER)))
        if len(waits) == 3 * len(runs) and min(waits) > 500:
            return started
        time.sleep(0.05)
    raise AssertionError([run.communicate()[1] for run in started])


def waited(process: int) -> int:
    """How often a process has waited for something."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


def test_a_run_goes_on_when_a_node_comes_back(build: Path, cluster: RayCluster, tmp_path: Path) -> None:
    """The outputs are those of one host, and the trace shows the gap, between what came before and after."""
    assert main(["run", str(build), "--emulate", "-m", MANY, "--outputs", str(tmp_path / "here.npz"), "-q"]) == 0
    (run,) = begun(cluster, build, [["-m", MANY, "--outputs", str(tmp_path / "there.npz"), "--trace"]])
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


def test_a_node_and_the_head_that_stay_away(build: Path, cluster: RayCluster) -> None:
    """A run ends once it has waited for a node as long as it may. Others wait longer: one until it is interrupted, one until
    the head of the cluster has gone."""
    waits = [["-m", ENDLESS, "--wait", seconds] for seconds in ("3", "100", "100")]
    short, long, longer = begun(cluster, build, waits)
    workers = cluster.running(WORKER)
    os.kill(cluster.raylet("b"), signal.SIGKILL)
    assert gone(workers)
    said = short.communicate(timeout=60)[1]
    assert short.returncode == 3, said
    assert "stage 2 on b0 of host b: error[E2205]" in said
    assert "host 'b' was not back in time" in said
    long.send_signal(signal.SIGINT)
    said = long.communicate(timeout=60)[1]
    assert long.returncode == 130, said
    assert cluster.running(WORKER) == []
    cluster.end("a")
    said = longer.communicate(timeout=100)[1]
    assert longer.returncode == 3, said
    assert "E2226" in said
