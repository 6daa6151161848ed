"""How late ``--time-limit`` is: a command's seconds under a limit, less those under a limit of none.

Run: ``python -m tests.bench.time_limits [--limit S] [--every N]``. Each of ``COMMANDS`` (with ``--every N`` one of N) runs
under a limit of 0 seconds until its kernels are compiled, which is no part of a limit; once more for what it takes beside the
search; and under the limit (5 s). Prints these, and by how much of the limit the search was late; exit 1 where that was
more than ``LATE`` of the limit and ``CONSTANT`` seconds. The machine should do nothing else.
"""

from __future__ import annotations

import argparse
import sys

from tests.bench.reproducible import plan_of

LATE, CONSTANT = 0.1, 1.0
COMMANDS = (
    "compile zoo:gpt2,layers=12 -t preset:8xh100 --mesh none",
    "compile zoo:bert-base -t preset:2xa100x4 --objective latency --pieces 2",
    "compile zoo:inception-v3,batch=32 -t preset:tag-testbed --objective training --mesh none",
    "compile zoo:gpt2,layers=12 -t preset:2xa100x4 --split any --mesh none",
    "compile zoo:gpt2,layers=12 -t preset:2xa100x4 --mesh 2x4",
    "compile zoo:t5-base -t preset:2xa100x4 --mesh auto --stages auto",
    "compile zoo:vgg19,batch=64 -t preset:tag-testbed --objective training",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=float, default=5.0, metavar="S")
    parser.add_argument("--every", type=int, default=1, metavar="N")
    asked = parser.parse_args()
    worst = 0
    print(f"{'beside':>8} {'limited':>8} {'late':>7}  command")
    for command in COMMANDS[:: asked.every]:
        plan_of(f"{command} --time-limit 0", {})
        _, beside = plan_of(f"{command} --time-limit 0", {})
        _, limited = plan_of(f"{command} --time-limit {asked.limit}", {})
        over = limited - beside - asked.limit
        worst |= over > LATE * asked.limit + CONSTANT
        print(f"{beside:7.1f}s {limited:7.1f}s {max(0.0, over) / asked.limit:6.0%}   {command}", flush=True)
    return int(worst)


if __name__ == "__main__":
    sys.exit(main())
