"""PipeDream's objective on the public profiles at 10 GB/s: milliseconds per minibatch, gap, and seconds to the proof.

Run: ``python -m tests.bench.pipedream``. Reading and compilation are excluded; the median of ``RUNS`` solves is shown.
"""

from __future__ import annotations

import statistics
import time

from passes.reference.pipedream import Machines, solve_pipedream
from tests.bench.machine import header
from tests.passes.reference.pipedream.test_pipedream import FOLDER, read

RUNS = 5


def main() -> None:
    print(header())
    print(f"{'profile':14} {'machines':>8} {'plan':12} {'ms':>10} {'gap':>8} {'walked':>8} {'pairs':>10} {'seconds':>8}")
    total = 0.0
    for path in sorted(FOLDER.glob("*.txt")):
        profile = read(path)
        solve_pipedream(profile, Machines(1, 10e9))
        for count in (4, 8, 16):
            for straight in (False, True):
                machines = Machines(count, 10e9, straight)
                seconds = []
                while len(seconds) < RUNS and sum(seconds) < 10:
                    start = time.perf_counter()
                    solution = solve_pipedream(profile, machines)
                    seconds.append(time.perf_counter() - start)
                middle = statistics.median(seconds)
                total += middle
                print(
                    f"{path.stem:14} {count:8} {'straight' if straight else 'replicated':12} {solution.value * 1000:10.4f} "
                    f"{solution.value / solution.bound - 1:8.3%} {solution.statistics.ideals:8} "
                    f"{solution.statistics.tested:10} {middle:8.4f}"
                )
    print(f"all: {total:.3f} s")


if __name__ == "__main__":
    main()
