"""How long the command takes, as a person meets it: in processes of their own, imports and start-up included.

Run with ``python -m tests.bench.compile_speed`` from the repository's root. Prints each measure with its target; ends with 1
when one is missed. ``--runs N`` (default 5): the median of N is what counts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tests.bench.machine import header

ROOT = Path(__file__).resolve().parent.parent.parent
GPT2 = ("compile", "zoo:gpt2", "-t", "preset:cpu-4", "--weights", "none", "--json")


def dnnc(*arguments: str, env: Mapping[str, str] | None = None) -> tuple[float, str]:
    """Wall-clock seconds of one command, and what it printed. Raises CalledProcessError when it fails."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "dnnc", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, **(env or {})}, check=True)
    return time.perf_counter() - start, done.stdout


def report(name: str, seconds: float, target: float) -> bool:
    """One line; whether the target is met."""
    met = seconds < target
    print(f"{name:<58} {seconds:8.3f} s   target < {target:g} s   {'ok' if met else 'MISSED'}")
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
        out = str(Path(folder) / "build")
        seconds, _ = dnnc(*GPT2, "-o", out, env=cold)
        met.append(report("first run ever: compile zoo:gpt2, empty JIT cache", seconds, 40.0))
        met.append(report("dnnc --help", statistics.median(dnnc("--help")[0] for _ in range(runs)), 0.3))
        timed = [dnnc(*GPT2, "-o", out, env=cold) for _ in range(runs)]
        met.append(report("compile zoo:gpt2, 4 devices, weights not written", statistics.median(s for s, _ in timed), 3.0))
        parts = json.loads(sorted(timed)[len(timed) // 2][1])["seconds"]
        print("  inside: " + ", ".join(f"{name} {value:.3f}" for name, value in parts.items()))
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
