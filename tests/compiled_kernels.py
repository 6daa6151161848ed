"""Compiles numba's kernels into their cache, once, before the processes that run tests start: each of them would do it again.

``python -m tests.compiled_kernels`` does so by hand. Two processes share the work: the kernels of latency, and all others.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

LATENCY = [["solve", "{chain}", "--objective", "latency"]]
OTHERS = [
    ["solve", "{chain}", "--objective", "throughput"],
    [
        "solve",
        "{chain}",
        "--objective",
        "throughput",
        "--hierarchy",
        "2x2",
        "--inner-bandwidth",
        "1MB/s",
        "--bandwidth",
        "1kB/s",
    ],
    ["solve", "{chain}", "--objective", "throughput", "--split", "any", "--time-limit", "1"],
    ["solve", "{chain}", "--objective", "throughput", "--split", "any", "--method", "local-search"],
    ["solve", "{profile}", "--straight", "-k", "3", "--bandwidth", "1000000"],
    ["compile", "zoo:gpt2,layers=2,hidden=64,heads=4,vocab=100,seq=8", "-t", "preset:cpu-4", "--mesh", "auto", "--stages", "2"],
]
HALVES = {"latency": LATENCY, "others": OTHERS}


def fill() -> None:
    """Returns when all is compiled. Raises CalledProcessError where a command fails, and shows what it printed."""
    command = [sys.executable, "-m", "tests.compiled_kernels"]
    halves = [subprocess.Popen([*command, half], stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for half in HALVES]
    for process in halves:
        told, _ = process.communicate()
        if process.returncode:
            sys.stderr.buffer.write(told)
            raise subprocess.CalledProcessError(process.returncode, process.args)


def chain(folder: Path) -> Path:
    """A workload of a few nodes, as device-placement JSON."""
    nodes = [
        {
            "id": i,
            "supportedOnFpga": 1,
            "cpuLatency": 10.0,
            "fpgaLatency": 1.0 + i,
            "isBackwardNode": 0,
            "size": 1.0,
            "name": "n",
        }
        for i in range(4)
    ]
    edges = [{"sourceId": i, "destId": i + 1, "cost": 0.1, "size": 100.0} for i in range(3)]
    path = folder / "chain.json"
    path.write_text(json.dumps({"maxSizePerFPGA": 100.0, "maxFPGAs": 2, "maxCPUs": 1, "nodes": nodes, "edges": edges}))
    return path


def _run(commands: list[list[str]]) -> None:
    from dnnc.cli import main
    from tests.dnnc.workloads.workload_files import PROFILE

    with tempfile.TemporaryDirectory() as name:
        places = {"chain": chain(Path(name)), "profile": Path(name, "profile.txt")}
        places["profile"].write_text(PROFILE)
        for command in commands:
            more = ["--plan-only", "-o", str(Path(name, "out"))] if command[0] == "compile" else []
            if code := main([word.format(**places) for word in command] + more):
                raise SystemExit(f"{command} ended with {code}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            fill()
        case [half]:
            _run(HALVES[half])
