"""How long the largest models take from their name to IR, and how much memory: nothing of the size of their weights is made.

Run with ``python -m tests.bench.zoo`` from the repository's root. Each model is built in a process of its own. Prints processor
seconds of building, of the whole process, and its peak memory, beside those of a process that builds ``mlp`` (the baseline),
with targets: GPT-3 in under 2 s, and no process above 256 MiB. Ends with 1 when a target is missed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.bench.machine import header

ROOT = Path(__file__).resolve().parent.parent.parent
MODELS = (
    *("vit-base", "t5-base", "t5-large", "llama-7b", "llama-70b", "mixtral-8x7b", "mixtral-8x7b,routing=capacity"),
    *("resnet50,classes=1000000", "gpt3-175b", "gpt3-175b,layers=1024"),
)
BASELINE = "mlp"
MOST_SECONDS, MOST_MIB = 2.0, 256.0

CHILD = """
import json, resource, sys, time
from dnnc.zoo import build_model
start = time.process_time()
model = build_model(sys.argv[1])
built = time.process_time()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps([model.parameters, model.weight_bytes, len(model.module.entry.ops), built - start, built, peak]))
"""


def measure(spec: str) -> list[float]:
    """Parameters, bytes of weights, ops, seconds of building, seconds of the process, peak MiB."""
    command = [sys.executable, "-c", CHILD, spec]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return list(json.loads(done.stdout))


def main() -> int:
    print(header())
    base = measure(BASELINE)
    print(f"{'model':32} {'parameters':>10} {'weights':>10} {'ops':>6} {'build':>8} {'process':>8} {'ratio':>6} {'peak':>9}")
    missed = 0
    for spec in (BASELINE, *MODELS):
        parameters, weights, ops, build, process, peak = measure(spec)
        late = build > MOST_SECONDS or peak > MOST_MIB
        missed += late
        print(
            f"{spec:32} {parameters / 1e9:8.3f} B {weights / 2**30:6.1f} GiB {ops:6} {build:6.3f} s {process:6.2f} s "
            f"{process / base[4]:6.2f} {peak:5.0f} MiB{'  MISSED' if late else ''}"
        )
    print(f"targets: build under {MOST_SECONDS:g} s, peak under {MOST_MIB:g} MiB; ratio: of the process to that of {BASELINE}")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
