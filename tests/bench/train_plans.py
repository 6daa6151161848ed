"""Plans of one training step against each other: ``python -m tests.bench.train_plans [MODEL] [--steps N] [--rounds N]``.

A small GPT (4 layers of width 256, 8 samples in 4 microbatches, adam) is compiled for two one-thread workers: as ``dnnc
compile`` does unless told otherwise, on a mesh of two, on that by data alone, by replicas, and in two stages. Each is trained
for some steps, by turns, beside a step of PyTorch on one thread: the forward program under autograd with ``torch.optim.Adam``.

Of each: seconds of a step as predicted, as taken (the median behind the first step of each turn), and taken over predicted;
the quickest step of all, which is nearest to that of a quiet machine; and taken over what the default plan took in the same
round (the median). Targets: no plan takes less than 0.9 times the default's seconds; on a quiet machine the default takes at
most 1.5 times what was predicted.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.bench.machine import header
from tests.bench.train_stages import command, foreseen, trained

MODEL = "zoo:gpt2,layers=4,hidden=256,heads=4,vocab=1000"
BATCH, MICROBATCHES = 8, 4
DEFAULT, ALONE = "default", "PyTorch, one thread"
PLANS: dict[str, list[str]] = {
    DEFAULT: [],
    "--mesh 2": ["--mesh", "2"],
    "--mesh 2 --strategy data": ["--mesh", "2", "--strategy", "data"],
    "replicas": ["--mesh", "none", "--stages", "1"],
    "two stages": ["--mesh", "none", "--stages", "2", "--replicas", "1"],
}
QUICKEST, NEAR = 0.9, 1.5


class Torch:
    """A process that does steps of PyTorch's own (``tests.bench.train_step``) when asked."""

    def __init__(self, spec: str, rounds: int) -> None:
        asked = [sys.executable, "-m", "tests.bench.train_step", "--child", "eager", spec, "--rounds", str(rounds), "--clock"]
        self.process = subprocess.Popen(asked, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def step(self) -> float:
        """Seconds of one."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(json.loads(self.process.stdout.readline())["seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=MODEL, help="of the zoo, without its batch")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(header())
    spec = f"{options.model},batch={BATCH // MICROBATCHES}"
    with tempfile.TemporaryDirectory(prefix="dnnc-bench-") as folder:
        builds = {name: Path(folder) / str(number) for number, name in enumerate(PLANS)}
        asked = ["-t", "preset:cpu-2", "--objective", "training", "--microbatches", str(MICROBATCHES)]
        for name, build in builds.items():
            command("compile", spec, *asked, *PLANS[name], "-o", str(build))
        predicted = {name: foreseen(build, MICROBATCHES)[0] for name, build in builds.items()}
        alone = Torch(f"{options.model},batch={BATCH}", options.steps * options.rounds)
        rounds: dict[str, list[float]] = {name: [] for name in (*builds, ALONE)}
        quickest = dict.fromkeys(rounds, math.inf)
        for _ in range(options.rounds):
            for name, build in builds.items():
                steps = [BATCH / pace for pace in trained(build, options.steps)[1][1:]]
                rounds[name].append(statistics.median(steps))
                quickest[name] = min(quickest[name], *steps)
            steps = [alone.step() for _ in range(options.steps)]
            rounds[ALONE].append(statistics.median(steps))
            quickest[ALONE] = min(quickest[ALONE], *steps)
        alone.process.terminate()
        alone.process.wait()
    print("plan                        predicted      taken    ratio    quickest   over the default")
    over = {}
    for name, seconds in rounds.items():
        taken = statistics.median(seconds)
        over[name] = statistics.median(one / other for one, other in zip(seconds, rounds[DEFAULT], strict=True))
        foretold = f"{predicted[name] * 1e3:8.1f} ms" if name in predicted else " " * 11
        ratio = f"{taken / predicted[name]:6.2f}x" if name in predicted else " " * 7
        print(f"{name:26}{foretold} {taken * 1e3:7.1f} ms  {ratio} {quickest[name] * 1e3:8.1f} ms {over[name]:17.2f}x")
    apart = statistics.median(rounds[DEFAULT]) / predicted[DEFAULT]
    print(
        f"targets: no plan below {QUICKEST}x of the default ({min(over.values()):.2f}x), ratio at most {NEAR}x ({apart:.2f}x)"
    )
    sys.exit(0 if min(over.values()) >= QUICKEST and apart <= NEAR else 1)


if __name__ == "__main__":
    main()
