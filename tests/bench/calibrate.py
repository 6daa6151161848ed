"""What ``dnnc calibrate`` gains, by the number of rows.

    python -m tests.bench.calibrate                    machines whose true numbers are drawn, and measured with noise
    python -m tests.bench.calibrate --here             plans that run on this machine, each measured by ``dnnc run``
    python -m tests.bench.calibrate --vtrain CSV       training steps on A100s that vTrain's authors measured, from a preset
                                                       that says nothing of the time to start kernels

Drawn: every number of the device type and of the link is off by a factor (log-normal, 0.35), and each run by another (0.05). So
many plans are fitted, and the others judged, which ``calibrate`` never sees, by their true seconds; the mean of some draws.
"""

from __future__ import annotations

import argparse
import csv
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dnnc.study.calibrate import Floats, calibrated, machines_at, numbers_of
from dnnc.study.runs import MeasuredRun, StatedPlan, read_stated
from ir.core.topology import Topology
from tests.bench.machine import header
from tests.bench.referees.vtrain import planned

HERE = "preset:cpu-2,cores=2"
MACHINES = "preset:cpu-4,cores=4,memory=64GiB"
MODELS = (
    "zoo:resnet50,image=64",
    "zoo:bert-base,layers=2,seq=64",
    "zoo:bert-base,layers=3,seq=128,hidden=256,heads=4",
    "zoo:gpt2,layers=2,seq=64",
    "zoo:gpt2,layers=2,seq=16,hidden=256,heads=4,vocab=2000",
    "zoo:vit,layers=2,image=64,classes=100",
    "zoo:mlp",
    "zoo:t5,layers=1,seq=32",
)
SPLITS: tuple[tuple[str, ...], ...] = (
    ("--stages", "1", "--mesh", "none"),
    ("--stages", "2", "--mesh", "none"),
    ("--stages", "4", "--mesh", "none"),
    ("--mesh", "2"),
    ("--mesh", "4"),
)
SIZES = (5, 10, 20)
VTRAIN = 40
HEADER = f"{'plans fitted':>12} {'before':>8} {'after':>8} {'as said':>8}"
DRAWS = 3
WRONG, NOISE = 0.35, 0.05


def compiled(folder: Path, machines: str, models: Sequence[str], splits: Sequence[tuple[str, ...]], *more: str) -> list[Path]:
    """The builds of every model in every split that it has."""
    found = []
    for model in models:
        for split in splits:
            out = folder / f"b{len(found)}"
            command = [sys.executable, "-m", "dnnc", "compile", model, "-t", machines, *split, *more, "-q", "-o", str(out)]
            if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                found.append(out)
    return found


def run(*arguments: str) -> None:
    """The command, silent. Raises CalledProcessError."""
    subprocess.run([sys.executable, "-m", "dnnc", *arguments], capture_output=True, check=True)


def drawn(folder: Path) -> None:
    builds = compiled(folder, MACHINES, MODELS, SPLITS, "--plan-only")
    plans = [read_stated(MeasuredRun(build, "", 1.0, str(build))) for build in builds]
    machines = plans[0].topology
    numbers = numbers_of("core", [machines], folder)
    before = np.array([plan.value for plan in plans])
    print(f"{len(plans)} plans of {len(MODELS)} models on {MACHINES}; mean errors on the plans that were not fitted")
    print(HEADER)
    for size in SIZES:
        errors = []
        for draw in range(DRAWS):
            generator = np.random.default_rng(draw)
            factors = np.maximum(np.exp(generator.normal(0, WRONG, len(numbers))), [number.least for number in numbers])
            true = predicted(plans, machines_at(machines, numbers, factors))
            measured = true * np.exp(generator.normal(0, NOISE, len(plans)))
            order = generator.permutation(len(plans))
            rows = folder / "rows.csv"
            rows.write_text("build,seconds\n" + "".join(f"{builds[i]},{measured[i]}\n" for i in order[:size]))
            found = calibrated("core", rows)
            rest = order[size:]
            after = predicted(plans, found.topology)
            errors.append([*(np.abs(one[rest] / true[rest] - 1).mean() for one in (before, after)), found.held_out])
        print(f"{size:12} " + " ".join(f"{value:8.1%}" for value in np.mean(errors, axis=0)), flush=True)


def predicted(plans: Sequence[StatedPlan], machines: Topology) -> Floats:
    return np.array([plan.seconds_on(machines) for plan in plans])


def here(folder: Path) -> None:
    rows = folder / "rows.csv"
    for build in compiled(folder, HERE, MODELS, SPLITS[:2] + SPLITS[3:4]):
        run("run", str(build), "-m", "32", "--warmup", "1", "--repeat", "3", "--runs", str(rows), "-q")
    subprocess.run([sys.executable, "-m", "dnnc", "calibrate", "core", str(rows)], check=True)


def vtrain(path: Path, folder: Path) -> None:
    with path.open() as file:
        table = list(csv.DictReader(file))
    random.Random(0).shuffle(table)
    seconds, builds = [], []
    for number, row in enumerate(table[:VTRAIN]):
        folder_of = folder / str(number)
        folder_of.mkdir()
        planned(row, 0.0, "none", folder_of)
        builds.append(folder_of / "build")
        seconds.append(float(row["iteration_time_ms"]) * 1e-3)
    measured, plans = np.array(seconds), [read_stated(MeasuredRun(build, "", 1.0, str(build))) for build in builds]
    before = np.array([plan.value for plan in plans])
    print(f"{len(plans)} plans of {path.name}; mean errors on the plans that were not fitted")
    print(HEADER)
    for size in SIZES[:3]:
        rows = folder / "rows.csv"
        rows.write_text("build,seconds\n" + "".join(f"{builds[i]},{seconds[i]}\n" for i in range(size)))
        found = calibrated("a100", rows)
        after = np.array([plan.seconds_on(found.on(plan.topology)) for plan in plans])
        errors = [np.abs(one[size:] / measured[size:] - 1).mean() for one in (before, after)]
        told = ", ".join(f"{one.number.of} {one.number.key} x{one.factor:.2f}" for one in found.fitted)
        print(f"{size:12} " + " ".join(f"{value:8.1%}" for value in (*errors, found.held_out)), told, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--here", action="store_true", help="plans that run on this machine")
    parser.add_argument("--vtrain", metavar="CSV", type=Path, help="measured training steps, as ../shared/referees has them")
    options = parser.parse_args()
    print(header())
    with tempfile.TemporaryDirectory() as folder:
        if options.vtrain is not None:
            vtrain(options.vtrain, Path(folder))
        else:
            (here if options.here else drawn)(Path(folder))


if __name__ == "__main__":
    main()
