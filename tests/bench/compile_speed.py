"""How long the command takes, as a person meets it: in processes of their own, imports and start-up included.

Run with ``python -m tests.bench.compile_speed`` from the repository's root. Prints each measure with its target, and as a
multiple of a baseline taken in the same run: Python starting and importing the libraries that a compilation cannot do
without. Processor seconds stand beside the wall clock's, for on a busy machine the wall clock tells of the others. Ends with
1 when a target is missed.
``--runs N`` (default 5): the median of N is what counts.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.bench.machine import header

ROOT = Path(__file__).resolve().parent.parent.parent
GPT2 = ("compile", "zoo:gpt2", "-t", "preset:cpu-4", "--weights", "none", "--json")


BASELINE = ("-c", "import numba, onnx_ir")


@dataclass(frozen=True, slots=True)
class Taken:
    """What one process took: seconds of the wall clock and of the processor, and what it printed."""

    wall: float
    cpu: float
    output: str


def python(*arguments: str, env: Mapping[str, str] | None = None) -> Taken:
    """Runs Python in a process of its own. Raises CalledProcessError when it fails."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    command = [sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, **(env or {})}, check=True)
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Taken(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout)


def median(taken: list[Taken]) -> Taken:
    return sorted(taken, key=lambda one: one.wall)[len(taken) // 2]


def report(name: str, taken: Taken, baseline: Taken, target: float) -> bool:
    """One line; whether the target is met."""
    met = taken.wall < target
    verdict = f"target < {target:g} s   {'ok' if met else 'MISSED'}"
    print(f"{name:<50} {taken.wall:7.3f} s  cpu {taken.cpu:7.3f} s  {taken.cpu / baseline.cpu:6.2f}x   {verdict}")
    return met


def main() -> int:
    """Measures and prints; 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    print(header())
    met = []
    with tempfile.TemporaryDirectory() as folder:
        cold = {"NUMBA_CACHE_DIR": str(Path(folder) / "numba"), "XDG_CACHE_HOME": str(Path(folder) / "cache")}
        compile_gpt2 = ("-m", "dnnc", *GPT2, "-o", str(Path(folder) / "build"))
        first = python(*compile_gpt2, env=cold)
        rounds = [(python(*BASELINE), python("-m", "dnnc", "--help"), python(*compile_gpt2, env=cold)) for _ in range(runs)]
        baseline, help_, warm = (median(list(taken)) for taken in zip(*rounds, strict=True))
        print(f"{'baseline: python imports numba and onnx_ir':<50} {baseline.wall:7.3f} s  cpu {baseline.cpu:7.3f} s")
        met.append(report("first run ever: compile zoo:gpt2, empty JIT cache", first, baseline, 40.0))
        met.append(report("dnnc --help", help_, baseline, 0.3))
        met.append(report("compile zoo:gpt2, 4 devices, weights not written", warm, baseline, 3.0))
        parts = json.loads(warm.output)["seconds"]
        print("  inside: " + ", ".join(f"{name} {value:.3f}" for name, value in parts.items()))
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
