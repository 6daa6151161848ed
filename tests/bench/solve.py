"""Seconds to a proven optimum on the public device-placement workloads, beside the reference's.

Run: ``python -m tests.bench.solve [FILE..] [--searches N]``. Per workload: the objective, the value of the
reference's table, whether they agree to the digits printed, medians of N runs, the reference's seconds, the ratio, and how far
the searches raised the process's memory above what it held before. ``build``: from IR to the reduced problem; ``search``:
from there to the proof. The ratio is that of their sum; reading the file and compiling the kernels are excluded. The
reference's are user seconds of an -O3 build on one quiet core (``shared/spec/partition.md``); 0.00 means below its clock.
"""

from __future__ import annotations

import argparse
import math
import statistics
from dataclasses import dataclass
from pathlib import Path

from dnnc.workloads.solve import SolveOptions, SolveResult, solve_file
from ir.core.diagnostics import DiagnosticSink
from tests.bench.machine import header
from tests.conftest import shared_folder

TABLE = {
    "op-bert_l-3_inference": (27.918568, 0.47),
    "op-bert_l-6_inference": (29.579506, 1.72),
    "op-resnet50_inference": (124.348850, 0.13),
    "layer-bert24_inference": (17.789906, 0.00),
    "layer-gnmt_inference": (32.910658, 8.30),
    "layer-resnet50_inference": (33.774666, 0.11),
    "op-bert_l-3_training": (65.303149, 2.79),
    "layer-bert24_training": (41.7458, 0.00),
    "layer-resnet50_training": (78.6318, 0.18),
}
"""Contiguous optimum to the digits printed, k accelerators and one CPU, and the reference's seconds."""
SLOW = 0.4
"""Seconds of the reference above which the ratios count."""
MEAN, LEAST, MEMORY = 200, 30, 120
"""Targets: geometric mean and least of the ratios that count, MiB."""


@dataclass(frozen=True)
class Row:
    """A workload measured: seconds are medians, ``grown`` the most MiB that one search took."""

    result: SolveResult
    build: float
    search: float
    grown: float


def measure(path: Path, searches: int) -> Row:
    """Solves the workload so often, after once to fill caches."""
    options = SolveOptions(str(path))
    solve_file(options, sink=DiagnosticSink())
    results, grown = [], 0.0
    for _ in range(searches):
        before = forget_peak()
        results.append(solve_file(options, sink=DiagnosticSink()))
        grown = max(grown, held("VmHWM") - before)
    build, search = (statistics.median(result.seconds[step] for result in results) for step in ("build", "search"))
    return Row(results[-1], build, search, grown)


def held(key: str) -> float:
    """MiB that Linux says the process holds (VmRSS) or held at most (VmHWM)."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) / 1024


def forget_peak() -> float:
    """Starts the measure of the peak anew; returns MiB held now."""
    Path("/proc/self/clear_refs").write_text("5")
    return held("VmRSS")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="default: the workloads of the table")
    parser.add_argument("--searches", type=int, default=20)
    arguments = parser.parse_args()
    files = arguments.files
    if not files:
        shared = shared_folder()
        if shared is None:
            parser.error("no ../shared folder beside the checkout; name files")
        folder = shared / "workloads" / "device-placement" / "throughput"
        files = [folder / f"{name}.json" for name in TABLE]
    print(header())
    print(
        f"{'workload':26} {'objective':>13} {'table':>11} {'same':>5} {'ideals':>7} {'pairs':>8} "
        f"{'build s':>8} {'search s':>9} {'ref s':>6} {'ratio':>7} {'MiB':>6}"
    )
    rows = {path: measure(path, arguments.searches) for path in files}
    ratios = {}
    for path, row in rows.items():
        result = row.result
        value, reference = TABLE.get(path.stem, (math.nan, math.nan))
        same = (
            "-" if math.isnan(value) else "yes" if round(result.objective, len(str(value).partition(".")[2])) == value else "NO"
        )
        ratio = reference / (row.build + row.search)
        if reference > SLOW:
            ratios[path.stem] = ratio
        print(
            f"{path.stem:26} {result.objective:13.6f} {value:11.6f} {same:>5} {result.ideals:7} {result.transitions:8} "
            f"{row.build:8.4f} {row.search:9.4f} {reference:6.2f} {ratio:7.1f} {row.grown:6.1f}"
        )
    if ratios:
        print(
            f"ratio where the reference needs over {SLOW} s: geometric mean {statistics.geometric_mean(ratios.values()):.1f} "
            f"(target {MEAN}), least {min(ratios.values()):.1f} (target {LEAST})"
        )
    print(f"memory: at most {max(row.grown for row in rows.values()):.1f} MiB more than before the search (target {MEMORY})")


if __name__ == "__main__":
    main()
