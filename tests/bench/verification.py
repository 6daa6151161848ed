"""What verifying a build costs: ``python -m tests.bench.verification [MODEL...] [--rounds N]``.

Each model (zoo:resnet50 and zoo:gpt2 unless named) is compiled in two stages. Shown are: seconds to open the build with
nothing remembered of its weights (the first run's hashing), with their digests remembered (every later run), and to confirm
after a run that they are as they were; then, of stage 0, seconds to load its model and the process's own memory, from the
descriptors that were verified and by path as onnxruntime would. The cache of digests is one of its own.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from dnnc.build.build import Build
from dnnc.compile.driver import CompileOptions, compile_model
from tests.bench.machine import header

MODELS = ("zoo:resnet50", "zoo:gpt2")
LOADING = """
import sys, time
from pathlib import Path
from dnnc.build.build import Build
from dnnc.engines.onnxruntime.transport.edges import ValueSpec
from dnnc.engines.onnxruntime.session.program import Program
from dnnc.engines.onnxruntime.session.session import Settings
how, folder = sys.argv[1:]
build = Build.open(folder)
name = build.stages[0].models[0]
model, weights = build.model(name)
start = time.perf_counter()
if how == "verified":
    program = Program(model, (), weights=weights)
else:
    program = Program(model, (), Settings(folder=str((Path(folder) / name).parent.absolute())))
seconds = time.perf_counter() - start
lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
print(seconds, next(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty")) / 1024)
"""


def median(rounds: int, action: Callable[[], object], before: Callable[[], object] = lambda: None) -> float:
    """Seconds that ``action`` takes; ``before`` is done before each time."""
    taken = []
    for _ in range(rounds):
        before()
        start = time.perf_counter()
        action()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    print(header())
    with tempfile.TemporaryDirectory(prefix="dnnc-bench-") as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        for number, model in enumerate(arguments.models):
            target = Path(folder) / str(number)
            compile_model(CompileOptions(model, "preset:cpu-2", target, stages=2))
            measure(model, target, Path(folder) / "dnnc" / "digests.json", arguments.rounds)


def measure(model: str, folder: Path, remembered: Path, rounds: int) -> None:
    size = sum(path.stat().st_size for path in folder.rglob("*.data"))
    first = median(rounds, lambda: Build.open(folder), lambda: remembered.unlink(missing_ok=True))
    Build.open(folder)
    later = median(rounds, lambda: Build.open(folder))
    build = Build.open(folder)
    confirm = median(rounds, build.files.confirm)
    print(f"{model}: {size / 2**20:.0f} MiB of weights")
    print(f"  verified in {first:.4f} s at first, {later:.4f} s later; confirmed after a run in {confirm:.6f} s")
    for how, title in (("path", "by path"), ("verified", "from verified descriptors")):
        found = [
            [float(word) for word in subprocess.run(command, capture_output=True, check=True, text=True).stdout.split()]
            for command in [[sys.executable, "-P", "-c", LOADING, how, str(folder)]] * rounds
        ]
        seconds, memory = (statistics.median(column) for column in zip(*found, strict=True))
        print(f"  stage 0 loads {title} in {seconds:.3f} s and holds {memory:.0f} MiB of its own")


if __name__ == "__main__":
    main()
