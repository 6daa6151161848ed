"""Whether a command gives the same bytes whatever the machine does beside it.

Run: ``python -m tests.bench.reproducible [--only I,J]``. Each of ``COMMANDS`` (with ``--only`` those of these numbers, from 0)
runs three times in processes of its own: alone; beside a busy loop on every core; and with an empty cache of compiled kernels.
Prints the seconds of each and whether the plans are byte-equal; exit 1 where any differ.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMANDS = (
    "compile zoo:mlp,layers=6,hidden=512,batch=32 -t preset:cpu-4",
    "compile zoo:gpt2,layers=4 -t preset:2xa100x4",
    "compile zoo:gpt2,layers=12 -t preset:8xh100 --mesh auto",
    "compile zoo:bert-small,batch=8 -t preset:2xa100x4 --objective latency",
    "compile zoo:inception-v3,batch=8 -t preset:tag-testbed",
    "compile zoo:inception-v3,batch=32 -t preset:tag-testbed --objective training",
    "compile zoo:bert-small,batch=16 -t preset:tag-testbed --objective training",
    "compile zoo:whisper-base -t preset:2xa100x4 --stages 4",
    "compile zoo:vgg19,batch=64 -t preset:tag-testbed --objective training --mesh auto",
    "compile zoo:resnet50,batch=8 -t preset:2xa100x4 --stages 3 --mesh none",
    "compile zoo:t5-base -t preset:2xa100x4 --mesh 2x4",
    "compile zoo:t5-base -t preset:2xa100x4 --objective training --mesh 8",
    "compile zoo:mixtral-8x7b,layers=2,experts=8 -t preset:8xh100 --mesh auto",
    "compile zoo:llama-7b,layers=8 -t preset:2xa100x4",
    "compile zoo:gpt2,layers=4 -t preset:2xa100x4 --split any --mesh none --stages 4",
    "compile zoo:transformer-base,batch=16 -t preset:tag-testbed --objective training --search tag",
    "compile zoo:vit-base,batch=8 -t preset:2xa100x4 --mesh none --replicas 4",
    "compile zoo:resnet101,batch=16 -t preset:2xa100x4 --objective training --stages 4",
    "compile zoo:gpt3-175b,layers=8,dtype=f16 -t preset:8xh100x8 --mesh 8x8",
    "compile zoo:bert-base,batch=8 -t preset:cpu-4 --comm overlap",
)


def plan_of(command: str, environment: dict[str, str]) -> tuple[bytes, float]:
    """The bytes of ``plan.ir`` and ``plan.json`` that a command writes, or of its error, and its seconds."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        began = time.perf_counter()
        line = [sys.executable, "-m", "dnnc", *command.split(), "--plan-only", "-q", "-o", str(out)]
        done = subprocess.run(line, env={**os.environ, **environment}, capture_output=True, check=False)
        seconds = time.perf_counter() - began
        if done.returncode:
            return done.stderr, seconds
        return b"\0".join((out / name).read_bytes() for name in ("plan.ir", "plan.json")), seconds


def differing(command: str) -> tuple[list[str], list[float]]:
    """How the machine was where a command gave other bytes than alone, and the seconds of all runs."""
    alone, first = plan_of(command, {})
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        busy, second = plan_of(command, {})
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    with tempfile.TemporaryDirectory() as cache:
        cold, third = plan_of(command, {"NUMBA_CACHE_DIR": cache})
    return [name for name, plan in (("busy", busy), ("cold", cold)) if plan != alone], [first, second, third]


def main() -> int:
    from tests.bench.machine import header

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="I,J", help="the numbers of the commands, from 0")
    only = parser.parse_args().only
    commands = [COMMANDS[int(number)] for number in only.split(",")] if only else COMMANDS
    print(header())
    print(f"{'alone s':>8} {'busy s':>8} {'cold s':>8}  plans      command")
    faults = 0
    for command in commands:
        found, seconds = differing(command)
        faults += len(found)
        told = f"differ ({', '.join(found)})" if found else "equal"
        print(*(f"{one:8.1f}" for one in seconds), f" {told:10} {command}", flush=True)
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
