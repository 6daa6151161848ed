"""Is the command slower than at another commit? ``python -m tests.bench.against COMMIT [MODEL...] [--rounds N]``.

``compile``, ``run`` and ``check`` of each model (zoo:resnet50 and zoo:gpt2 unless named), in two stages on two one-core
workers, by this checkout and by COMMIT in turns, each in processes of their own with the same Python environment. The first
turn of each warms the caches (compiled kernels, digests of weights) and is shown apart. The ratio is the median of the
ratios of neighbouring turns, in wall-clock seconds; processor seconds of the same stand beside it. Options that only this
checkout knows are given by ``--with``, for instance ``--with compile=--no-load-test``.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.machine import header

ROOT = Path(__file__).resolve().parent.parent.parent
MODELS = ("zoo:resnet50", "zoo:gpt2")


def commands(model: str, build: Path) -> dict[str, list[str]]:
    """The steps, in their order."""
    return {
        "compile": ["compile", model, "-t", "preset:cpu-2", "--stages", "2", "-o", str(build)],
        "run": ["run", str(build), "--microbatches", "16"],
        "check": ["check", str(build)],
    }


def timed(checkout: Path, arguments: list[str]) -> tuple[float, float]:
    """Wall-clock and processor seconds of one command of a checkout. Raises CalledProcessError when it fails."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    command = [sys.executable, "-P", "-m", "dnnc", *arguments]
    subprocess.run(command, env=environment, check=True, capture_output=True, cwd=checkout)
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def compare(model: str, other: Path, folder: Path, rounds: int, extra: dict[str, list[str]]) -> None:
    builds = {checkout: folder / f"{number}-{model.replace(':', '-')}" for number, checkout in enumerate((other, ROOT))}
    taken: dict[tuple[str, Path], list[tuple[float, float]]] = {}
    for turn in range(rounds + 1):
        for checkout in (other, ROOT) if turn % 2 else (ROOT, other):
            for step, arguments in commands(model, builds[checkout]).items():
                more = extra.get(step, []) if checkout == ROOT else []
                taken.setdefault((step, checkout), []).append(timed(checkout, [*arguments, *more]))
    for step in commands(model, folder):
        now, then = taken[step, ROOT], taken[step, other]
        wall, cpu = (statistics.median(a[i] / b[i] for a, b in zip(now[1:], then[1:], strict=True)) for i in (0, 1))
        seconds = [statistics.median(one[0] for one in side[1:]) for side in (then, now)]
        first = f"first {then[0][0]:.2f} -> {now[0][0]:.2f} s"
        print(
            f"{model:14} {step:8} {seconds[0]:7.3f} -> {seconds[1]:7.3f} s   wall {wall:.3f}x   cpu {cpu:.3f}x   {first}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit")
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--with", dest="extra", action="append", default=[], metavar="STEP=OPTION")
    arguments = parser.parse_args()
    extra: dict[str, list[str]] = {}
    for text in arguments.extra:
        step, _, option = text.partition("=")
        extra.setdefault(step, []).append(option)
    print(header())
    with tempfile.TemporaryDirectory(prefix="dnnc-against-") as folder:
        other = Path(folder) / "checkout"
        subprocess.run(
            ["git", "-C", str(ROOT), "worktree", "add", "--quiet", "--detach", str(other), arguments.commit], check=True
        )
        try:
            for model in arguments.models:
                compare(model, other, Path(folder), arguments.rounds, extra)
        finally:
            subprocess.run(["git", "-C", str(ROOT), "worktree", "remove", "--force", str(other)], check=True)


if __name__ == "__main__":
    main()
