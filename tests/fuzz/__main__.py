"""``python -m tests.fuzz SURFACE.. [--seconds N] [--seed S]``; ``all``: every surface; ``kills``: signals at random moments;
``choices [--executions N] [--seed S]``: plans beside those of fewer choices."""

from __future__ import annotations

import argparse
import math
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz import choices, kills
from tests.fuzz.harness import Tally, fuzz
from tests.fuzz.surfaces import SURFACES


def main(argv: Sequence[str]) -> int:
    """The exit code: 1 when something failed."""
    if argv[:1] == ["kills"]:
        return kills.main(argv[1:])
    if argv[:1] == ["choices"]:
        return choices.main(argv[1:])
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("surface", choices=[*SURFACES, "all"], nargs="+")
    parser.add_argument("--seconds", type=float, help="how long each surface is tried (60, unless --executions is given)")
    parser.add_argument("--executions", type=int, help="at most so many inputs of each surface")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="worker processes")
    parser.add_argument("--failures", type=Path, help="folder for failing inputs (default: a new one)")
    options = parser.parse_args(argv)
    failures = options.failures or Path(tempfile.mkdtemp(prefix="dnnc-fuzz-"))
    seconds = options.seconds or (math.inf if options.executions is not None else 60.0)
    failed = False
    for name in SURFACES if "all" in options.surface else options.surface:
        executions = options.executions if options.executions is not None else sys.maxsize
        tally = fuzz(
            SURFACES[name], seed=options.seed, seconds=seconds, executions=executions, jobs=options.jobs, failures=failures
        )
        print(told(name, options.seed, tally), flush=True)
        failed = failed or bool(tally.failures)
    if failed:
        print(f"failing inputs: {failures}")
    elif not options.failures:
        failures.rmdir()
    return int(failed)


def told(name: str, seed: int, tally: Tally) -> str:
    """What a run found, as text."""
    codes = ", ".join(f"{code}: {count}" for code, count in sorted(tally.codes.items()))
    slowest, heaviest = tally.slowest, tally.heaviest
    lines = [
        f"{name} (seed {seed}): {tally.executions} executions; exit codes {codes}",
        f"  slowest {slowest.seconds:.1f} s: {slowest.case} {shlex.join(slowest.arguments)[:150]!r}",
        f"  peak memory {heaviest.memory >> 20} MiB: {heaviest.case} {shlex.join(heaviest.arguments)[:150]!r}",
    ]
    for signature, results in sorted(tally.failures.items(), key=lambda item: -len(item[1])):
        first = results[0]
        lines.append(f"  FAILED {len(results)} x {signature}\n    {first.case}: dnnc {shlex.join(first.arguments)[:200]!r}")
        lines += [f"    {fault[:300]!r}" for fault in first.faults[:3]]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
