"""How long ``dnnc --help`` takes, beside ``python -c "import typer"``: the least of several runs of each, in turn.

    python -m tests.bench.start_up [--runs 20]

The command must stay within 2.5 times the import: it is the price of every start, completions included.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

CASES = {
    "python": ("-c", "pass"),
    "import typer": ("-c", "import typer"),
    "dnnc --help": ("-m", "dnnc", "--help"),
    "dnnc compile --help": ("-m", "dnnc", "compile", "--help"),
}
MOST = 2.5


def seconds(arguments: tuple[str, ...]) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    runs = parser.parse_args().runs
    least = dict.fromkeys(CASES, float("inf"))
    for _ in range(runs):
        for name, arguments in CASES.items():
            least[name] = min(least[name], seconds(arguments))
    for name, value in least.items():
        print(f"{name:20}  {value * 1e3:5.0f} ms  {value / least['import typer']:.2f}x")
    return int(least["dnnc --help"] > MOST * least["import typer"])


if __name__ == "__main__":
    sys.exit(main())
