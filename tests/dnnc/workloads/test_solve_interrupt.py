"""Ctrl-C during ``dnnc solve``: the best plan so far, with a bound that holds, and the exit code of an interrupt; also where
Ctrl-C falls while llvmlite compiles a kernel."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest


def chains(path: Path, count: int, length: int, *, backward: bool) -> None:
    """A workload of ``count`` chains between a source and a sink, no two nodes alike, as device-placement JSON; with mates of
    every node where there is a backward part. Its lattice has over ``length ** count`` ideals."""
    rng = random.Random(1)
    nodes, edges = [], []

    def node(work: float, mate: bool) -> int:
        identity = len(nodes)
        times = {"cpuLatency": 10 * work, "fpgaLatency": work}
        nodes.append({"id": identity, "supportedOnFpga": 1, **times, "isBackwardNode": int(mate), "size": 1.0, "name": "n"})
        return identity

    def edge(source: int, target: int) -> None:
        edges.append({"sourceId": source, "destId": target, "cost": 0.01 * (1 + source % 7)})

    source, sink = node(1.0, False), node(1.0, False)
    for _ in range(count):
        last = source
        for _ in range(length):
            here = node(rng.uniform(1, 3), False)
            edge(last, here)
            last = here
        edge(last, sink)
    if backward:
        mates = {v["id"]: node(2 * v["fpgaLatency"], True) for v in list(nodes)}
        for forward, mate in mates.items():
            nodes[forward]["colorClass"] = nodes[mate]["colorClass"] = forward
        for made in list(edges):
            edge(mates[made["destId"]], mates[made["sourceId"]])
    document = {"maxSizePerFPGA": 1e9, "maxFPGAs": 5, "maxCPUs": 1, "nodes": nodes, "edges": edges}
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("objective", "backward", "step"),
    [
        pytest.param("throughput", False, "partition: intervals", marks=pytest.mark.slow),
        pytest.param("training", True, "partition: intervals", marks=pytest.mark.slow),
        pytest.param("latency", False, "bound with nodes left out", marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_returns_the_best_plan_and_its_bound(tmp_path: Path, objective: str, backward: bool, step: str) -> None:
    """Interrupted once the search tells this step, when it has a plan and a bound."""
    workload = tmp_path / "chains.json"
    chains(workload, 16, 8, backward=backward)
    command = [sys.executable, "-m", "dnnc", "solve", str(workload), "--objective", objective, "--json", "-v"]
    with subprocess.Popen(
        [*command, "--time-limit", "300"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert any(step in line for line in process.stderr), "the search was over too soon for this test"
        process.send_signal(signal.SIGINT)
        out, told = process.communicate(timeout=30)
    assert process.returncode == 130, told
    assert "Traceback" not in told
    result = json.loads(out)
    assert result["interrupted"]
    assert result["status"] == "within-gap"
    assert result["reason"].endswith("; interrupted")
    work = sum(node["fpgaLatency"] for node in json.loads(workload.read_text())["nodes"])
    least = 0 if objective == "latency" else work / 6
    assert least < result["bound"] < result["objective"] < work
    (tmp_path / "result.json").write_text(out)
    checked = subprocess.run(
        [sys.executable, "-m", "dnnc", "verify-plan", str(workload), str(tmp_path / "result.json")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr


IN_A_CALL_FROM_LLVM = """
import os, signal, sys
from numba.core.codegen import CPUCodeLibrary as Library
import dnnc.cli

told = Library._object_compiled_hook

def interrupted(*arguments):
    os.kill(os.getpid(), signal.SIGINT)
    return told(*arguments)

Library._object_compiled_hook = interrupted
sys.exit(dnnc.cli.main())
"""


def test_ctrl_c_waits_until_llvm_has_compiled_a_kernel(tmp_path: Path) -> None:
    workload = tmp_path / "chains.json"
    chains(workload, 3, 3, backward=False)
    done = subprocess.run(
        [sys.executable, "-c", IN_A_CALL_FROM_LLVM, "solve", str(workload)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "empty")},
    )
    assert (done.returncode, done.stderr.splitlines()[-1]) == (130, "dnnc: interrupted"), done.stderr
    assert "llvmlite" not in done.stderr
